//! Watches: one gRPC stream carries many.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::{Status, Streaming};

use super::failure::failure;
use super::grpc::Messages;
use super::kv::{key_value, text};
use super::{Server, header, signed};
use crate::contract::{Event, Revision, WatchHandle, WatchSink};
use crate::error::StoreError;
use crate::etcd::rpc;
use rpc::WatchRequestRequestUnion::{CancelRequest, CreateRequest, ProgressRequest};

/// Responses that may be queued for a slow client. Beyond this limit the stream ends; the client resumes from the last
/// revision it received.
const BACKLOG: usize = 4096;

/// The ID in answers that concern all watches of a stream.
const ALL_WATCHES: i64 = -1;

/// The sending side of a stream's answers, shared by its watches.
#[derive(Clone)]
struct Answers {
    queue: mpsc::Sender<Result<rpc::WatchResponse, Status>>,
    /// A response was dropped: later ones must not be delivered.
    overflowed: Arc<AtomicBool>,
}

impl Answers {
    /// Queues an answer from the commit path, which must not wait.
    fn push(&self, answer: Result<rpc::WatchResponse, Status>) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(answer) {
            self.overflowed.store(true, Ordering::Release);
        }
    }

    async fn send(&self, answer: rpc::WatchResponse) -> Result<(), Status> {
        let sent = self.queue.send(Ok(answer)).await;
        sent.map_err(|_| Status::cancelled("the stream was closed"))
    }
}

/// Keys, event types and options of a watch.
struct Selection {
    start: String,
    end: Option<String>,
    prev_kv: bool,
    puts: bool,
    deletes: bool,
}

impl Selection {
    fn new(request: &rpc::WatchCreateRequest) -> Result<Self, Status> {
        let start = if request.key == [0] { Vec::new() } else { request.key.clone() };
        let start = text(start)?;
        let end = match request.range_end.as_slice() {
            [] => Some(format!("{start}\0")),
            [0] => None,
            end => Some(text(end.to_vec())?),
        };
        let excludes = |kind: rpc::WatchCreateRequestFilterType| request.filters.contains(&(kind as i32));
        Ok(Self {
            start,
            end,
            prev_kv: request.prev_kv,
            puts: !excludes(rpc::WatchCreateRequestFilterType::Noput),
            deletes: !excludes(rpc::WatchCreateRequestFilterType::Nodelete),
        })
    }

    /// A prefix that all selected keys have.
    fn prefix(&self) -> &str {
        let Some(end) = &self.end else { return "" };
        let same = self.start.bytes().zip(end.bytes()).take_while(|(a, b)| a == b).count();
        let mut same = same.min(self.start.len());
        while !self.start.is_char_boundary(same) {
            same -= 1;
        }
        // "/pods/" to "/pods0" is the prefix "/pods/": no key between the two has another sixth character.
        let whole = crate::contract::prefix_end(&self.start) == *end;
        if whole { &self.start } else { &self.start[..same] }
    }

    fn selects(&self, event: &Event) -> bool {
        let key: &str = event.key();
        let kind = match event {
            Event::Put { .. } => self.puts,
            Event::Delete { .. } => self.deletes,
        };
        kind && key >= self.start.as_str() && self.end.as_ref().is_none_or(|end| key < end.as_str())
    }

    fn message(&self, event: &Event) -> rpc::Event {
        let prev_kv = event.prev().filter(|_| self.prev_kv).map(|kv| key_value(kv, false));
        match event {
            Event::Put { kv, .. } => rpc::Event {
                r#type: rpc::EventEventType::Put as i32,
                kv: Some(key_value(kv, false)),
                prev_kv,
            },
            Event::Delete { key, revision, .. } => rpc::Event {
                r#type: rpc::EventEventType::Delete as i32,
                kv: Some(rpc::KeyValue {
                    key: key.as_bytes().to_vec(),
                    mod_revision: signed(*revision),
                    ..Default::default()
                }),
                prev_kv,
            },
        }
    }
}

/// Sends the events of one watch to its stream.
struct Sink {
    id: i64,
    selection: Selection,
    answers: Answers,
}

