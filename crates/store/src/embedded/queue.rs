//! Requests to the commit thread, and their queue.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::contract::{LeaseId, Outcome, Revision, Txn};
use crate::error::{Result, StoreError};

/// Channel of a response.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// A request to the commit thread.
pub(super) enum Request {
    Txn {
        txn: Txn,
        reply: Reply<Outcome>,
    },
    Compact {
        revision: Revision,
        reply: Reply<()>,
    },
    Grant {
        ttl: Duration,
        reply: Reply<LeaseId>,
    },
    Revoke {
        lease: LeaseId,
        reply: Reply<()>,
    },
    KeepAlive {
        lease: LeaseId,
        reply: Reply<()>,
    },
    /// A checkpoint up to this log frame has been written, with this size, or has failed.
    Checkpointed {
        index: u64,
        result: Result<u64>,
    },
}

/// Requests in order of arrival; one reader takes them all in one call.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    closed: bool,
}

impl Queue {
    /// Adds a request; a closed queue drops it, and with it the reply channel.
    pub fn push(&self, request: Request) {
        let mut waiting = self.waiting.lock();
        if !waiting.closed {
            waiting.requests.push(request);
            drop(waiting);
            self.arrived.notify_one();
        }
    }

    /// Adds a request and waits for its response.
    pub async fn send<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.push(request(reply));
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Rejects further requests; queued ones are still returned.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Returns all queued requests, waiting for the first until the deadline. `None` once the queue is closed and
    /// empty. `spent` is an empty vector to reuse.
    pub fn take(&self, deadline: Option<Instant>, spent: Vec<Request>) -> Option<Vec<Request>> {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.closed {
                return None;
            }
            match deadline {
                None => self.arrived.wait(&mut waiting),
                Some(deadline) => {
                    if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        Some(std::mem::replace(&mut waiting.requests, spent))
    }

    /// Drops requests that will not be processed.
    pub fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.requests.clear();
    }
}
