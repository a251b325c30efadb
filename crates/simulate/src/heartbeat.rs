//! Heartbeats: renews each node's lease every ten seconds, one after the other.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError, Patch};
use jiff::Timestamp;
use objects::coordination::v1::Lease;
use objects::meta::v1::MicroTime;
use serde_json::json;

use crate::Fleet;

const NAMESPACE: &str = "kube-node-lease";
const PERIOD: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;

pub fn start(client: Client, fleet: Arc<Fleet>, clock: Clock, tasks: &TaskGroup) {
    tasks.spawn_until_stopped(async move { beat(&client, &fleet, &clock).await });
}

async fn beat(client: &Client, fleet: &Fleet, clock: &Clock) {
    let Some(pause) = u32::try_from(fleet.nodes).ok().and_then(|nodes| PERIOD.checked_div(nodes)) else {
        return;
    };
    let mut ticks = tokio::time::interval(pause);
    loop {
        for number in 0..fleet.nodes {
            ticks.tick().await;
            let name = fleet.name(number);
            if let Err(error) = renew(client, &name, clock.now()).await {
                tracing::debug!(node = name, %error, "failed to renew the lease of a simulated node");
            }
        }
    }
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
