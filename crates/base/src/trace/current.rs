//! The span of the current task.

use super::causes::WriteInProgress;
use super::context::SpanContext;
use super::span::{Handle, Kind, Span};
use super::tracer::{Parent, Tracer};
use http::HeaderMap;
use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the process has an exporter; until then nothing else is looked at.
static ON: AtomicBool = AtomicBool::new(false);

tokio::task_local! {
    static CURRENT: (Tracer, SpanContext);
}

pub(super) fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Runs `work` with the span of `handle` as the current one.
pub async fn scope<F: Future>(handle: Handle, work: F) -> F::Output {
    let work = pin!(work);
    match handle.0 {
        None => work.await,
        Some(current) => CURRENT.scope(current, work).await,
    }
}

/// Context of the current span, if there is one.
#[must_use]
pub fn current() -> Option<SpanContext> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    CURRENT.try_with(|(_, context)| context.clone()).ok()
}

/// Starts a child of the current span; nothing if there is no current span or it is not sampled. `name` is called only
/// if the span is recorded.
pub fn child<N: Into<Cow<'static, str>>>(kind: Kind, name: impl FnOnce() -> N) -> Span {
    if !ON.load(Ordering::Relaxed) {
        return Span::off();
    }
    let started = CURRENT.try_with(|(tracer, context)| {
        if !context.sampled {
            return Span::off();
        }
        tracer.start(kind, || Parent::Child(context.clone()), name)
    });
    started.unwrap_or_default()
}

/// Marks the begin of a write of the current span, if it is sampled: reconciliations of its event wait until the result is
/// dropped.
#[must_use]
pub fn writing() -> Option<WriteInProgress> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    CURRENT.try_with(|(tracer, context)| tracer.begin_write(context)).ok().flatten()
}

/// Records the current span, if it is sampled, as the cause of what follows the write of `revision`.
pub fn wrote(revision: u64) {
    if ON.load(Ordering::Relaxed) {
        // Outside of a span there is nothing to record.
        let _ = CURRENT.try_with(|(tracer, context)| tracer.wrote(revision, context));
    }
}

/// Sets the trace context of the current span in the headers of an outbound request.
pub fn inject(headers: &mut HeaderMap) {
    if let Some(context) = current() {
        context.inject(headers);
    }
}
