//! Bodies are read before their request takes a seat: whoever sends slowly keeps nobody waiting.

use super::Chain;
use crate::context::Context;
use crate::serve::RequestBody;
use http_body::Body;
use machinery::status::Status;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of bodies whose requests wait, all together; beyond that, bodies are read by those who have a seat.
const BUDGET_KIB: usize = 128 * 1024;

/// What bodies may take before their requests run.
pub struct Intake {
    budget: Arc<Semaphore>,
}

/// A body on its way to the handler, and its part of the budget.
pub struct Taken {
    /// An error is for later: first it is decided whether the client may write at all.
    pub body: Result<RequestBody, Status>,
    pub share: Option<OwnedSemaphorePermit>,
}

impl Default for Intake {
    fn default() -> Self {
        Self { budget: Arc::new(Semaphore::new(BUDGET_KIB)) }
    }
}

impl Chain {
    /// Reads the body if that may take its time and there is room for it. Nobody in particular has to wait.
    pub(super) async fn take_in(&self, context: &Context, body: RequestBody, deadline: Instant) -> Taken {
        let expected = body.size_hint();
        let most = self.rest.limits.max_body_bytes as u64;
        let leave = body.is_end_stream()
            || matches!(body, RequestBody::Bytes(_))
            || expected.lower() > most
            || context.is_long_running()
            || context.user.is_in("system:unauthenticated");
        if leave {
            return Taken { body: Ok(body), share: None };
        }
        let length = expected.exact().unwrap_or(most).div_ceil(1024).max(1);
        let share =
            self.intake.budget.clone().try_acquire_many_owned(u32::try_from(length).unwrap_or(u32::MAX));
        let Ok(share) = share else { return Taken { body: Ok(body), share: None } };
        let read = match tokio::time::timeout_at(deadline.into(), self.rest.read_body(body)).await {
            Ok(outcome) => outcome.map(RequestBody::Bytes),
            Err(_) => {
                Err(Status::timeout("Timeout: request did not complete within the allotted timeout", 0))
            }
        };
        Taken { body: read, share: Some(share) }
    }
}
