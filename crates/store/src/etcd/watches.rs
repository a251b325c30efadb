//! All watches of a store on one watch of etcd: started, told, resumed after a failure.
//!
//! etcd keeps the order of one watch's events, but not that across watches: one whose turn comes while
//! the stream is full is told later than its neighbours. So there is a single watch over all keys, the
//! spine, and its events are dealt out here. Every revision has an event, so when the spine has brought
//! a revision, everything up to it is known; a barrier needs no write. A watch that starts further back
//! than the spine is, first catches up through a passing watch of its own, over all keys as well, until
//! that has brought what the spine last brought.

mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use self::session::{Ended, Session};
use super::Cluster;
use crate::contract::{Event, Revision, WatchHandle, WatchSink};
use crate::error::{Result, StoreError};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the store asks of the task.
enum Command {
    Watch { id: i64, watch: Box<Watch> },
    Cancel { id: i64 },
    WaitFor { revision: Revision, reply: oneshot::Sender<()> },
    Close { reply: oneshot::Sender<()> },
}

/// One watch.
struct Watch {
    prefix: String,
    /// The first revision that its sink has not been told of; while it is on the spine that may be ahead.
    next: Revision,
    sink: Box<dyn WatchSink>,
    /// Whoever waits for the watch to be established, and up to where it has to be told for that.
    established: Option<(Revision, oneshot::Sender<Result<()>>)>,
    /// The passing watch that it still depends on; `None`: it is on the spine.
    passing: Option<i64>,
}

impl Watch {
    /// Hands over those of some events that are this watch's and new to it.
    fn tell(&mut self, events: &[Event]) {
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

    /// Every event up to this revision has been handed over.
    fn progress(&mut self, revision: Revision) {
        if self.next <= revision {
            self.next = revision + 1;
            self.sink.progress(revision);
        }
    }
}

/// The store's side: sends commands to the task.
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
            told: 0,
            next_id: next_id.clone(),
        };
        // Ends when the store, and with it the sender of commands, is gone.
        tokio::spawn(hub.run());
        Self { commands, next_id, patience }
    }

    /// Starts a watch; it is established when it has been told everything up to `now`.
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
            // A new store is at 1: nothing happened at that revision.
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

    /// Waits until all watches have been told everything up to this revision.
    pub async fn wait_for(&self, revision: Revision) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::WaitFor { revision, reply }).map_err(|_| StoreError::Closed)?;
        match timeout(self.patience, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StoreError::Closed),
            Err(_) => Err(late("the watches did not keep up")),
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
    /// Who waits for which revision.
    waiting: Vec<(Revision, oneshot::Sender<()>)>,
    /// What the spine has brought; watches on it have been told everything up to here.
    told: Revision,
    next_id: Arc<AtomicI64>,
}

/// What a command means for the stream.
enum Effect {
    Nothing,
    Started(i64),
    /// The passing watch, if any, that nobody needs any more.
    Cancelled(Option<i64>),
    Close(oneshot::Sender<()>),
}

impl Hub {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            // Without watches there is nothing to hold a stream for.
            while self.watches.is_empty() {
                let Some(command) = self.commands.recv().await else { return };
                if let Effect::Close(reply) = self.take(command) {
                    return self.close(Some(reply));
                }
            }
            match Session::run(&mut self).await {
                Ended::Idle => pause = FIRST_PAUSE,
                Ended::Closed(reply) => return self.close(reply),
                Ended::Failed { reason, worked } => {
                    tracing::warn!(%reason, watches = self.watches.len(), "etcd watch stream failed; resuming");
                    pause = if worked { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                    if let Some(reply) = self.rest(pause).await {
                        return self.close(reply);
                    }
                }
            }
        }
    }

    /// Pauses, taking commands meanwhile; returns when it is time to close instead.
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

    /// Deals out what the spine brought: all changes up to this revision.
    fn spine_told(&mut self, events: &[Event], revision: Revision) {
        self.told = self.told.max(revision);
        for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
            watch.tell(events);
        }
        self.settle();
    }

    /// Tells whoever waits for something that has come about.
    fn settle(&mut self) {
        let told = self.told;
        for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
            if let Some((_, established)) = watch.established.take_if(|(revision, _)| *revision <= told) {
                let _ = established.send(Ok(()));
            }
        }
        self.answer_waiting();
    }

    /// Answers those who wait for a revision that all established watches have been told.
    fn answer_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let idle = self.watches.values().all(|watch| watch.established.is_some());
        let told = if idle { Revision::MAX } else { self.told };
        let (done, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .filter(|(_, reply)| !reply.is_closed())
            .partition::<Vec<_>, _>(|(revision, _)| *revision <= told);
        self.waiting = waiting;
        if !done.is_empty() && !idle {
            for watch in self.watches.values_mut().filter(|watch| watch.passing.is_none()) {
                watch.progress(told);
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
