//! Heartbeats: renews each node's lease every ten seconds, evenly spread, with many renewals in flight.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError, Patch};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use objects::coordination::v1::Lease;
use objects::meta::v1::MicroTime;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::Fleet;

const NAMESPACE: &str = "kube-node-lease";
const PERIOD: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
/// Number of renewals in flight.
const CONCURRENCY: usize = 64;

pub fn start(client: Client, fleet: Arc<Fleet>, clock: Clock, tasks: &TaskGroup) {
    tasks.spawn_until_stopped(beat(client, fleet, clock));
}

async fn beat(client: Client, fleet: Arc<Fleet>, clock: Clock) {
    let Some(pause) = u32::try_from(fleet.nodes).ok().and_then(|nodes| PERIOD.checked_div(nodes)) else {
        return;
    };
    let mut ticks = tokio::time::interval(pause);
    // After an outage the renewals go on at the same pace.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let nodes = fleet.nodes;
    let numbers = stream::unfold((ticks, 0), move |(mut ticks, number)| async move {
        ticks.tick().await;
        Some((number, (ticks, (number + 1) % nodes)))
    });
    let renewal = move |number| {
        let (client, name, now) = (client.clone(), fleet.name(number), clock.now());
        async move {
            let outcome = tokio::time::timeout(PERIOD, renew(&client, &name, now)).await;
            if let Ok(Err(error)) = outcome {
                tracing::debug!(node = name, %error, "failed to renew the lease of a simulated node");
            }
        }
    };
    numbers.map(renewal).buffer_unordered(CONCURRENCY).for_each(|()| std::future::ready(())).await;
}

async fn renew(client: &Client, name: &str, now: Timestamp) -> Result<(), ClientError> {
    let spec = json!({
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": MicroTime(now),
    });
    let patch = Patch::Merge(json!({"spec": spec}));
    match client.patch::<Lease>(NAMESPACE, name, None, &patch).await {
        Err(error) if error.is_not_found() => {
            let lease: Lease = objects::from_value(&json!({
                "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
            }))
            .map_err(ClientError::Encode)?;
            client.create(NAMESPACE, &lease).await?;
            Ok(())
        }
        outcome => outcome.map(|_| ()),
    }
}
