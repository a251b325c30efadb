//! One connection's worth of watching.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tonic::Streaming;

use super::super::connections::{chain, request};
use super::super::{MARK, convert, rpc};
use super::{Effect, Hub, MARK_WATCH};
use crate::contract::{Expect, Op, Outcome, Revision, Txn, prefix_end};
use crate::error::{Result, StoreError};

/// Pause after the mark could not be written.
const MARK_RETRY: Duration = Duration::from_millis(200);

/// Why a session is over.
pub(super) enum Ended {
    /// No watches are left.
    Idle,
    Closed(Option<oneshot::Sender<()>>),
    Failed {
        reason: String,
        worked: bool,
    },
}

/// The stream and what is known of the watches on it.
pub(super) struct Session {
    requests: mpsc::UnboundedSender<rpc::WatchRequest>,
    /// Watches of which it is not known whether they have caught up.
    behind: BTreeSet<i64>,
    /// The passing watch, and those that have caught up when it is told something.
    passing: Option<(i64, BTreeSet<i64>)>,
    /// The watch on the mark exists, so that a write of the mark will be seen.
    ready: bool,
    /// A write of the mark is under way; the answer is its revision.
    marking: bool,
    /// The latest of our marks, and the latest that was seen.
    written: Revision,
    seen: Revision,
    marked: mpsc::UnboundedSender<Result<Revision>>,
}

