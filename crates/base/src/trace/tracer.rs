//! Starts the spans of one component.

use super::causes::{Causes, WriteInProgress};
use super::context::SpanContext;
use super::otlp::{FinishedSpan, Resource};
use super::queue::Queue;
use super::sampler::Sampler;
use super::span::{Attributes, Kind, Recording, Span, State, truncated};
use crate::clock::Clock;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Starts the spans of one component. Clones share its queue; the default is off.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Component>>);

pub(super) struct Component {
    pub resource: Arc<Resource>,
    pub sampler: Sampler,
    pub clock: Clock,
    pub queue: Arc<Queue>,
    pub causes: Arc<Causes>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let service = self.0.as_ref().map(|component| &*component.resource.service);
        f.debug_struct("Tracer").field("service", &service).finish_non_exhaustive()
    }
}

/// Position of a new span among other spans.
#[derive(Clone, Debug, Default)]
pub enum Parent {
    /// First span of a new trace.
    #[default]
    Root,
    /// First span of a new trace that refers to a span of another one.
    Linked(SpanContext),
    Child(SpanContext),
}

impl Tracer {
    /// A tracer whose spans record nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    pub(super) fn of(component: Component) -> Self {
        Self(Some(Arc::new(component)))
    }

    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a span. `parent` is called only if tracing is on, and `name` only if the span is recorded.
    pub fn start<N: Into<Cow<'static, str>>>(
        &self,
        kind: Kind,
        parent: impl FnOnce() -> Parent,
        name: impl FnOnce() -> N,
    ) -> Span {
        let Some(component) = &self.0 else { return Span::off() };
        let (parent, link) = match parent() {
            Parent::Root => (None, None),
            Parent::Linked(link) => (None, Some(link)),
            Parent::Child(parent) => (Some(parent), None),
        };
        let trace_id = parent.as_ref().map_or_else(new_id, |parent| parent.trace_id);
        let context = SpanContext {
            trace_id,
            span_id: new_id(),
            sampled: component.sampler.is_sampled(&trace_id, parent.as_ref()),
            remote: false,
            hops: parent.as_ref().map_or(0, |parent| parent.hops),
            state: parent.as_ref().and_then(|parent| parent.state.clone()),
        };
        if !context.sampled {
            return Span(State::Unsampled(self.clone(), context));
        }
        let name = match name().into() {
            Cow::Owned(name) => Cow::Owned(truncated(name)),
            name => name,
        };
        let now = component.clock.now().as_nanosecond();
        Span(State::Recording(Box::new(Recording {
            tracer: self.clone(),
            name,
            kind,
            context,
            parent,
            link,
            start: u64::try_from(now).unwrap_or(0),
            started: Instant::now(),
            attributes: Attributes::default(),
            error: None,
        })))
    }

    pub(super) fn wrote(&self, revision: u64, context: &SpanContext) {
        if let Some(component) = self.0.as_ref().filter(|_| context.sampled) {
            component.causes.add(revision, context.clone());
        }
    }

    /// A sampled write of this tracer's process, in progress until the result is dropped.
    pub(super) fn begin_write(&self, context: &SpanContext) -> Option<WriteInProgress> {
        self.0.as_ref().filter(|_| context.sampled).map(|component| component.causes.begin())
    }

    /// Position of a span that follows the write of `revision`: in the trace of that write if it is sampled, linked to
    /// it after too many reconciliations, and otherwise in a new trace. A write in progress is awaited.
    pub async fn caused_by(&self, revision: u64) -> Parent {
        let Some(component) = self.0.as_ref().filter(|_| revision > 0) else { return Parent::Root };
        component.causes.find_or_wait(revision).await.unwrap_or_default()
    }

    /// As [`caused_by`](Self::caused_by), without a wait.
    #[must_use]
    pub fn known_cause(&self, revision: u64) -> Parent {
        self.0.as_ref().and_then(|component| component.causes.find(revision)).unwrap_or_default()
    }

    pub(super) fn queue(&self, recording: Recording, end: u64) {
        if let Some(component) = &self.0 {
            component.queue.push(FinishedSpan::new(recording, end, Arc::clone(&component.resource)));
        }
    }
}

/// A random ID with at least one bit set.
fn new_id<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    loop {
        rand::fill(&mut id[..]);
        if id != [0; N] {
            return id;
        }
    }
}
