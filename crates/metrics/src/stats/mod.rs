//! Kubelets' `/stats/summary`: traffic, file systems and volumes, for sinks. Not read without a sink.

mod objects;

pub use objects::SplitError;

use crate::record::{BoundPod, PodRecord};
use jiff::Timestamp;
use objects::{Objects, Owner};
use parking_lot::RwLock;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// Bytes that a network interface received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
    /// Bytes per second since the summary before.
    pub rates: Option<(f64, f64)>,
}

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub used: Option<u64>,
    pub capacity: Option<u64>,
    pub available: Option<u64>,
}

/// Statistics of a node or pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectStats {
    /// Milliseconds since the epoch.
    pub start: Option<i64>,
    pub traffic: Option<Traffic>,
    /// By name: `/` is that of the node or of the pod's ephemeral storage, `Volume:…` are volumes, as Heapster names
    /// them.
    pub filesystems: Vec<(Box<str>, Filesystem)>,
    /// File systems of the containers of a pod, by the container: `/` is the writable layer, `logs` are its logs.
    pub containers: Vec<(Box<str>, &'static str, Filesystem)>,
}

/// Statistics of a node and its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStats {
    /// Time of the request, in milliseconds.
    at: i64,
    pub node: ObjectStats,
    /// By namespace and name.
    pods: HashMap<(Box<str>, Box<str>), ObjectStats>,
}

/// Reason why a summary was not decoded.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error("failed to decode the statistics of a node or pod")]
    Decode(#[from] serde_json::Error),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireObject<'a> {
    #[serde(borrow, default)]
    pod_ref: Option<WireReference<'a>>,
    #[serde(borrow, default)]
    start_time: Option<Cow<'a, str>>,
    #[serde(default)]
    network: Option<WireNetwork>,
    #[serde(default)]
    fs: Option<WireFilesystem>,
    #[serde(default, rename = "ephemeral-storage")]
    ephemeral: Option<WireFilesystem>,
    #[serde(borrow, default)]
    volume: Vec<WireVolume<'a>>,
    #[serde(borrow, default)]
    containers: Vec<WireContainer<'a>>,
}

#[derive(Deserialize)]
struct WireContainer<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    rootfs: Option<WireFilesystem>,
    #[serde(default)]
    logs: Option<WireFilesystem>,
}

#[derive(Deserialize)]
struct WireReference<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireNetwork {
    #[serde(default)]
    rx_bytes: Option<u64>,
    #[serde(default)]
    tx_bytes: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireFilesystem {
    #[serde(default)]
    available_bytes: Option<u64>,
    #[serde(default)]
    capacity_bytes: Option<u64>,
    #[serde(default)]
    used_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct WireVolume<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(flatten)]
    filesystem: WireFilesystem,
}

impl From<WireFilesystem> for Filesystem {
    fn from(wire: WireFilesystem) -> Self {
        Self { used: wire.used_bytes, capacity: wire.capacity_bytes, available: wire.available_bytes }
    }
}

impl ObjectStats {
    /// The statistics of a node, or of a pod: volumes and containers are those that the pod has, each once.
    fn of(wire: WireObject<'_>, pod: Option<&PodRecord>) -> Self {
        let start = wire.start_time.and_then(|text| text.parse::<Timestamp>().ok());
        let traffic = wire.network.and_then(|network| {
            Some(Traffic { received: network.rx_bytes?, sent: network.tx_bytes?, rates: None })
        });
        let own = wire.fs.or(wire.ephemeral).map(|own| ("/".into(), own.into()));
        let mut filesystems: Vec<(Box<str>, Filesystem)> = own.into_iter().collect();
        let mut containers = Vec::new();
        if let Some(pod) = pod {
            for name in &pod.volumes {
                if let Some(one) = wire.volume.iter().find(|one| one.name == **name) {
                    filesystems.push((format!("Volume:{name}").into(), one.filesystem.into()));
                }
            }
            for container in &pod.containers {
                let Some(one) = wire.containers.iter().find(|one| one.name == *container.name) else {
                    continue;
                };
                for (resource, filesystem) in [("/", one.rootfs), ("logs", one.logs)] {
                    if let Some(filesystem) = filesystem {
                        containers.push((container.name.clone(), resource, filesystem.into()));
                    }
                }
            }
        }
        Self { start: start.map(Timestamp::as_millisecond), traffic, filesystems, containers }
    }
}

