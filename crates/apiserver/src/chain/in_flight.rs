//! Room for requests: so many at once, writes counted apart; watches and streams do not count.

use crate::context::Context;
use crate::request_info::Verb;
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

    /// `None`: there is no room.
    pub fn enter(&self, context: &Context) -> Option<Permit> {
        // Long-running requests hold no place, and whoever runs the cluster must always get in.
        if context.is_long_running() || context.user.is_in("system:masters") {
            return Some(Permit { _held: None });
        }
        let mutating = !matches!(context.info.verb, Verb::Get | Verb::List | Verb::Watch | Verb::Head);
        let room = if mutating { &self.mutating } else { &self.reading };
        room.clone().try_acquire_owned().ok().map(|held| Permit { _held: Some(held) })
    }
}
