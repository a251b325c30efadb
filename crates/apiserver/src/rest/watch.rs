//! Watch: frames the registry's notices for one client.

use super::connect::watch_over_websocket;
use super::watch_metrics::ResourceWatchMetrics;
use super::{Rest, Route};
use crate::cache::{Change, Entry, FrameEncoding, event};
use crate::registry::Conversion;
use crate::registry::watch::{Notice, Watcher};
use crate::selection::Selection;
use crate::serve::ResponseBody;
use crate::wire::encode;
use crate::wire::forms::{self, Include};
use crate::wire::negotiate::{Accepted, Encoding, Form, Forms, Offers};
use crate::wire::options::ListOptions;
use crate::wire::reply::{self, Reply};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use machinery::selector::FieldSelector;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use prometheus::Histogram;
use serde_json::json;
use std::time::Instant;
use streaming::upgrade::Encoding as MessageEncoding;

/// Length prefix of each protobuf event, in bytes.
const FRAME_LENGTH: usize = 4;

/// Annotation that marks the end of the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

impl Rest {
    pub(super) async fn watch(&self, route: &Route<'_>, accepted: &Accepted) -> Result<Reply> {
        let begin = Instant::now();
        let context = route.context;
        let mut options = ListOptions::read(&context.query, true)?;
        if context.info.watch_prefix && !context.info.name.is_empty() {
            select_name(&mut options.field_selector, &context.info.name)?;
        }
        if accepted.encoding == Encoding::Yaml {
            // YAML has no stream form: the error lists the encodings that have one.
            let offers = Offers { cbor: self.limits.cbor, forms: Forms::All, streams: true, protobuf: true };
            return Err(offers.only_streams());
        }
        let selection = Selection::read(&route.served, &options)?;
        let include = Include::read(&context.query, accepted)?;
        let watcher =
            self.registry.watch(&route.served, &context.info.namespace, selection, &options).await?;
        let media_type = match (accepted.encoding, accepted.stream) {
            (Encoding::Protobuf, _) => "application/vnd.kubernetes.protobuf;stream=watch",
            (Encoding::Cbor, _) => "application/cbor-seq",
            (_, _) => "application/json",
        };
        let metrics = self.watch_metrics.as_ref().map(|metrics| metrics.of(&route.served));
        let scope = if context.info.namespace.is_empty() { "cluster" } else { "namespace" };
        let initial = self.watch_metrics.as_ref().filter(|_| options.send_initial_events == Some(true));
        let initial = initial.map(|metrics| (metrics.lists(&route.served, scope), begin));
        let framer = Framer { accepted: *accepted, include, first: true, metrics, initial };
        let batches =
            stream::unfold((watcher, framer, false), |(mut watcher, mut framer, over)| async move {
                if over {
                    return None;
                }
                let notices = watcher.next().await?;
                // Boxed, so that watches of other kinds do not carry this future.
                let converted = match &watcher.served().conversion {
                    Some(Conversion::Batch(_)) => Box::pin(framer.converted(&watcher, &notices)).await,
                    _ => Ok(Vec::new()),
                };
                let is_end = |notice: &Notice| matches!(notice, Notice::Bookmark(_, true));
                let initial = framer.initial.take_if(|_| notices.iter().any(is_end));
                let (frames, over) = framer.frames(&watcher, notices, converted);
                if let Some((durations, begin)) = initial {
                    durations.observe(begin.elapsed().as_secs_f64());
                }
                if let Some(metrics) = &framer.metrics {
                    metrics.sent(&frames);
                }
                Some((frames, (watcher, framer, over)))
            });
        if streaming::upgrade::is_websocket_upgrade(&context.headers) {
            let (encoding, length) = match accepted.encoding {
                Encoding::Json | Encoding::Yaml => (MessageEncoding::Text, 0),
                Encoding::Cbor => (MessageEncoding::Binary, 0),
                // WebSocket messages have a length of their own.
                Encoding::Protobuf => (MessageEncoding::Binary, FRAME_LENGTH),
            };
            let events = batches.flat_map(stream::iter).map(move |mut frame| {
                frame.advance(length.min(frame.len()));
                frame
            });
            return watch_over_websocket(context, events, encoding, self.connections.streams());
        }
        let mut reply = reply::with_type(200, media_type, ResponseBody::stream(batches.map(joined)));
        reply::warn(&mut reply, context);
        Ok(reply)
    }
}

/// Restricts a watch by the legacy path to one object. As in Kubernetes, a selector of the request must require the
/// same name: authorizers evaluated that selector, so it has to be the one that is applied.
fn select_name(selector: &mut String, name: &str) -> Result<()> {
    if selector.is_empty() {
        *selector = format!("metadata.name={name}");
        return Ok(());
    }
    let given = FieldSelector::parse(selector).map_err(|error| Status::bad_request(error.to_string()))?;
    if given.requires("metadata.name") != Some(name) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    Ok(())
}

/// Bytes of a batch of notices, concatenated.
fn joined(mut frames: Vec<Bytes>) -> Bytes {
    if frames.len() == 1 {
        return frames.remove(0);
    }
    let mut joined = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    frames.iter().for_each(|frame| joined.extend_from_slice(frame));
    joined.freeze()
}

/// Encodes notices.
struct Framer {
    accepted: Accepted,
    include: Include,
    /// True until the first object is sent.
    first: bool,
    metrics: Option<ResourceWatchMetrics>,
    /// Durations of initial events and the start of this watch, until their end is sent.
    initial: Option<(Histogram, Instant)>,
}