impl WatchSink for Sink {
    fn events(&mut self, events: Vec<Event>) {
        let Some(revision) = events.last().map(Event::revision) else { return };
        let events: Vec<_> = events
            .iter()
            .filter(|event| self.selection.selects(event))
            .map(|event| self.selection.message(event))
            .collect();
        if !events.is_empty() {
            self.answers.push(Ok(rpc::WatchResponse { events, ..answer(self.id, revision) }));
        }
    }

    fn progress(&mut self, _: Revision) {}

    fn closed(&mut self, error: StoreError) {
        self.answers.push(Err(failure(&error)));
    }
}

fn answer(id: i64, revision: Revision) -> rpc::WatchResponse {
    rpc::WatchResponse { header: header(revision), watch_id: id, ..Default::default() }
}

pub(super) fn watch(
    server: Arc<Server>,
    mut requests: Streaming<rpc::WatchRequest>,
) -> Messages<rpc::WatchResponse> {
    let (queue, receiver) = mpsc::channel(BACKLOG);
    let overflowed = Arc::new(AtomicBool::new(false));
    let answers = Answers { queue, overflowed: Arc::clone(&overflowed) };
    crate::spawn(async move {
        let mut session = Session { server, answers, watches: HashMap::new(), next_id: 0 };
        while let Ok(Some(request)) = requests.message().await {
            if let Err(status) = session.take(request).await {
                let _ = session.answers.queue.send(Err(status)).await;
                break;
            }
        }
    });
    Messages::new(stream::unfold(Some(receiver), move |receiver| {
        let overflowed = Arc::clone(&overflowed);
        async move {
            let mut receiver = receiver?;
            let answer = receiver.recv().await?;
            if overflowed.load(Ordering::Acquire) {
                let status = Status::resource_exhausted("the watch stream is not read: too many requests");
                return Some((Err(status), None));
            }
            Some((answer, Some(receiver)))
        }
    }))
}

/// The watches of one stream; dropping it ends them.
struct Session {
    server: Arc<Server>,
    answers: Answers,
    watches: HashMap<i64, WatchHandle>,
    next_id: i64,
}

impl Session {
    async fn take(&mut self, request: rpc::WatchRequest) -> Result<(), Status> {
        match request.request_union {
            Some(CreateRequest(create)) => self.create(create).await,
            Some(CancelRequest(cancel)) => {
                if self.watches.remove(&cancel.watch_id).is_some() {
                    let revision = self.server.store.revision();
                    let answer = rpc::WatchResponse { canceled: true, ..answer(cancel.watch_id, revision) };
                    self.answers.send(answer).await?;
                }
                Ok(())
            }
            Some(ProgressRequest(_)) => {
                // Every watch of this stream has queued its events up to this revision.
                let revision = self.server.store.barrier().await.map_err(|error| failure(&error))?;
                self.answers.send(answer(ALL_WATCHES, revision)).await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: rpc::WatchCreateRequest) -> Result<(), Status> {
        let id = match request.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id
            }
            id => id,
        };
        let revision = self.server.store.revision();
        if self.watches.contains_key(&id) {
            let reason = "etcdserver: duplicate watch ID provided on the WatchStream".to_owned();
            let created = rpc::WatchResponse {
                created: true,
                canceled: true,
                cancel_reason: reason,
                ..answer(-1, revision)
            };
            return self.answers.send(created).await;
        }
        let selection = Selection::new(&request)?;
        let after = match Revision::try_from(request.start_revision) {
            Ok(0) | Err(_) => revision,
            Ok(start) => start - 1,
        };
        self.answers.send(rpc::WatchResponse { created: true, ..answer(id, revision) }).await?;
        let prefix = selection.prefix().to_owned();
        let sink = Sink { id, selection, answers: self.answers.clone() };
        match self.server.store.watch(&prefix, after, Box::new(sink)).await {
            Ok(handle) => {
                self.watches.insert(id, handle);
                Ok(())
            }
            Err(StoreError::Compacted { compacted, .. }) => {
                let cancel_reason = "etcdserver: mvcc: required revision has been compacted".to_owned();
                let compact_revision = signed(compacted);
                let cancelled = rpc::WatchResponse {
                    canceled: true,
                    compact_revision,
                    cancel_reason,
                    ..answer(id, revision)
                };
                self.answers.send(cancelled).await
            }
            Err(error) => Err(failure(&error)),
        }
    }
}
