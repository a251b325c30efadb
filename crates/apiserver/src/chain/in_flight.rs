//! Room for requests: so many at once, writes counted apart; watches and streams do not count.

use crate::context::Context;
use machinery::status::Status;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct InFlight {
    reading: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
}

/// A place, given back when dropped. Requests that do not count have none.
pub struct Permit {
    _held: Option<OwnedSemaphorePermit>,
}

impl InFlight {
    pub fn new(reading: usize, mutating: usize) -> Self {
        Self { reading: Arc::new(Semaphore::new(reading)), mutating: Arc::new(Semaphore::new(mutating)) }
    }

    pub fn enter(&self, context: &Context) -> Result<Permit, Status> {
        // Long-running requests hold no place, and whoever runs the cluster must always get in.
        if context.is_long_running() || context.user.is_in("system:masters") {
            return Ok(Permit { _held: None });
        }
        let mutating = !matches!(context.info.verb, "get" | "list" | "watch" | "head");
        let room = if mutating { &self.mutating } else { &self.reading };
        match room.clone().try_acquire_owned() {
            Ok(held) => Ok(Permit { _held: Some(held) }),
            Err(_) => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
        }
    }
}
