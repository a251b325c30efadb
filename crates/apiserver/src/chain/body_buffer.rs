//! Buffers request bodies before queueing, so a slow upload never holds a concurrency seat.

use super::Chain;
use super::offload::LARGE;
use crate::context::Context;
use crate::serve::RequestBody;
use http_body::Body;
use machinery::status::Status;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// A buffered request body and its share of the memory budget.
pub struct BufferedBody {
    /// A read error is reported later: authorization is decided first.
    pub body: Result<RequestBody, Status>,
    pub share: Option<OwnedSemaphorePermit>,
}

impl Chain {
    /// Buffers the body if reading it may be slow. A large body waits until memory is available; a small one that
    /// finds none is read once the request has a seat.
    pub(super) async fn buffer_body(
        &self,
        context: &Context,
        body: RequestBody,
        deadline: Instant,
    ) -> BufferedBody {
        let expected = body.size_hint();
        let most = self.rest.limits.max_body_bytes as u64;
        let leave = body.is_end_stream()
            || matches!(body, RequestBody::Bytes(_))
            || expected.lower() > most
            || context.is_long_running()
            || context.user.is_in("system:unauthenticated");
        if leave {
            return BufferedBody { body: Ok(body), share: None };
        }
        let length = expected.exact().unwrap_or(most).div_ceil(1024).max(1);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let bodies = &self.memory.bodies;
        let late = || Status::timeout("Timeout: request did not complete within the allotted timeout", 0);
        let share = match bodies.clone().try_acquire_many_owned(length) {
            Ok(share) => share,
            Err(_) if expected.exact().is_some_and(|exact| exact <= LARGE as u64) => {
                return BufferedBody { body: Ok(body), share: None };
            }
            Err(_) => {
                let room = bodies.clone().acquire_many_owned(length);
                match tokio::time::timeout_at(deadline.into(), room).await {
                    Ok(Ok(share)) => share,
                    _ => return BufferedBody { body: Err(late()), share: None },
                }
            }
        };
        let read = match tokio::time::timeout_at(deadline.into(), self.rest.read_body(body)).await {
            Ok(outcome) => outcome.map(RequestBody::Bytes),
            Err(_) => Err(late()),
        };
        BufferedBody { body: read, share: Some(share) }
    }
}
