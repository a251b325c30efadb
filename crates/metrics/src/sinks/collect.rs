//! The snapshot of a cycle: usage, traffic, file systems, requests and limits of everything that has been scraped.

use super::snapshot::{Facts, Measure, Row, Scope, Snapshot, Values};
use crate::record::{Amount, NodeRecord, PodRecord, RecordLabels};
use crate::serve::Api;
use crate::stats::{Filesystem, ObjectStats, Stats};
use objects::core::v1::Namespace;
use runtime::Cache;
use std::sync::Arc;

#[expect(clippy::cast_precision_loss, reason = "values are below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

/// Thousandths of a core of billionths.
fn milli(cpu: u64) -> f64 {
    float(cpu.div_ceil(1_000_000))
}

fn insert(values: &mut Values, cpu: Measure, memory: Measure, amount: Amount) {
    for (measure, value) in [(cpu, amount.cpu), (memory, amount.memory)] {
        if value > 0 {
            values.insert(measure, float(value));
        }
    }
}

/// Adds traffic and uptime at `now`, in milliseconds.
fn insert_stats(values: &mut Values, stats: &ObjectStats, now: i64) {
    if let Some(traffic) = &stats.traffic {
        values.insert(Measure::NetworkReceived, float(traffic.received));
        values.insert(Measure::NetworkSent, float(traffic.sent));
        if let Some((received, sent)) = traffic.rates {
            values.insert(Measure::NetworkReceivedRate, received);
            values.insert(Measure::NetworkSentRate, sent);
        }
    }
    if let Some(uptime) = stats.start.and_then(|start| u64::try_from(now.saturating_sub(start)).ok()) {
        values.insert(Measure::Uptime, float(uptime));
    }
}

/// The row of a file system.
fn filesystem(scope: &Scope, facts: &Arc<Facts>, name: &str, one: &Filesystem) -> Row {
    let all = [
        (Measure::FilesystemUsage, one.used),
        (Measure::FilesystemLimit, one.capacity),
        (Measure::FilesystemAvailable, one.available),
    ];
    let values = all.into_iter().filter_map(|(measure, value)| Some((measure, float(value?))));
    Row { resource: Some(name.into()), ..Row::new(scope.clone(), facts, values.collect()) }
}

/// Rows of the file systems of an object.
fn filesystems<'a>(
    scope: &'a Scope,
    facts: &'a Arc<Facts>,
    stats: &'a ObjectStats,
) -> impl Iterator<Item = Row> + 'a {
    stats.filesystems.iter().map(move |(name, one)| filesystem(scope, facts, name, one))
}

/// Labels as Heapster writes them.
fn joined(labels: &RecordLabels) -> Box<str> {
    let all: Vec<String> = labels.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    all.join(",").into()
}

fn node_row(api: &Api, node: &NodeRecord, stats: &ObjectStats, now: i64) -> Option<Row> {
    let name = node.metadata.name.as_deref()?;
    let used = api.storage.node(name)?;
    let mut values: Values =
        [(Measure::CpuUsage, milli(used.cpu)), (Measure::MemoryUsage, float(used.memory))].into();
    insert(&mut values, Measure::CpuNodeCapacity, Measure::MemoryNodeCapacity, node.capacity);
    insert(&mut values, Measure::CpuNodeAllocatable, Measure::MemoryNodeAllocatable, node.allocatable);
    insert_stats(&mut values, stats, now);
    let facts = Facts {
        host_id: node.metadata.uid.as_deref().unwrap_or_default().into(),
        labels: joined(&node.labels),
        ..Facts::default()
    };
    Some(Row::new(Scope::Node { node: name.into() }, &Arc::new(facts), values))
}

fn pod_facts(pod: &PodRecord, namespace: Option<&Namespace>) -> Facts {
    let label =
        |wanted: &str| pod.labels.iter().find(|(name, _)| &**name == wanted).map(|(_, value)| &**value);
    let service = label("app.kubernetes.io/name").or(pod.metadata.name.as_deref());
    Facts {
        pod_id: pod.metadata.uid.as_deref().unwrap_or_default().into(),
        namespace_id: namespace.and_then(|one| one.metadata.uid.as_deref()).unwrap_or_default().into(),
        labels: joined(&pod.labels),
        service: service.unwrap_or_default().into(),
        ..Facts::default()
    }
}

/// Everything that has been scraped.
pub fn snapshot(api: &Api, stats: &Stats, namespaces: &Cache<Namespace>) -> Snapshot {
    let now = api.clock.now().as_millisecond();
    let (mut nodes, mut pods, mut containers, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for node in api.nodes.all() {
        let own = stats.node(node.metadata.name.as_deref().unwrap_or_default());
        if let Some(row) = node_row(api, &node, &own, now) {
            others.extend(filesystems(&row.scope, &row.facts, &own));
            nodes.push(row);
        }
    }
    for pod in api.pods.all() {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else { continue };
        let Some(used) = api.storage.pod(&pod.node, namespace, name) else { continue };
        let facts = pod_facts(&pod, namespaces.get("", namespace).as_deref());
        let shared = Arc::new(facts.clone());
        let (node, namespace, name): (Box<str>, Box<str>, Box<str>) =
            (pod.node.as_str().into(), namespace.as_str().into(), name.as_str().into());
        let own = stats.pod(&node, &namespace, &name);
        for (container, used) in used.containers {
            let record = pod.containers.iter().find(|record| record.name == container);
            let mut values: Values =
                [(Measure::CpuUsage, milli(used.cpu)), (Measure::MemoryUsage, float(used.memory))].into();
            let mut image = Box::default();
            if let Some(record) = record {
                insert(&mut values, Measure::CpuRequest, Measure::MemoryRequest, record.requests);
                insert(&mut values, Measure::CpuLimit, Measure::MemoryLimit, record.limits);
                values.insert(Measure::Restarts, f64::from(record.restarts));
                image = record.image.clone();
            }
            let facts = Arc::new(Facts { image, ..facts.clone() });
            let of_container = own.containers.iter().filter(|(name, ..)| *name == container);
            let (node, namespace, pod) = (node.clone(), namespace.clone(), name.clone());
            let scope = Scope::Container { node, namespace, pod, container: container.clone() };
            others.extend(of_container.map(|(_, what, one)| filesystem(&scope, &facts, what, one)));
            containers.push(Row::new(scope, &facts, values));
        }
        let mut values = Values::new();
        insert_stats(&mut values, &own, now);
        let scope = Scope::Pod { node, namespace, pod: name };
        others.extend(filesystems(&scope, &shared, &own));
        pods.push(Row::new(scope, &shared, values));
    }
    Snapshot::new(now, nodes, pods, containers, others)
}
