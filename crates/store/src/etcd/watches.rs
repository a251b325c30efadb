//! Multiplexes all watches of a store onto one watch of etcd, and resumes them after a failure.
//!
//! etcd preserves the order of events within a watch, but not across watches: under load, some watches receive events
//! later than others. Hence one etcd watch over all keys, the main watch, whose events are distributed here. Every
//! revision has an event, so a revision seen on the main watch implies that all earlier ones were seen; a barrier
//! needs no write. A watch that starts before the main watch's position first catches up through a temporary watch,
//! also over all keys, until that has reached the main watch's position.

mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use self::session::{Ended, Session};
use super::Cluster;
use super::pauses::Pauses;
use crate::contract::{Event, Revision, WatchHandle, WatchSink};
use crate::error::{Result, StoreError};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Commands from the store to the task.
enum Command {
    Watch { id: i64, watch: Box<Watch> },
    Cancel { id: i64 },
    WaitFor { revision: Revision, reply: oneshot::Sender<()> },
    Close { reply: oneshot::Sender<()> },
}

/// One watch.
struct Watch {
    prefix: String,
    /// First revision not yet delivered to its sink; may be ahead while the watch is on the main watch.
    next: Revision,
    sink: Box<dyn WatchSink>,
    /// Waiter for the establishment of the watch, and the revision that must have been delivered for it.
    established: Option<(Revision, oneshot::Sender<Result<()>>)>,
    /// Temporary watch through which it catches up; `None` if it is on the main watch.
    passing: Option<i64>,
}

impl Watch {
    /// Delivers the events that match the watch and were not delivered before.
    fn deliver(&mut self, events: &[Event]) {
        let ours = |event: &&Event| event.revision() >= self.next && event.key().starts_with(&self.prefix);
        let ours: Vec<_> = events.iter().filter(ours).cloned().collect();
        if let Some(last) = ours.last() {
            self.next = last.revision() + 1;
            self.sink.events(ours);
        }
    }

    fn close(mut self, error: StoreError) {
        match self.established.take() {
            Some((_, established)) => {
                let _ = established.send(Err(error));
            }
            None => self.sink.closed(error),
        }
    }

    /// Every event up to this revision has been delivered.
    fn progress(&mut self, revision: Revision) {
        if self.next <= revision {
            self.next = revision + 1;
            self.sink.progress(revision);
        }
    }
}

/// Handle of the store: sends commands to the task.
pub(super) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
    next_id: Arc<AtomicI64>,
    patience: Duration,
}

impl Watches {
    pub fn start(cluster: Arc<Cluster>) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let next_id = Arc::new(AtomicI64::new(1));
        let patience = cluster.request_timeout;
        let hub = Hub {
            cluster,
            commands: receiver,
            watches: BTreeMap::new(),
            waiting: Vec::new(),
            delivered: 0,
            next_id: next_id.clone(),
        };
        // Ends when the store, which holds the command sender, is dropped.
        crate::spawn(hub.run());
        Self { commands, next_id, patience }
    }

    /// Starts a watch; it is established once everything up to `now` has been delivered.
    pub async fn watch(
        &self,
        prefix: &str,
        after: Revision,
        now: Revision,
        sink: Box<dyn WatchSink>,
    ) -> Result<WatchHandle> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (established, answer) = oneshot::channel();
        let watch = Watch {
            prefix: prefix.to_owned(),
            // A new store is at revision 1, which has no events.
            next: after.max(1) + 1,
            sink,
            established: Some((now, established)),
            passing: None,
        };
        self.commands.send(Command::Watch { id, watch: Box::new(watch) }).map_err(|_| StoreError::Closed)?;
        let commands = self.commands.clone();
        let handle = WatchHandle::new(move || {
            let _ = commands.send(Command::Cancel { id });
        });
        match timeout(self.patience, answer).await {
            Ok(Ok(result)) => result.map(|()| handle),
            Ok(Err(_)) => Err(StoreError::Closed),
            Err(_) => Err(late("the watch was not established")),
        }
    }

    /// Waits until everything up to this revision has been delivered to all watches.
    pub async fn wait_for(&self, revision: Revision) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::WaitFor { revision, reply }).map_err(|_| StoreError::Closed)?;
        match timeout(self.patience, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StoreError::Closed),
            Err(_) => Err(late("watches did not catch up")),
        }
    }

    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).is_ok() {
            let _ = answer.await;
        }
    }
}

