//! One watch stream: from its connection until a failure or until no watches are left.

use std::sync::atomic::Ordering;

use futures_util::stream;
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;

use super::super::connections::{chain, request};
use super::super::{convert, rpc};
use super::{Effect, Hub};
use crate::contract::{Event, Revision};
use crate::error::StoreError;

/// Reason for the end of a session.
pub(super) enum Ended {
    /// No watches are left.
    Idle,
    Closed(Option<oneshot::Sender<()>>),
    Failed {
        reason: String,
        worked: bool,
    },
}

/// The stream and its main watch.
pub(super) struct Session {
    requests: mpsc::UnboundedSender<rpc::WatchRequest>,
    spine: i64,
}

impl Session {
    /// Opens a stream, resumes all watches on it and processes messages until it ends.
    pub async fn run(hub: &mut Hub) -> Ended {
        let (number, grpc) = hub.cluster.connections.current();
        let (requests, mut outgoing) = mpsc::unbounded_channel();
        let mut session = Self { requests, spine: 0 };
        session.start_spine(hub);
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
                        Effect::Nothing | Effect::Cancelled(None) => {}
                        Effect::Started(id) => session.start(hub, id),
                        Effect::Cancelled(Some(passing)) => session.cancel(passing),
                        Effect::Close(reply) => return Ended::Closed(Some(reply)),
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
            }
            if hub.watches.is_empty() {
                return Ended::Idle;
            }
        }
    }

    /// Creates a watch of all changes from this revision on.
    fn create(&self, hub: &Hub, start: Revision) -> i64 {
        let id = hub.next_id.fetch_add(1, Ordering::Relaxed);
        let create = rpc::WatchCreateRequest {
            key: vec![0],
            range_end: vec![0],
            start_revision: start as i64,
            progress_notify: true,
            prev_kv: true,
            watch_id: id,
            ..Default::default()
        };
        self.send(rpc::WatchRequestRequestUnion::CreateRequest(create));
        id
    }

    fn send(&self, request: rpc::WatchRequestRequestUnion) {
        // A closed channel means a broken stream, which the reader detects.
        let _ = self.requests.send(rpc::WatchRequest { request_union: Some(request) });
    }

    fn cancel(&self, id: i64) {
        self.send(rpc::WatchRequestRequestUnion::CancelRequest(rpc::WatchCancelRequest { watch_id: id }));
    }

    /// The main watch, starting at the lowest revision that any watch needs. All watches are on it.
    fn start_spine(&mut self, hub: &mut Hub) {
        for watch in hub.watches.values_mut() {
            if watch.passing.take().is_none() && watch.established.is_none() {
                watch.progress(hub.delivered);
            }
        }
        let Some(next) = hub.watches.values().map(|watch| watch.next).min() else { return };
        hub.delivered = next - 1;
        self.spine = self.create(hub, next);
        hub.settle();
    }

    /// Adds a watch: to the main watch, unless that is already past its start revision.
    fn start(&self, hub: &mut Hub, id: i64) {
        let Some(next) = hub.watches.get(&id).map(|watch| watch.next) else { return };
        if next <= hub.delivered {
            let passing = self.create(hub, next);
            if let Some(watch) = hub.watches.get_mut(&id) {
                watch.passing = Some(passing);
            }
        }
        hub.settle();
    }

    fn respond(&mut self, hub: &mut Hub, response: rpc::WatchResponse) -> Result<(), String> {
        let revision = hub.cluster.saw(response.header.as_ref());
        let id = response.watch_id;
        let spine = id == self.spine;
        if response.canceled {
            return match (response.compact_revision as Revision, spine) {
                (0, true) => Err(response.cancel_reason),
                (compacted, true) => {
                    self.spine_compacted(hub, compacted);
                    Ok(())
                }
                (compacted, false) => {
                    passing_ended(hub, id, compacted, &response.cancel_reason);
                    Ok(())
                }
            };
        }
        if response.created {
            return Ok(());
        }
        // Keys that are not UTF-8 belong to other clients.
        let last =
            response.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).max();
        let delivered = last.map_or(revision, |last| last as Revision);
        let events: Vec<_> =
            response.events.into_iter().filter_map(|event| convert::event(event).ok()).collect();
        if spine {
            hub.deliver_main(&events, delivered);
        } else {
            self.deliver_temporary(hub, id, &events, delivered);
        }
        Ok(())
    }

    /// Delivers events to a catching-up watch; once it has reached the main watch's position, it joins it.
    fn deliver_temporary(&self, hub: &mut Hub, id: i64, events: &[Event], delivered: Revision) {
        let reached = delivered >= hub.delivered;
        let Some(watch) = hub.watches.values_mut().find(|watch| watch.passing == Some(id)) else { return };
        watch.deliver(events);
        watch.progress(delivered);
        if reached {
            watch.passing = None;
            self.cancel(id);
            hub.settle();
        }
    }

    /// History that some watches need has been compacted; the other watches continue.
    fn spine_compacted(&mut self, hub: &mut Hub, compacted: Revision) {
        let lost = |watch: &super::Watch| {
            let reached =
                if watch.passing.is_none() && watch.established.is_none() { hub.delivered } else { 0 };
            watch.next.max(reached + 1) < compacted
        };
        let ids: Vec<_> = hub.watches.iter().filter(|(_, watch)| lost(watch)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(watch) = hub.watches.remove(&id) else { continue };
            if let Some(passing) = watch.passing {
                self.cancel(passing);
            }
            let requested = watch.next - 1;
            watch.close(StoreError::Compacted { requested, compacted });
        }
        for watch in hub.watches.values() {
            if let Some(passing) = watch.passing {
                self.cancel(passing);
            }
        }
        self.start_spine(hub);
    }
}

/// The member cancelled a temporary watch: the watches that depend on it end.
fn passing_ended(hub: &mut Hub, id: i64, compacted: Revision, reason: &str) {
    let found = hub.watches.iter().find(|(_, watch)| watch.passing == Some(id)).map(|(id, _)| *id);
    let Some(watch) = found.and_then(|id| hub.watches.remove(&id)) else { return };
    let requested = watch.next - 1;
    watch.close(match compacted {
        0 => StoreError::Refused { reason: reason.into() },
        compacted => StoreError::Compacted { requested, compacted },
    });
    hub.answer_waiting();
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
