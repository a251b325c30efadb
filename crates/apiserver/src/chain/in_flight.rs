//! Max-in-flight limits: mutating requests are counted separately; watches and streams do not count.

use crate::context::Context;
use crate::request_info::Verb;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct InFlight {
    reading: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
}

/// A permit, released on drop. Requests that do not count have none.
pub struct Permit {
    _held: Option<OwnedSemaphorePermit>,
}

impl InFlight {
    pub fn new(reading: usize, mutating: usize) -> Self {
        Self { reading: Arc::new(Semaphore::new(reading)), mutating: Arc::new(Semaphore::new(mutating)) }
    }

    /// Acquires a permit; `None` if the limit is reached.
    pub fn enter(&self, context: &Context) -> Option<Permit> {
        // Long-running requests hold no permit, and cluster administrators are never limited.
        if context.is_long_running() || context.user.is_in("system:masters") {
            return Some(Permit { _held: None });
        }
        let permits = if is_mutating(context) { &self.mutating } else { &self.reading };
        permits.clone().try_acquire_owned().ok().map(|held| Permit { _held: Some(held) })
    }
}

pub fn is_mutating(context: &Context) -> bool {
    !matches!(context.info.verb, Verb::Get | Verb::List | Verb::Watch | Verb::Head)
}
