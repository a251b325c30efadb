//! A span: the record of one operation, queued for export when it is dropped.

use super::context::SpanContext;
use super::tracer::Tracer;
use std::borrow::Cow;
use std::time::Instant;

/// Attributes of a span; more are counted and dropped.
const MAX_ATTRIBUTES: usize = 32;
/// Longest string of a span, in bytes; longer ones are truncated.
const MAX_TEXT: usize = 1024;

/// Role of a span in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Internal,
    Server,
    Client,
    Consumer,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
    Bool(bool),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// A span in progress, or nothing if it is not recorded. Dropping it ends it.
#[derive(Debug, Default)]
pub struct Span(pub(super) State);

#[derive(Debug, Default)]
pub(super) enum State {
    /// Tracing is off.
    #[default]
    Off,
    /// Not recorded; its context is propagated, so that servers further on do not sample either.
    Unsampled(Tracer, SpanContext),
    Recording(Box<Recording>),
}

/// Identity of a span and the tracer of its children.
#[derive(Debug)]
pub struct Handle(pub(super) Option<(Tracer, SpanContext)>);

/// Contents of a recorded span.
#[derive(Debug)]
pub(super) struct Recording {
    pub tracer: Tracer,
    pub name: Cow<'static, str>,
    pub kind: Kind,
    pub context: SpanContext,
    pub parent: Option<SpanContext>,
    pub link: Option<SpanContext>,
    /// Nanoseconds since the epoch.
    pub start: u64,
    pub started: Instant,
    pub attributes: Attributes,
    pub error: Option<String>,
}

/// Attributes of a span, bounded in number and length.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub(super) values: Vec<(&'static str, Value)>,
    pub(super) dropped: u32,
}

impl Attributes {
    /// Sets an attribute. A long text is truncated.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::Text(Cow::Owned(text)) => Value::Text(Cow::Owned(truncated(text))),
            value => value,
        };
        if let Some(at) = self.values.iter().position(|(other, _)| *other == key) {
            self.values[at].1 = value;
        } else if self.values.len() < MAX_ATTRIBUTES {
            self.values.push((key, value));
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Sets an attribute to the first part of a text, without copying the rest.
    pub fn set_text(&mut self, key: &'static str, text: &str) {
        self.set(key, prefix(text, MAX_TEXT).to_owned());
    }
}

/// Longest prefix of at most `limit` bytes that ends between characters.
pub(super) fn prefix(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(super) fn truncated(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(prefix(&text, MAX_TEXT).len());
        text.shrink_to_fit();
    }
    text
}

impl Span {
    /// A span that records nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self(State::Off)
    }

    #[must_use]
    pub fn is_recording(&self) -> bool {
        matches!(self.0, State::Recording(_))
    }

    /// Sets attributes. `set` is called only if the span is recorded.
    pub fn record(&mut self, set: impl FnOnce(&mut Attributes)) {
        if let State::Recording(recording) = &mut self.0 {
            set(&mut recording.attributes);
        }
    }

    /// Marks the operation as failed. `message` is called only if the span is recorded.
    pub fn fail(&mut self, message: impl FnOnce() -> String) {
        if let State::Recording(recording) = &mut self.0 {
            recording.error = Some(truncated(message()));
        }
    }

    /// Moves the start of the span to an earlier time.
    pub fn started_at(&mut self, started: Instant) {
        if let State::Recording(recording) = &mut self.0 {
            let earlier = recording.started.saturating_duration_since(started).as_nanos();
            recording.start = recording.start.saturating_sub(u64::try_from(earlier).unwrap_or(u64::MAX));
            recording.started = recording.started.min(started);
        }
    }

    /// Identity of the span, for its children; `None` if tracing is off.
    #[must_use]
    pub fn context(&self) -> Option<&SpanContext> {
        match &self.0 {
            State::Off => None,
            State::Unsampled(_, context) => Some(context),
            State::Recording(recording) => Some(&recording.context),
        }
    }

    /// The span as the current one of a task; see [`super::scope`].
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(match &self.0 {
            State::Off => None,
            State::Unsampled(tracer, context) => Some((tracer.clone(), context.clone())),
            State::Recording(recording) => Some((recording.tracer.clone(), recording.context.clone())),
        })
    }

    /// Refers to a span of another trace; only the first is recorded.
    pub fn link(&mut self, link: impl FnOnce() -> Option<SpanContext>) {
        if let State::Recording(recording) = &mut self.0
            && recording.link.is_none()
        {
            recording.link = link();
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let State::Recording(recording) = std::mem::take(&mut self.0) {
            recording.end();
        }
    }
}

impl Recording {
    fn end(self: Box<Self>) {
        let took = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let end = self.start.saturating_add(took);
        let tracer = self.tracer.clone();
        tracer.queue(*self, end);
    }
}
