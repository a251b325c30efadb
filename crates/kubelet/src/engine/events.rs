//! Noticing changes in the runtime: its stream of events where it has one, comparing lists otherwise.

use std::time::Duration;

use cri::v1;

use super::{Engine, EngineError, Seen};
use crate::configure::labels;

/// How often lists are compared beside a stream of events, in case one was lost.
const SAFETY_NET: Duration = Duration::from_secs(300);
/// How often lists are compared where there are no events.
const POLL: Duration = Duration::from_secs(1);
/// How long to wait before a broken stream is opened again.
const RECONNECT: Duration = Duration::from_millis(500);

/// Calls `changed` with the UID of every pod whose sandboxes or containers changed, until dropped. `health` is called when
/// the runtime did not answer, and with `None` when it does again.
pub async fn watch(
    engine: Engine,
    changed: impl Fn(&str) + Send + Sync + 'static,
    health: impl Fn(Option<&EngineError>) + Send + Sync + 'static,
) {
    let mut last = Seen::default();
    loop {
        match stream(&engine, &mut last, &changed, &health).await {
            Err(error) if error.is_unimplemented() => poll(&engine, &mut last, &changed, &health).await,
            Err(error) => health(Some(&error)),
            Ok(()) => {}
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn stream(
    engine: &Engine,
    last: &mut Seen,
    changed: &(impl Fn(&str) + Send + Sync),
    health: &(impl Fn(Option<&EngineError>) + Send + Sync),
) -> Result<(), EngineError> {
    let mut calls = engine.calls().runtime;
    let mut events = calls.get_container_events(v1::GetEventsRequest {}).await?.into_inner();
    compare(engine, last, changed).await?;
    health(None);
    loop {
        match tokio::time::timeout(SAFETY_NET, events.message()).await {
            Ok(Ok(Some(event))) => {
                let of_sandbox = event.pod_sandbox_status.as_ref().map(|status| &status.labels);
                let of_container = event.containers_statuses.first().map(|status| &status.labels);
                let uid = of_sandbox.or(of_container).and_then(|labels| labels.get(labels::POD_UID));
                match uid {
                    Some(uid) => changed(uid),
                    // An event that does not say whose it is.
                    None => compare(engine, last, changed).await?,
                }
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(status)) => return Err(status.into()),
            Err(_) => compare(engine, last, changed).await?,
        }
    }
}

/// Compares lists for as long as the runtime answers.
async fn poll(
    engine: &Engine,
    last: &mut Seen,
    changed: &(impl Fn(&str) + Send + Sync),
    health: &(impl Fn(Option<&EngineError>) + Send + Sync),
) {
    loop {
        match compare(engine, last, changed).await {
            Ok(()) => health(None),
            Err(error) => {
                health(Some(&error));
                return;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn compare(
    engine: &Engine,
    last: &mut Seen,
    changed: &(impl Fn(&str) + Send + Sync),
) -> Result<(), EngineError> {
    let seen = engine.survey().await?;
    for (uid, states) in &seen.states {
        if last.states.get(uid) != Some(states) {
            changed(uid);
        }
    }
    for uid in last.states.keys().filter(|uid| !seen.states.contains_key(*uid)) {
        changed(uid);
    }
    *last = seen;
    Ok(())
}