fn late(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: format!("{reason} in time").into() }
}

/// The task's state; outlives connections.
struct Hub {
    cluster: Arc<Cluster>,
    commands: mpsc::UnboundedReceiver<Command>,
    watches: BTreeMap<i64, Watch>,
    /// Waiters by revision.
    waiting: Vec<(Revision, oneshot::Sender<()>)>,
    /// Position of the main watch; everything up to here has been delivered to its watches.
    delivered: Revision,
    next_id: Arc<AtomicI64>,
}

/// Effect of a command on the stream.
enum Effect {
    Nothing,
    Started(i64),
    /// Temporary watch that is no longer needed, if any.
    Cancelled(Option<i64>),
    Close(oneshot::Sender<()>),
}

impl Hub {
    async fn run(mut self) {
        let mut pauses = Pauses::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            // No stream is needed without watches.
            while self.watches.is_empty() {
                let Some(command) = self.commands.recv().await else { return };
                if let Effect::Close(reply) = self.take(command) {
                    return self.close(Some(reply));
                }
            }
            match Session::run(&mut self).await {
                Ended::Idle => pauses.reset(),
                Ended::Closed(reply) => return self.close(reply),
                Ended::Failed { reason, worked } => {
                    tracing::warn!(%reason, watches = self.watches.len(), "etcd watch stream failed; resuming");
                    if worked {
                        pauses.reset();
                    }
                    if let Some(reply) = self.rest(pauses.advance()).await {
                        return self.close(reply);
                    }
                }
            }
        }
    }

    /// Pauses while accepting commands; returns early on close.
    async fn rest(&mut self, pause: Duration) -> Option<Option<oneshot::Sender<()>>> {
        let over = sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return None,
                command = self.commands.recv() => match command.map(|command| self.take(command)) {
                    None => return Some(None),
                    Some(Effect::Close(reply)) => return Some(Some(reply)),
                    Some(_) => {}
                },
            }
        }
    }

    fn take(&mut self, command: Command) -> Effect {
        match command {
            Command::Watch { id, watch } => {
                self.watches.insert(id, *watch);
                Effect::Started(id)
            }
            Command::Cancel { id } => {
                let cancelled = self.watches.remove(&id);
                self.answer_waiting();
                cancelled.map_or(Effect::Nothing, |watch| Effect::Cancelled(watch.passing))
            }
            Command::WaitFor { revision, reply } => {
                self.waiting.push((revision, reply));
                self.answer_waiting();
                Effect::Nothing
            }
            Command::Close { reply } => Effect::Close(reply),
        }
    }

    /// Distributes the events of the main watch: all changes up to this revision.
    fn deliver_main(&mut self, events: &[Event], revision: Revision) {
        self.delivered = self.delivered.max(revision);
        for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
            watch.deliver(events);
        }
        self.settle();
    }

    /// Notifies waiters whose condition now holds.
    fn settle(&mut self) {
        let delivered = self.delivered;
        for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
            if let Some((_, established)) = watch.established.take_if(|(revision, _)| *revision <= delivered)
            {
                let _ = established.send(Ok(()));
            }
        }
        self.answer_waiting();
    }

    /// Responds to waiters for a revision that has been delivered to all established watches.
    fn answer_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let idle = self.watches.values().all(|watch| watch.established.is_some());
        let delivered = if idle { Revision::MAX } else { self.delivered };
        let (done, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .filter(|(_, reply)| !reply.is_closed())
            .partition::<Vec<_>, _>(|(revision, _)| *revision <= delivered);
        self.waiting = waiting;
        if !done.is_empty() && !idle {
            for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
                watch.progress(delivered);
            }
        }
        for (_, reply) in done {
            let _ = reply.send(());
        }
    }

    fn close(mut self, reply: Option<oneshot::Sender<()>>) {
        for (_, watch) in std::mem::take(&mut self.watches) {
            watch.close(StoreError::Closed);
        }
        if let Some(reply) = reply {
            let _ = reply.send(());
        }
    }
}
