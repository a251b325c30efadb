//! Recent sampled writes by revision, so that spans of reconciliations join the trace of the write they follow.
//!
//! The event of a write can arrive before the writer knows its revision. A reconciliation whose revision is unknown
//! therefore waits for the sampled writes that are in progress, for [`MAX_WAIT`] at most.

use super::context::SpanContext;
use super::tracer::Parent;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Reconciliations after which a new trace begins: a trace of control loops that trigger each other is finite.
pub const MAX_HOPS: u8 = 16;
/// Limit of recorded writes; their events follow shortly.
const CAPACITY: usize = 4096;
/// Limit of the time that a reconciliation waits for writes in progress.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Sampled writes.
#[derive(Debug, Default)]
pub(super) struct Causes {
    writes: Mutex<Writes>,
    /// Notified when a write in progress ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Writes {
    /// Committed ones, oldest first.
    committed: VecDeque<(u64, SpanContext)>,
    /// Sequence numbers of those in progress.
    in_progress: BTreeSet<u64>,
    /// Sequence number of the next one.
    next: u64,
}

/// A sampled write in progress, until it is dropped.
#[derive(Debug)]
pub struct WriteInProgress {
    causes: Arc<Causes>,
    sequence: u64,
}

impl Drop for WriteInProgress {
    fn drop(&mut self) {
        self.causes.writes.lock().in_progress.remove(&self.sequence);
        self.causes.ended.notify_waiters();
    }
}

impl Causes {
    pub fn begin(self: &Arc<Self>) -> WriteInProgress {
        let mut writes = self.writes.lock();
        let sequence = writes.next;
        writes.next += 1;
        writes.in_progress.insert(sequence);
        WriteInProgress { causes: Arc::clone(self), sequence }
    }

    pub fn add(&self, revision: u64, context: SpanContext) {
        let committed = &mut self.writes.lock().committed;
        if committed.len() >= CAPACITY {
            committed.pop_front();
        }
        committed.push_back((revision, context));
    }

    /// Position of a span that follows the write of `revision`, if that write is recorded.
    pub fn find(&self, revision: u64) -> Option<Parent> {
        let writes = self.writes.lock();
        let (_, context) = writes.committed.iter().rev().find(|(written, _)| *written == revision)?;
        if context.hops >= MAX_HOPS {
            return Some(Parent::Linked(context.clone()));
        }
        Some(Parent::Child(SpanContext { hops: context.hops + 1, ..context.clone() }))
    }

    /// As [`find`](Self::find), after the writes that are in progress now.
    pub async fn find_or_wait(&self, revision: u64) -> Option<Parent> {
        let begun = self.writes.lock().next;
        let ended = async {
            loop {
                let mut ended = pin!(self.ended.notified());
                ended.as_mut().enable();
                let found = self.find(revision);
                let is_pending =
                    || self.writes.lock().in_progress.first().is_some_and(|first| *first < begun);
                if found.is_some() || !is_pending() {
                    return found;
                }
                ended.await;
            }
        };
        tokio::time::timeout(MAX_WAIT, ended).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE_PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn write_is_parent_until_hops_are_exhausted() {
        let causes = Causes::default();
        let context = SpanContext::parse(TRACE_PARENT).expect("valid");
        assert!(causes.find(7).is_none());
        causes.add(7, context.clone());
        let Some(Parent::Child(parent)) = causes.find(7) else { panic!("not a child") };
        assert_eq!((parent.hops, parent.span_id), (1, context.span_id));
        causes.add(8, SpanContext { hops: MAX_HOPS, ..context.clone() });
        assert!(matches!(causes.find(8), Some(Parent::Linked(_))));
        for revision in 0..2 * CAPACITY as u64 {
            causes.add(100 + revision, context.clone());
        }
        assert_eq!(causes.writes.lock().committed.len(), CAPACITY);
        assert!(causes.find(7).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_revision_waits_for_writes_in_progress() {
        let causes = Arc::new(Causes::default());
        let context = SpanContext::parse(TRACE_PARENT).expect("valid");
        // Nothing in progress: no wait, with the clock at rest.
        assert!(causes.find_or_wait(7).await.is_none());
        let write = causes.begin();
        let (found, ()) = tokio::join!(causes.find_or_wait(7), async {
            tokio::task::yield_now().await;
            // Later writes are not awaited.
            std::mem::forget(causes.begin());
            causes.add(7, context.clone());
            drop(write);
        });
        assert!(matches!(found, Some(Parent::Child(_))));
        // A write that never ends delays for the limit only.
        let before = tokio::time::Instant::now();
        assert!(causes.find_or_wait(8).await.is_none());
        assert_eq!(before.elapsed().as_millis(), MAX_WAIT.as_millis());
    }
}
