//! All watches of a store on one stream: started, told, resumed after a failure, brought up to date.
//!
//! Everything a member sends on one stream for watches that have caught up comes in revision order
//! across the watches. So to know how far all of them are it is enough to write a key, the mark, that
//! is watched on the same stream: when its event arrives, every event before it has. (etcd's own
//! progress requests would save the write, but their answers overtake events before 3.4.25 and 3.5.8.)
//! A watch that starts in the past first has to catch up, which the member does for all such watches in
//! one pass: a second, passing watch on the mark's history, started later, tells when that is over.

mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use self::session::{Ended, Session};
use super::Cluster;
use crate::contract::{Revision, WatchHandle, WatchSink};
use crate::error::{Result, StoreError};

/// The watch on the mark. Others get the numbers above it, each used once.
const MARK_WATCH: i64 = 1;
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
    /// The first revision that its sink has not been told of.
    next: Revision,
    sink: Box<dyn WatchSink>,
    /// Whoever waits for the watch to be established.
    established: Option<oneshot::Sender<Result<()>>>,
}

impl Watch {
    fn close(mut self, error: StoreError) {
        match self.established.take() {
            Some(established) => {
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
        let next_id = Arc::new(AtomicI64::new(MARK_WATCH + 1));
        let patience = cluster.request_timeout;
        let hub = Hub {
            cluster,
            commands: receiver,
            watches: BTreeMap::new(),
            waiting: Vec::new(),
            mark_revision: 0,
            next_id: next_id.clone(),
        };
        // Ends when the store, and with it the sender of commands, is gone.
        tokio::spawn(hub.run());
        Self { commands, next_id, patience }
    }

    pub async fn watch(
        &self,
        prefix: &str,
        after: Revision,
        sink: Box<dyn WatchSink>,
    ) -> Result<WatchHandle> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (established, answer) = oneshot::channel();
        let watch =
            Watch { prefix: prefix.to_owned(), next: after + 1, sink, established: Some(established) };
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
    /// Revision of a write of the mark, for passing watches to start from; 0 before the first.
    mark_revision: Revision,
    next_id: Arc<AtomicI64>,
}

/// What a command means for the stream.
enum Effect {
    Nothing,
    Started(i64),
    Cancelled(i64),
    /// Somebody waits for progress.
    Wanted,
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
                let known = self.watches.remove(&id).is_some();
                self.answer_waiting();
                if known { Effect::Cancelled(id) } else { Effect::Nothing }
            }
            Command::WaitFor { revision, reply } => {
                self.waiting.push((revision, reply));
                self.answer_waiting();
                if self.waiting.is_empty() { Effect::Nothing } else { Effect::Wanted }
            }
            Command::Close { reply } => Effect::Close(reply),
        }
    }

    /// Everything that all established watches have been told.
    fn answer_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let established = self.watches.values().filter(|watch| watch.established.is_none());
        let told = established.map(|watch| watch.next - 1).min().unwrap_or(Revision::MAX);
        for (revision, reply) in std::mem::take(&mut self.waiting) {
            if revision <= told {
                let _ = reply.send(());
            } else if !reply.is_closed() {
                self.waiting.push((revision, reply));
            }
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