impl Framer {
    /// Objects of notices that a conversion webhook converts, in one batch.
    async fn converted(&self, watcher: &Watcher, notices: &[Notice]) -> Result<Vec<Value>> {
        let stored = notices.iter().filter_map(|notice| self.unshared(watcher, notice)).collect();
        watcher.served().converted(stored).await
    }

    /// Encodes notices; returns true if the watch ends with them.
    fn frames(
        &mut self,
        watcher: &Watcher,
        notices: Vec<Notice>,
        converted: Result<Vec<Value>>,
    ) -> (Vec<Bytes>, bool) {
        // An event has one object: in Kubernetes, too, a watch with a list form ends with the first event.
        if self.accepted.form == Some(Form::PartialObjectMetadataList) {
            return (Vec::new(), true);
        }
        let mut converted = match converted {
            Ok(objects) => objects.into_iter(),
            Err(status) => {
                let error = encode::event("ERROR", &status.to_value(), &self.accepted);
                return (vec![error.unwrap_or_default()], true);
            }
        };
        let mut over = false;
        let mut frames: Vec<Bytes> = Vec::with_capacity(notices.len());
        for notice in notices {
            over |= matches!(notice, Notice::Error(_));
            frames.push(self.frame(watcher, &notice, &mut converted));
        }
        (frames, over)
    }

    /// Object of a notice that cannot be framed from stored bytes.
    fn unshared(&self, watcher: &Watcher, notice: &Notice) -> Option<Value> {
        let entry = match notice {
            Notice::Initial(entry) => entry,
            Notice::Event(event, change) => event.shown(*change),
            Notice::Bookmark(..) | Notice::Error(_) => return None,
        };
        self.shared(watcher, entry).is_none().then(|| entry.value())
    }

    /// Shared frame encoding of this watch, if its frames are shared among watchers.
    fn shared(&self, watcher: &Watcher, entry: &Entry) -> Option<FrameEncoding> {
        let served = watcher.served();
        match self.accepted.encoding {
            _ if self.accepted.form.is_some() || self.accepted.pretty => None,
            _ if !served.shows_stored_bytes(entry) => None,
            Encoding::Json => Some(FrameEncoding::Json),
            Encoding::Protobuf if served.storage.cache.layout.schema.is_some() => {
                Some(FrameEncoding::Protobuf)
            }
            _ => None,
        }
    }

    fn frame(
        &mut self,
        watcher: &Watcher,
        notice: &Notice,
        converted: &mut impl Iterator<Item = Value>,
    ) -> Bytes {
        let layout = &watcher.served().storage.cache.layout;
        match notice {
            Notice::Initial(entry) => match self.shared(watcher, entry) {
                Some(encoding) => event::frame(layout, entry, Change::Added, encoding),
                None => {
                    let object = converted.next().unwrap_or_else(|| entry.value());
                    self.slow(watcher, Change::Added, object)
                }
            },
            Notice::Event(event, change) => match self.shared(watcher, event.shown(*change)) {
                Some(encoding) => event.frame(layout, *change, encoding),
                None => {
                    let object = converted.next().unwrap_or_else(|| event.shown(*change).value());
                    self.slow(watcher, *change, object)
                }
            },
            Notice::Bookmark(revision, initial) => self.bookmark(watcher, *revision, *initial),
            Notice::Error(status) => {
                encode::event("ERROR", &status.to_value(), &self.accepted).unwrap_or_default()
            }
        }
    }

    fn slow(&mut self, watcher: &Watcher, change: Change, object: Value) -> Bytes {
        let served = watcher.served();
        let shown =
            forms::watched(served, object, &self.accepted, self.include, std::mem::take(&mut self.first));
        encode::event(change.text(), &shown, &self.accepted).unwrap_or_else(|status| {
            encode::event("ERROR", &status.to_value(), &self.accepted).unwrap_or_default()
        })
    }

    fn bookmark(&mut self, watcher: &Watcher, revision: u64, initial: bool) -> Bytes {
        let served = watcher.served();
        let mut object = json!({
            "kind": served.kind.kind(), "apiVersion": served.api_version,
            "metadata": {"resourceVersion": revision.to_string()},
        });
        if initial {
            meta::metadata_mut(&mut object)
                .insert("annotations".to_owned(), json!({INITIAL_EVENTS_END: "true"}));
        }
        let _ = served.rules.normalize(&mut object, served.schema());
        if let Some(map) = object.as_object_mut() {
            map.insert("kind".to_owned(), served.kind.kind().into());
            map.insert("apiVersion".to_owned(), served.api_version.clone().into());
        }
        let shown = match self.accepted.form {
            None => object,
            Some(_) => {
                forms::watched(served, object, &self.accepted, self.include, std::mem::take(&mut self.first))
            }
        };
        encode::event("BOOKMARK", &shown, &self.accepted).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_watch_selector_without_requested_name_returns_400() {
        for (selector, want) in [
            ("", Some("metadata.name=p")),
            ("metadata.name=p", Some("metadata.name=p")),
            ("spec.nodeName=me,metadata.name=p", Some("spec.nodeName=me,metadata.name=p")),
            ("spec.nodeName=me", None),
            ("metadata.name=q", None),
            ("metadata.name!=p", None),
            ("spec.nodeName=me,metadata.name=q", None),
        ] {
            let mut applied = selector.to_owned();
            let outcome = select_name(&mut applied, "p");
            match want {
                Some(want) => {
                    assert_eq!((outcome.map_err(|status| status.message), applied.as_str()), (Ok(()), want))
                }
                None => assert_eq!(outcome.map_err(|status| status.code), Err(400), "{selector}"),
            }
        }
    }
}