/// A summary being decoded.
#[derive(Debug)]
pub struct SummaryDecoder {
    objects: Objects,
    stats: NodeStats,
}

impl SummaryDecoder {
    /// A decoder of a summary that was requested at `at`, in milliseconds since the epoch.
    pub fn new(at: i64) -> Self {
        Self { objects: Objects::default(), stats: NodeStats { at, ..NodeStats::default() } }
    }

    pub fn push(&mut self, piece: &[u8], bound: BoundPod<'_>) -> Result<(), SummaryError> {
        let stats = &mut self.stats;
        self.objects.push(piece, |owner, object| {
            let mut wire: WireObject<'_> = serde_json::from_slice(object)?;
            if owner == Owner::Node {
                stats.node = ObjectStats::of(wire, None);
            } else if let Some(WireReference { name, namespace }) = wire.pod_ref.take()
                && let Some(pod) = bound(&namespace, &name)
            {
                stats.pods.insert(((&*namespace).into(), (&*name).into()), ObjectStats::of(wire, Some(&pod)));
            }
            Ok(())
        })
    }

    /// Bytes of the object that is being read.
    pub fn buffered(&self) -> usize {
        self.objects.buffered()
    }

    pub fn finish(self) -> Result<NodeStats, SummaryError> {
        self.objects.finish()?;
        Ok(self.stats)
    }
}

impl NodeStats {
    /// Sets the rates of traffic since the summary before.
    fn follow(&mut self, before: &Self) {
        let milliseconds = self.at.saturating_sub(before.at);
        if milliseconds <= 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "rates are approximate")]
        let rates = |now: &mut ObjectStats, before: &ObjectStats| {
            if let (Some(now), Some(before)) = (&mut now.traffic, &before.traffic) {
                // A counter that was reset counts from zero.
                let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now) as f64;
                let seconds = milliseconds as f64 / 1000.0;
                let received = grown(now.received, before.received) / seconds;
                now.rates = Some((received, grown(now.sent, before.sent) / seconds));
            }
        };
        rates(&mut self.node, &before.node);
        for (key, pod) in &mut self.pods {
            if let Some(before) = before.pods.get(key) {
                rates(pod, before);
            }
        }
    }
}

/// The last summaries of nodes.
#[derive(Debug, Default)]
pub struct Stats(RwLock<HashMap<Box<str>, NodeStats>>);

impl Stats {
    /// Replaces the summary of a node; `None` if it was not read.
    pub fn store(&self, node: &str, stats: Option<NodeStats>) {
        let mut nodes = self.0.write();
        let before = nodes.remove(node);
        if let Some(mut stats) = stats {
            if let Some(before) = before {
                stats.follow(&before);
            }
            nodes.insert(node.into(), stats);
        }
    }

    pub fn retain(&self, is_present: impl Fn(&str) -> bool) {
        self.0.write().retain(|name, _| is_present(name));
    }

    pub fn node(&self, name: &str) -> ObjectStats {
        self.0.read().get(name).map(|stats| stats.node.clone()).unwrap_or_default()
    }