impl Session {
    /// Opens a stream, resumes all watches on it and works until something ends it.
    pub async fn run(hub: &mut Hub) -> Ended {
        let (number, grpc) = hub.cluster.connections.current();
        let (requests, mut outgoing) = mpsc::unbounded_channel();
        let (marked, mut marks) = mpsc::unbounded_channel();
        let mut session = Self {
            requests,
            behind: BTreeSet::new(),
            passing: None,
            ready: false,
            marking: false,
            written: 0,
            seen: 0,
            marked,
        };
        session.create(MARK_WATCH, MARK, &format!("{MARK}\0"), 0);
        for id in hub.watches.keys().copied().collect::<Vec<_>>() {
            session.start(hub, id);
        }
        let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
        let mut client = rpc::WatchClient::new(grpc);
        let opened = tokio::time::timeout(hub.cluster.request_timeout, client.watch(request(outgoing))).await;
        let mut incoming = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return failed(hub, number, chain(&status), false),
            Err(_) => return failed(hub, number, "no answer".to_owned(), false),
        };
        let mut worked = false;
        loop {
            tokio::select! {
                command = hub.commands.recv() => {
                    let Some(command) = command else { return Ended::Closed(None) };
                    match hub.take(command) {
                        Effect::Nothing => {}
                        Effect::Started(id) => session.start(hub, id),
                        Effect::Cancelled(id) => session.cancel(id),
                        Effect::Wanted => session.advance(hub),
                        Effect::Close(reply) => return Ended::Closed(Some(reply)),
                    }
                    if hub.watches.is_empty() {
                        return Ended::Idle;
                    }
                }
                message = receive(&mut incoming) => match message {
                    Ok(response) => {
                        worked = true;
                        if let Err(reason) = session.respond(hub, response) {
                            return failed(hub, number, reason, worked);
                        }
                    }
                    Err(reason) => return failed(hub, number, reason, worked),
                },
                Some(mark) = marks.recv() => {
                    session.marking = false;
                    match mark {
                        // Its event is what counts; but passing watches can start here.
                        Ok(revision) => {
                            session.written = revision;
                            hub.mark_revision = hub.mark_revision.max(revision);
                        }
                        Err(error) => tracing::debug!(%error, "cannot write the mark; will try again"),
                    }
                    session.advance(hub);
                }
            }
        }
    }

    fn create(&self, id: i64, key: &str, end: &str, start: Revision) {
        let create = rpc::WatchCreateRequest {
            key: if key.is_empty() { vec![0] } else { key.into() },
            range_end: if key.is_empty() { vec![0] } else { end.into() },
            start_revision: start as i64,
            progress_notify: true,
            prev_kv: true,
            watch_id: id,
            ..Default::default()
        };
        self.send(rpc::WatchRequestRequestUnion::CreateRequest(create));
    }

    fn send(&self, request: rpc::WatchRequestRequestUnion) {
        // A closed channel means a broken stream, which is noticed where it is read.
        let _ = self.requests.send(rpc::WatchRequest { request_union: Some(request) });
    }

    fn start(&mut self, hub: &Hub, id: i64) {
        let Some(watch) = hub.watches.get(&id) else { return };
        self.behind.insert(id);
        self.create(id, &watch.prefix, &prefix_end(&watch.prefix), watch.next);
    }

    fn cancel(&mut self, id: i64) {
        self.behind.remove(&id);
        self.send(rpc::WatchRequestRequestUnion::CancelRequest(rpc::WatchCancelRequest { watch_id: id }));
    }

    fn respond(&mut self, hub: &mut Hub, response: rpc::WatchResponse) -> Result<(), String> {
        let id = response.watch_id;
        let revision = hub.cluster.saw(response.header.as_ref());
        let ours = id == MARK_WATCH || self.passing.as_ref().is_some_and(|(passing, _)| *passing == id);
        if ours && response.canceled && response.compact_revision == 0 {
            return Err(response.cancel_reason);
        }
        if let Some((passing, caught_up)) = self.passing.take_if(|(passing, _)| *passing == id) {
            if response.created && !response.canceled {
                self.passing = Some((passing, caught_up));
                return Ok(());
            }
            if !response.canceled {
                self.cancel(passing);
            }
            for id in caught_up {
                self.established(hub, id);
            }
            self.advance(hub);
        } else if id == MARK_WATCH {
            self.mark_told(hub, &response);
        } else if response.canceled {
            self.behind.remove(&id);
            if let Some(watch) = hub.watches.remove(&id) {
                let requested = watch.next - 1;
                watch.close(match response.compact_revision as Revision {
                    0 => StoreError::Refused { reason: response.cancel_reason.into() },
                    compacted => StoreError::Compacted { requested, compacted },
                });
            }
            hub.answer_waiting();
        } else if response.created {
            // A watch that starts in the future has nothing to catch up with.
            if hub.watches.get(&id).is_some_and(|watch| watch.next > revision) {
                self.established(hub, id);
            }
            self.advance(hub);
        } else {
            self.told(hub, id, response, revision)?;
        }
        Ok(())
    }

    /// Events of a watch; none means that there is nothing up to the revision.
    fn told(
        &mut self,
        hub: &mut Hub,
        id: i64,
        response: rpc::WatchResponse,
        revision: Revision,
    ) -> Result<(), String> {
        let Some(watch) = hub.watches.get_mut(&id) else { return Ok(()) };
        if response.events.is_empty() {
            watch.progress(revision);
        } else {
            let events = response.events.into_iter().map(convert::event);
            let mut events = events.collect::<Result<Vec<_>>>().map_err(|error| error.to_string())?;
            let last = events.last().map_or(0, |event| event.revision());
            events.retain(|event| event.revision() >= watch.next && **event.key() != *MARK);
            if !events.is_empty() {
                watch.sink.events(events);
            }
            watch.next = watch.next.max(last + 1);
        }
        hub.answer_waiting();
        Ok(())
    }

    /// The mark was written: every watch that has caught up has been told everything before.
    fn mark_told(&mut self, hub: &mut Hub, response: &rpc::WatchResponse) {
        if response.created {
            self.ready = true;
            self.advance(hub);
        }
        let mark =
            response.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).max();
        if let Some(mark) = mark {
            let mark = mark as Revision;
            self.seen = self.seen.max(mark);
            hub.mark_revision = hub.mark_revision.max(mark);
            for (id, watch) in &mut hub.watches {
                if !self.behind.contains(id) {
                    watch.progress(mark);
                }
            }
            hub.answer_waiting();
            self.advance(hub);
        }
    }

    fn established(&mut self, hub: &mut Hub, id: i64) {
        self.behind.remove(&id);
        if let Some(established) = hub.watches.get_mut(&id).and_then(|watch| watch.established.take()) {
            let _ = established.send(Ok(()));
        }
    }

    /// Takes the next step towards what is waited for: first all watches have to catch up, then the
    /// mark has to be written and come back.
    fn advance(&mut self, hub: &Hub) {
        let catch_up = !self.behind.is_empty() && self.passing.is_none();
        let outstanding = self.marking || self.written > self.seen;
        if catch_up && hub.mark_revision > 0 {
            let id = hub.next_id.fetch_add(1, Ordering::Relaxed);
            self.create(id, MARK, &format!("{MARK}\0"), hub.mark_revision);
            self.passing = Some((id, self.behind.clone()));
        } else if self.ready
            && !outstanding
            && (catch_up || (self.behind.is_empty() && !hub.waiting.is_empty()))
        {
            self.marking = true;
            let (cluster, marked) = (hub.cluster.clone(), self.marked.clone());
            tokio::spawn(async move {
                let op = Op::Put { value: Bytes::new(), lease: None };
                let txn = Txn { key: Arc::from(MARK), expect: Expect::Any, op };
                let result = match cluster.txn(&txn).await {
                    Ok(Outcome::Committed { revision, .. } | Outcome::Conflict { revision, .. }) => {
                        Ok(revision)
                    }
                    Err(error) => {
                        sleep(MARK_RETRY).await;
                        Err(error)
                    }
                };
                let _ = marked.send(result);
            });
        }
    }
}

fn failed(hub: &Hub, number: usize, reason: String, worked: bool) -> Ended {
    hub.cluster.connections.give_up_on(number);
    Ended::Failed { reason, worked }
}

async fn receive(incoming: &mut Streaming<rpc::WatchResponse>) -> Result<rpc::WatchResponse, String> {
    match incoming.message().await {
        Ok(Some(response)) => Ok(response),
        Ok(None) => Err("the member ended the stream".to_owned()),
        Err(status) => Err(chain(&status)),
    }
}
