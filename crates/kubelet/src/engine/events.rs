//! Detects changes in the runtime by its event stream if available, otherwise by comparing lists.

use std::time::{Duration, Instant};

use cri::v1;

use super::{Engine, EngineError, RuntimeStates};
use crate::configure::labels;

/// Relist interval beside an event stream, in case an event was lost.
const RELIST_INTERVAL: Duration = Duration::from_secs(300);
/// Relist interval without an event stream.
const POLL: Duration = Duration::from_secs(1);
/// Delay before a broken stream is reopened.
const RECONNECT: Duration = Duration::from_millis(500);

/// States of the last comparison, and its time.
#[derive(Default)]
struct Relist {
    seen: RuntimeStates,
    at: Option<Instant>,
}

/// Calls `changed` with the UID of every pod whose sandboxes or containers changed, until dropped.
pub async fn watch(engine: Engine, changed: impl Fn(&str) + Send + Sync + 'static) {
    let mut last = Relist::default();
    loop {
        let lost = match stream(&engine, &mut last, &changed).await {
            Err(error) if error.is_unimplemented() => Err(poll(&engine, &mut last, &changed).await),
            ended => ended,
        };
        if let Err(error) = lost {
            tracing::warn!(%error, "lost runtime event stream, retrying");
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn stream(
    engine: &Engine,
    last: &mut Relist,
    changed: &(impl Fn(&str) + Send + Sync),
) -> Result<(), EngineError> {
    let mut calls = engine.calls().runtime;
    let events = calls.get_container_events(v1::GetEventsRequest {});
    let mut events = engine.metrics.timed("get_container_events", events).await?.into_inner();
    compare(engine, last, changed).await?;
    loop {
        match tokio::time::timeout(RELIST_INTERVAL, events.message()).await {
            Ok(Ok(Some(event))) => {
                let of_sandbox = event.pod_sandbox_status.as_ref().map(|status| &status.labels);
                let of_container = event.containers_statuses.first().map(|status| &status.labels);
                let uid = of_sandbox.or(of_container).and_then(|labels| labels.get(labels::POD_UID));
                match uid {
                    Some(uid) => changed(uid),
                    // Event without a pod UID.
                    None => compare(engine, last, changed).await?,
                }
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(status)) => return Err(status.into()),
            Err(_) => compare(engine, last, changed).await?,
        }
    }
}

/// Compares lists until the runtime fails to respond; returns its error.
async fn poll(engine: &Engine, last: &mut Relist, changed: &(impl Fn(&str) + Send + Sync)) -> EngineError {
    loop {
        if let Err(error) = compare(engine, last, changed).await {
            return error;
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn compare(
    engine: &Engine,
    last: &mut Relist,
    changed: &(impl Fn(&str) + Send + Sync),
) -> Result<(), EngineError> {
    let begun = Instant::now();
    let seen = engine.runtime_states().await?;
    if let Some(before) = last.at.replace(begun) {
        engine.metrics.relist_interval(begun.duration_since(before));
    }
    for (uid, states) in &seen.states {
        if last.seen.states.get(uid) != Some(states) {
            changed(uid);
        }
    }
    for uid in last.seen.states.keys().filter(|uid| !seen.states.contains_key(*uid)) {
        changed(uid);
    }
    last.seen = seen;
    Ok(())
}