    pub fn pod(&self, node: &str, namespace: &str, name: &str) -> ObjectStats {
        let nodes = self.0.read();
        let found = nodes.get(node).and_then(|stats| stats.pods.get(&(namespace.into(), name.into())));
        found.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ContainerRecord;
    use std::sync::Arc;

    fn summary(received: u64, at: i64) -> NodeStats {
        let text = format!(
            r#"{{"node": {{"nodeName": "n", "startTime": "2026-01-01T00:00:00Z", "cpu": {{"usageNanoCores": 1}},
              "network": {{"time": "2026-01-01T00:00:00Z", "name": "eth0", "rxBytes": {received}, "txBytes": 7,
                "interfaces": [{{"name": "eth0"}}]}},
              "fs": {{"availableBytes": 60, "capacityBytes": 100, "usedBytes": 40}}}},
            "pods": [{{"podRef": {{"name": "p", "namespace": "ns", "uid": "u"}},
              "network": {{"rxBytes": {received}, "txBytes": {received}}},
              "volume": [{{"name": "data", "usedBytes": 5, "capacityBytes": 10, "pvcRef": {{"name": "c"}}}},
                {{"name": "data", "usedBytes": 6}}, {{"name": "other", "usedBytes": 5}}],
              "containers": [{{"name": "c", "rootfs": {{"usedBytes": 8}}, "logs": {{"usedBytes": 9}}}},
                {{"name": "other", "rootfs": {{"usedBytes": 8}}}}],
              "ephemeral-storage": {{"usedBytes": 3}}}},
            {{"podRef": {{"name": "elsewhere", "namespace": "ns"}}}}, {{}}]}}"#
        );
        decode(&text, at).expect("decodes")
    }

    fn decode(text: &str, at: i64) -> Result<NodeStats, SummaryError> {
        let record = Arc::new(PodRecord {
            volumes: ["data".into()].into(),
            containers: [ContainerRecord { name: "c".into(), ..ContainerRecord::default() }].into(),
            ..PodRecord::default()
        });
        let bound = |_: &str, pod: &str| (pod != "elsewhere").then(|| Arc::clone(&record));
        let mut decoder = SummaryDecoder::new(at);
        for piece in text.as_bytes().chunks(100) {
            decoder.push(piece, &bound)?;
        }
        decoder.finish()
    }

    #[test]
    fn summary_of_a_kubelet() {
        let stats = summary(100, 0);
        assert_eq!(stats.node.start, Some(1_767_225_600_000));
        let whole = Filesystem { used: Some(40), capacity: Some(100), available: Some(60) };
        assert_eq!(stats.node.filesystems, [("/".into(), whole)]);
        assert_eq!(stats.pods.len(), 1, "pods of other nodes are left out");
        let pod = stats.pods.values().next().expect("a pod");
        let names: Vec<&str> = pod.filesystems.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["/", "Volume:data"], "volumes that the pod does not have are left out");
        let used: Vec<_> =
            pod.containers.iter().map(|(name, what, one)| (&**name, *what, one.used)).collect();
        assert_eq!(used, [("c", "/", Some(8)), ("c", "logs", Some(9))]);
        assert!(decode("{", 0).is_err() && decode("{}", 0).is_ok());
        assert!(decode(r#"{"node": {"fs": 1}}"#, 0).is_err());
    }

    #[test]
    fn rates_are_between_two_summaries() {
        let stats = Stats::default();
        stats.store("n", Some(summary(100, 10_000)));
        assert_eq!(stats.node("n").traffic.and_then(|traffic| traffic.rates), None);
        stats.store("n", Some(summary(150, 20_000)));
        assert_eq!(stats.node("n").traffic.and_then(|traffic| traffic.rates), Some((5.0, 0.0)));
        assert_eq!(stats.pod("n", "ns", "p").traffic.and_then(|traffic| traffic.rates), Some((5.0, 5.0)));
        stats.store("n", Some(summary(30, 30_000)));
        assert_eq!(stats.pod("n", "ns", "p").traffic.and_then(|traffic| traffic.rates), Some((3.0, 3.0)));
        stats.store("n", None);
        assert_eq!(stats.pod("n", "ns", "p"), ObjectStats::default());
    }
}
