//! The last two points of every node and container, by node.
//!
//! Rules are metrics-server's: usage is a rate between two points, a restart resets it, a pod is served when all its
//! containers have two points, and a node that was not scraped in a cycle has no rows until it is again. Rows are kept by
//! node, so a kubelet can report pods of its own node only: a pod is looked up at the node that it is bound to.

use crate::point::{Point, Usage, usage};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::time::Duration;

/// Shortest time since the start of a container after which its first point is used alone.
const FRESH_CONTAINER: i64 = 10 * 1_000_000_000;

/// Points of one scrape of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeBatch {
    /// The node's own; absent if incomplete.
    pub node: Option<Point>,
    /// Sorted by namespace and name, each once.
    pub pods: Vec<PodBatch>,
}

/// Points of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodBatch {
    pub namespace: Box<str>,
    pub name: Box<str>,
    /// Containers, each once.
    pub containers: Vec<(Box<str>, Point)>,
}

/// The last two points of containers and nodes.
#[derive(Debug)]
pub struct Storage {
    nodes: RwLock<HashMap<Box<str>, NodeRow>>,
    /// Time between two scrapes, in nanoseconds.
    resolution: i64,
}

#[derive(Debug, Default)]
struct NodeRow {
    node: Option<Series>,
    /// Sorted by namespace and name.
    pods: Vec<PodRow>,
}

#[derive(Debug)]
struct PodRow {
    namespace: Box<str>,
    name: Box<str>,
    containers: Box<[(Box<str>, Series)]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    last: Point,
    prev: Option<Point>,
}

/// Usage of a pod: of each container, over the window of the one measured first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    pub containers: Vec<(Box<str>, Usage)>,
    /// Nanoseconds since the epoch.
    pub at: i64,
    pub window: i64,
}

impl PodUsage {
    /// Sums over the containers: billionths of a core, bytes.
    pub fn total(&self) -> (u64, u64) {
        let add = |(cpu, memory): (u64, u64), (_, one): &(Box<str>, Usage)| {
            (cpu.saturating_add(one.cpu), memory.saturating_add(one.memory))
        };
        self.containers.iter().fold((0, 0), add)
    }
}

impl Storage {
    pub fn new(resolution: Duration) -> Self {
        let resolution = i64::try_from(resolution.as_nanos()).unwrap_or(i64::MAX);
        Self { nodes: RwLock::default(), resolution }
    }

    /// Replaces the last points of a node; `None` if it was not scraped.
    pub fn store(&self, node: &str, batch: Option<NodeBatch>) {
        let mut nodes = self.nodes.write();
        let Some(batch) = batch else {
            nodes.remove(node);
            return;
        };
        let before = nodes.remove(node).unwrap_or_default();
        let own = batch.node.map(|last| Series { last, prev: following(&last, before.node.as_ref()) });
        let pods = batch.pods.into_iter().map(|pod| {
            let known = before.pod(&pod.namespace, &pod.name);
            let series = |(name, last): (Box<str>, Point)| {
                let known = known.and_then(|known| known.container(&name));
                let prev = self.previous(&last, known);
                (name, Series { last, prev })
            };
            let containers = pod.containers.into_iter().map(series).collect();
            PodRow { namespace: pod.namespace, name: pod.name, containers }
        });
        let pods = pods.collect();
        nodes.insert(node.into(), NodeRow { node: own, pods });
    }

    /// Forgets nodes that are no longer part of the cluster.
    pub fn retain(&self, is_present: impl Fn(&str) -> bool) {
        self.nodes.write().retain(|name, _| is_present(name));
    }

    /// Usage of a node; `None` before its second point.
    pub fn node(&self, name: &str) -> Option<Usage> {
        let series = self.nodes.read().get(name)?.node?;
        let used = usage(&series.last, series.prev.as_ref()?);
        used.inspect_err(|error| tracing::debug!(node = name, %error, "skipping node usage metric")).ok()
    }

    /// Usage of a pod on a node; `None` before each of its containers has a second point.
    pub fn pod(&self, node: &str, namespace: &str, name: &str) -> Option<PodUsage> {
        let nodes = self.nodes.read();
        let pod = nodes.get(node)?.pod(namespace, name)?;
        if pod.containers.iter().any(|(_, series)| series.prev.is_none()) {
            return None;
        }
        let mut containers = Vec::with_capacity(pod.containers.len());
        let mut earliest: Option<Usage> = None;
        for (container, series) in &pod.containers {
            let Some(prev) = &series.prev else { continue };
            match usage(&series.last, prev) {
                Ok(used) => {
                    containers.push((container.clone(), used));
                    if earliest.is_none_or(|earliest| used.at < earliest.at) {
                        earliest = Some(used);
                    }
                }
                Err(error) => {
                    tracing::debug!(namespace, pod = name, %container, %error, "skipping container usage metric");
                }
            }
        }
        let Usage { at, window, .. } = earliest?;
        Some(PodUsage { containers, at, window })
    }

    /// Nodes and containers whose usage can be served.
    pub fn points(&self) -> (usize, usize) {
        let nodes = self.nodes.read();
        let of_nodes = nodes.values().filter(|row| row.node.is_some_and(|series| series.prev.is_some()));
        let containers = nodes.values().flat_map(|row| &row.pods).flat_map(|pod| &pod.containers);
        (of_nodes.count(), containers.filter(|(_, series)| series.prev.is_some()).count())
    }

    /// Reports whether any usage can be served.
    pub fn is_ready(&self) -> bool {
        self.nodes.read().values().any(|row| row.node.is_some_and(|series| series.prev.is_some()))
    }

    /// The point before `last` of a container with the points `known` so far.
    fn previous(&self, last: &Point, known: Option<&Series>) -> Option<Point> {
        let age = last.at.saturating_sub(last.start);
        if last.start < last.at && age < self.resolution && age >= FRESH_CONTAINER {
            // The container started within this cycle with no CPU time spent.
            return Some(Point { at: last.start, cpu: 0, ..*last });
        }
        let known = known.filter(|known| last.start < known.last.at)?;
        following(last, Some(known))
    }
}

/// The point before `last`: the last one of `known`, or its previous one if the node repeats itself.
fn following(last: &Point, known: Option<&Series>) -> Option<Point> {
    let known = known?;
    if last.at > known.last.at { Some(known.last) } else { known.prev.filter(|prev| prev.at < last.at) }
}

impl NodeRow {
    fn pod(&self, namespace: &str, name: &str) -> Option<&PodRow> {
        let at = self.pods.binary_search_by(|pod| (&*pod.namespace, &*pod.name).cmp(&(namespace, name)));
        self.pods.get(at.ok()?)
    }
}

impl PodRow {
    fn container(&self, name: &str) -> Option<&Series> {
        self.containers.iter().find(|(container, _)| &**container == name).map(|(_, series)| series)
    }
}

#[cfg(test)]
mod tests;
