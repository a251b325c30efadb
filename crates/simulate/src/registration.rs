//! Registers the nodes, many at a time, and writes their status again when another component changed it.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError};
use futures_util::{StreamExt, stream};
use objects::core::v1::Node;
use runtime::{Change, Informers};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Fleet, node};

/// Number of nodes that are registered at a time.
const CONCURRENCY: usize = 32;
/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the allocation of pod ranges, after which missing ones are reported.
const ALLOCATION_TIME: Duration = Duration::from_secs(15);
/// Delay before another attempt to write a status.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Registers all nodes of the fleet and reports the progress.
pub async fn all(client: &Client, fleet: &Fleet, clock: &Clock) -> Result<(), ClientError> {
    let total = fleet.nodes;
    let register = |number| {
        let (client, fleet, now) = (client.clone(), fleet.clone(), clock.now());
        async move { node::register(&client, &fleet, number, now).await }
    };
    let mut registrations = stream::iter(0..total).map(register).buffer_unordered(CONCURRENCY);
    let (mut registered, mut reported) = (0, Instant::now());
    while let Some(outcome) = registrations.next().await {
        outcome?;
        registered += 1;
        if reported.elapsed() >= REPORT_INTERVAL && registered < total {
            tracing::info!(registered, total, "registering simulated nodes");
            reported = Instant::now();
        }
    }
    Ok(())
}

/// Index of a node of the fleet that is not ready.
fn unready(fleet: &Fleet, node: &Node) -> Option<usize> {
    let number = fleet.number(node.metadata.name.as_deref()?)?;
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status != "True").then_some(number)
}

/// Number of nodes of the fleet without a pod range, if the cluster allocates ranges.
fn without_range<'a>(fleet: &Fleet, nodes: impl Iterator<Item = &'a Node>) -> usize {
    let of_fleet =
        |node: &&Node| node.metadata.name.as_deref().is_some_and(|name| fleet.number(name).is_some());
    let has_range = |node: &&Node| node.spec.as_ref().is_some_and(|spec| spec.pod_cidr.is_some());
    let (having, lacking): (Vec<&Node>, Vec<&Node>) = nodes.filter(of_fleet).partition(has_range);
    if having.is_empty() { 0 } else { lacking.len() }
}

/// Writes the status of nodes again that the node lifecycle controller marked as not ready, until `tasks` stop. A
/// kubelet does so as well once it reaches the API server again.
pub fn keep_ready(client: Client, fleet: Arc<Fleet>, clock: Clock, tasks: &TaskGroup) {
    let nodes = Informers::new(client.clone(), tasks).of::<Node>();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let of_fleet = Arc::clone(&fleet);
    nodes.on_event(move |change| {
        if let (false, Some(number)) =
            (matches!(change, Change::Deleted(_)), unready(&of_fleet, change.object()))
        {
            // The receiver ends with the tasks.
            let _ = sender.send(number);
        }
    });
    let (seen, own) = (nodes.clone(), Arc::clone(&fleet));
    tasks.spawn_until_stopped(async move {
        tokio::time::sleep(ALLOCATION_TIME).await;
        let lacking = without_range(&own, seen.all().iter().map(|node| &**node));
        if lacking > 0 {
            tracing::warn!(
                nodes = lacking,
                "simulated nodes have no pod CIDR: start the cluster with a larger --cluster-cidr, or smaller ranges per node by --node-cidr-mask-size"
            );
        }
    });
    tasks.spawn_until_stopped(async move {
        // Dropping the cache would end its watch.
        let _nodes = nodes;
        while let Some(number) = receiver.recv().await {
            while let Err(error) = node::register(&client, &fleet, number, clock.now()).await {
                tracing::debug!(node = fleet.name(number), %error, "failed to write the status of a simulated node");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_without_a_range_count_if_ranges_are_allocated() {
        let fleet = Fleet::default();
        let node = |name: &str, range: Option<&str>| -> Node {
            objects::from_value(&json!({"metadata": {"name": name}, "spec": {"podCIDR": range}}))
                .expect("a node")
        };
        let (with, without) = (node("sim-00001", Some("10.244.0.0/24")), node("sim-00002", None));
        let other = node("other", None);
        assert_eq!(without_range(&fleet, [&with, &without, &other].into_iter()), 1);
        assert_eq!(without_range(&fleet, [&without, &other].into_iter()), 0, "no ranges are allocated");
        assert_eq!(without_range(&fleet, [&with].into_iter()), 0);
    }

    #[test]
    fn nodes_of_the_fleet_that_are_not_ready_are_found() {
        let fleet = Fleet::default();
        let node = |name: &str, ready: &str| -> Node {
            let conditions =
                json!([{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": ready}]);
            objects::from_value(&json!({"metadata": {"name": name}, "status": {"conditions": conditions}}))
                .expect("a node")
        };
        assert_eq!(unready(&fleet, &node("sim-00003", "Unknown")), Some(3));
        assert_eq!(unready(&fleet, &node("sim-00003", "False")), Some(3));
        assert_eq!(unready(&fleet, &node("sim-00003", "True")), None);
        assert_eq!(unready(&fleet, &node("other", "Unknown")), None);
    }
}
