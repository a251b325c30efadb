//! Everything of one cycle, named as Heapster's storage schema names it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The object that a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    Node { node: Box<str> },
    Namespace { namespace: Box<str> },
    Pod { node: Box<str>, namespace: Box<str>, pod: Box<str> },
    Container { node: Box<str>, namespace: Box<str>, pod: Box<str>, container: Box<str> },
}

/// Facts about an object beside its names; those that are unknown are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub pod_id: Box<str>,
    pub namespace_id: Box<str>,
    pub host_id: Box<str>,
    /// Labels as Heapster writes them: `name:value,…`.
    pub labels: Box<str>,
    pub image: Box<str>,
    /// The service that a pod belongs to, for OpenTelemetry.
    pub service: Box<str>,
}

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    CpuUsage,
    CpuRequest,
    CpuLimit,
    CpuRequestUtilization,
    CpuLimitUtilization,
    CpuNodeCapacity,
    CpuNodeAllocatable,
    CpuNodeUtilization,
    CpuNodeReservation,
    MemoryUsage,
    MemoryRequest,
    MemoryLimit,
    MemoryRequestUtilization,
    MemoryLimitUtilization,
    MemoryNodeCapacity,
    MemoryNodeAllocatable,
    MemoryNodeUtilization,
    MemoryNodeReservation,
    NetworkReceived,
    NetworkSent,
    NetworkReceivedRate,
    NetworkSentRate,
    FilesystemUsage,
    FilesystemLimit,
    FilesystemAvailable,
    Uptime,
    Restarts,
}

/// Names of a measure.
pub struct Named {
    pub heapster: &'static str,
    /// The name of OpenTelemetry after that of the kind of object; none if it has no such metric.
    pub otlp: Option<&'static str>,
    pub unit: &'static str,
    /// Factor to that unit.
    pub factor: f64,
    /// A number without a fraction.
    pub is_integer: bool,
    /// Counts since the start of the object.
    pub is_counter: bool,
}

impl Measure {
    #[rustfmt::skip]
    pub fn named(self) -> Named {
        const CORES: (&str, f64) = ("{cpu}", 1e-3);
        const BYTES: (&str, f64) = ("By", 1.0);
        const RATIO: (&str, f64) = ("1", 1.0);
        let (heapster, otlp, (unit, factor)) = match self {
            Self::CpuUsage => ("cpu/usage_rate", Some("cpu.usage"), CORES),
            Self::CpuRequest => ("cpu/request", Some("cpu.request"), CORES),
            Self::CpuLimit => ("cpu/limit", Some("cpu.limit"), CORES),
            Self::CpuRequestUtilization => ("cpu/request_utilization", Some("cpu_request_utilization"), RATIO),
            Self::CpuLimitUtilization => ("cpu/limit_utilization", Some("cpu_limit_utilization"), RATIO),
            Self::CpuNodeCapacity => ("cpu/node_capacity", None, CORES),
            Self::CpuNodeAllocatable => ("cpu/node_allocatable", Some("cpu.allocatable"), CORES),
            Self::CpuNodeUtilization => ("cpu/node_utilization", None, RATIO),
            Self::CpuNodeReservation => ("cpu/node_reservation", None, RATIO),
            Self::MemoryUsage => ("memory/working_set", Some("memory.working_set"), BYTES),
            Self::MemoryRequest => ("memory/request", Some("memory.request"), BYTES),
            Self::MemoryLimit => ("memory/limit", Some("memory.limit"), BYTES),
            Self::MemoryRequestUtilization => ("memory/request_utilization", Some("memory_request_utilization"), RATIO),
            Self::MemoryLimitUtilization => ("memory/limit_utilization", Some("memory_limit_utilization"), RATIO),
            Self::MemoryNodeCapacity => ("memory/node_capacity", None, BYTES),
            Self::MemoryNodeAllocatable => ("memory/node_allocatable", Some("memory.allocatable"), BYTES),
            Self::MemoryNodeUtilization => ("memory/node_utilization", None, RATIO),
            Self::MemoryNodeReservation => ("memory/node_reservation", None, RATIO),
            Self::NetworkReceived => ("network/rx", Some("network.io"), BYTES),
            Self::NetworkSent => ("network/tx", Some("network.io"), BYTES),
            Self::NetworkReceivedRate => ("network/rx_rate", None, ("By/s", 1.0)),
            Self::NetworkSentRate => ("network/tx_rate", None, ("By/s", 1.0)),
            Self::FilesystemUsage => ("filesystem/usage", Some("filesystem.usage"), BYTES),
            Self::FilesystemLimit => ("filesystem/limit", Some("filesystem.capacity"), BYTES),
            Self::FilesystemAvailable => ("filesystem/available", Some("filesystem.available"), BYTES),
            Self::Uptime => ("uptime", Some("uptime"), ("s", 1e-3)),
            Self::Restarts => ("restart_count", Some("restart.count"), ("{restart}", 1.0)),
        };
        let is_counter = matches!(self, Self::NetworkReceived | Self::NetworkSent);
        let is_integer = !matches!(unit, "1" | "By/s");
        Named { heapster, otlp, unit, factor, is_integer, is_counter }
    }

    /// Reports whether values of parts are added up for the whole. Volumes and node figures are not.
    fn is_summed(self) -> bool {
        use Measure::{CpuLimit, CpuRequest, CpuUsage, MemoryLimit, MemoryRequest, MemoryUsage, Restarts};
        matches!(
            self,
            CpuUsage | CpuRequest | CpuLimit | MemoryUsage | MemoryRequest | MemoryLimit | Restarts
        )
    }
}

/// Values by measure, each once.
pub type Values = BTreeMap<Measure, f64>;

/// Values of one object, or of one of its file systems.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub scope: Scope,
    pub facts: Arc<Facts>,
    /// The file system or volume.
    pub resource: Option<Box<str>>,
    pub values: Values,
}

impl Row {
    pub fn new(scope: Scope, facts: &Arc<Facts>, values: Values) -> Self {
        Self { scope, facts: Arc::clone(facts), resource: None, values }
    }

    /// Heapster's labels, sorted.
    pub fn labels(&self) -> Vec<(&'static str, &str)> {
        let facts = &*self.facts;
        let mut labels = match &self.scope {
            Scope::Cluster => vec![("type", "cluster")],
            Scope::Node { node } => vec![("nodename", &**node), ("hostname", node), ("type", "node")],
            Scope::Namespace { namespace } => vec![("namespace_name", &**namespace), ("type", "ns")],
            Scope::Pod { node, namespace, pod } => {
                vec![("namespace_name", &**namespace), ("nodename", node), ("pod_name", pod), ("type", "pod")]
            }
            Scope::Container { node, namespace, pod, container } => vec![
                ("container_name", &**container),
                ("namespace_name", namespace),
                ("nodename", node),
                ("pod_name", pod),
                ("type", "pod_container"),
            ],
        };
        let known = [
            ("container_base_image", &*facts.image),
            ("host_id", &facts.host_id),
            ("labels", &facts.labels),
            ("namespace_id", &facts.namespace_id),
            ("pod_id", &facts.pod_id),
            ("resource_id", self.resource.as_deref().unwrap_or_default()),
        ];
        labels.extend(known.into_iter().filter(|(_, value)| !value.is_empty()));
        labels.sort_unstable();
        labels
    }

    /// Attributes of OpenTelemetry's semantic conventions for resources.
    pub fn attributes(&self) -> Vec<(&'static str, &str)> {
        let facts = &*self.facts;
        let mut attributes = vec![("service.name", &*facts.service)];
        match &self.scope {
            Scope::Cluster => {}
            Scope::Node { node } => {
                attributes.extend([("k8s.node.name", &**node), ("k8s.node.uid", &facts.host_id)])
            }
            Scope::Namespace { namespace } => attributes.push(("k8s.namespace.name", namespace)),
            Scope::Pod { node, namespace, pod } | Scope::Container { node, namespace, pod, .. } => {
                attributes.extend([
                    ("k8s.namespace.name", &**namespace),
                    ("k8s.node.name", node),
                    ("k8s.pod.name", pod),
                    ("k8s.pod.uid", &facts.pod_id),
                ]);
            }
        }
        if let Scope::Container { container, .. } = &self.scope {
            attributes.extend([("k8s.container.name", &**container), ("container.image.name", &facts.image)]);
        }
        if let Some(volume) = self.volume() {
            attributes.push(("k8s.volume.name", volume));
        } else if let (Scope::Container { .. }, Some(filesystem)) = (&self.scope, &self.resource) {
            attributes.push(("ferry.filesystem", filesystem));
        }
        attributes.retain(|(_, value)| !value.is_empty());
        attributes
    }

    /// Milliseconds since the epoch of the start of what counters count from, if it is known.
    pub fn start(&self, at: i64) -> Option<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
        self.values.get(&Measure::Uptime).map(|uptime| at.saturating_sub(*uptime as i64))
    }

    /// The name of the volume that the row is about.
    pub fn volume(&self) -> Option<&str> {
        self.resource.as_deref()?.strip_prefix("Volume:")
    }
}

/// Everything of one cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Milliseconds since the epoch.
    pub at: i64,
    pub rows: Vec<Row>,
}

/// Adds the values of `other` that are sums.
fn add(values: &mut Values, other: &Values) {
    for (measure, value) in other.iter().filter(|(measure, _)| measure.is_summed()) {
        *values.entry(*measure).or_insert(0.0) += value;
    }
}

/// Adds utilizations of requests and limits.
fn relate(values: &mut Values) {
    use Measure as M;
    for (used, whole, ratio) in [
        (M::CpuUsage, M::CpuRequest, M::CpuRequestUtilization),
        (M::CpuUsage, M::CpuLimit, M::CpuLimitUtilization),
        (M::MemoryUsage, M::MemoryRequest, M::MemoryRequestUtilization),
        (M::MemoryUsage, M::MemoryLimit, M::MemoryLimitUtilization),
        (M::CpuUsage, M::CpuNodeAllocatable, M::CpuNodeUtilization),
        (M::MemoryUsage, M::MemoryNodeAllocatable, M::MemoryNodeUtilization),
        (M::CpuRequest, M::CpuNodeAllocatable, M::CpuNodeReservation),
        (M::MemoryRequest, M::MemoryNodeAllocatable, M::MemoryNodeReservation),
    ] {
        if let (Some(used), Some(whole)) = (values.get(&used), values.get(&whole))
            && *whole > 0.0
        {
            let value = used / whole;
            values.insert(ratio, value);
        }
    }
}

impl Snapshot {
    /// A snapshot of nodes, pods and containers. Values of containers are added to their pods and namespaces; their
    /// requests and limits also to their nodes, and the nodes to the cluster. Rows of file systems are in `others`.
    pub fn new(
        at: i64,
        mut nodes: Vec<Row>,
        mut pods: Vec<Row>,
        mut containers: Vec<Row>,
        others: Vec<Row>,
    ) -> Self {
        let mut by_pod: BTreeMap<(Box<str>, Box<str>), Values> = BTreeMap::new();
        let mut by_namespace: BTreeMap<Box<str>, (Values, Box<str>)> = BTreeMap::new();
        let mut by_node: BTreeMap<Box<str>, Values> = BTreeMap::new();
        for row in &containers {
            if let Scope::Container { node, namespace, pod, .. } = &row.scope {
                add(by_pod.entry((namespace.clone(), pod.clone())).or_default(), &row.values);
                let of_namespace = by_namespace.entry(namespace.clone());
                let (sum, id) =
                    of_namespace.or_insert_with(|| (Values::new(), row.facts.namespace_id.clone()));
                add(sum, &row.values);
                id.clone_from(&row.facts.namespace_id);
                let mut reserved = row.values.clone();
                reserved.remove(&Measure::CpuUsage);
                reserved.remove(&Measure::MemoryUsage);
                reserved.remove(&Measure::Restarts);
                add(by_node.entry(node.clone()).or_default(), &reserved);
            }
        }
        let mut cluster = Values::new();
        for row in &mut nodes {
            if let Scope::Node { node } = &row.scope
                && let Some(reserved) = by_node.get(node)
            {
                add(&mut row.values, reserved);
            }
            add(&mut cluster, &row.values);
            use Measure as M;
            for measure in
                [M::CpuNodeCapacity, M::CpuNodeAllocatable, M::MemoryNodeCapacity, M::MemoryNodeAllocatable]
            {
                if let Some(value) = row.values.get(&measure) {
                    *cluster.entry(measure).or_insert(0.0) += value;
                }
            }
        }
        for row in &mut pods {
            if let Scope::Pod { namespace, pod, .. } = &row.scope
                && let Some(sum) = by_pod.get(&(namespace.clone(), pod.clone()))
            {
                add(&mut row.values, sum);
            }
        }
        let none = Arc::new(Facts::default());
        let namespaces = by_namespace.into_iter().map(|(namespace, (values, namespace_id))| {
            let facts = Arc::new(Facts { namespace_id, ..Facts::default() });
            Row::new(Scope::Namespace { namespace }, &facts, values)
        });
        let mut rows: Vec<Row> = std::iter::once(Row::new(Scope::Cluster, &none, cluster)).collect();
        rows.append(&mut nodes);
        rows.extend(namespaces);
        rows.append(&mut pods);
        rows.append(&mut containers);
        rows.iter_mut().for_each(|row| relate(&mut row.values));
        rows.extend(others);
        rows.retain(|row| !row.values.is_empty());
        Self { at, rows }
    }

    /// Memory that the rows take, approximately.
    pub fn size(&self) -> usize {
        let of_row = |row: &Row| size_of::<Row>() + 2 * row.values.len() * size_of::<(Measure, f64)>();
        // Names, and the facts of pods, which rows share.
        self.rows.iter().map(|row| of_row(row) + 256).sum()
    }

    /// All rows, in parts of so many rows at most.
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = Rows<'_>> {
        self.rows.chunks(rows.max(1)).map(|rows| Rows { at: self.at, rows })
    }
}

/// Rows of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Milliseconds since the epoch.
    pub at: i64,
    pub rows: &'a [Row],
}

impl<'a> Rows<'a> {
    /// Every value with its row and its names.
    pub fn each(self) -> impl Iterator<Item = (&'a Row, Named, f64)> {
        self.rows
            .iter()
            .flat_map(|row| row.values.iter().map(move |(measure, value)| (row, measure.named(), *value)))
    }
}

#[cfg(test)]
impl Snapshot {
    pub fn whole(&self) -> Rows<'_> {
        Rows { at: self.at, rows: &self.rows }
    }
}

#[cfg(test)]
pub fn example() -> Snapshot {
    let (node, namespace, pod): (Box<str>, Box<str>, Box<str>) = ("n1".into(), "ns".into(), "p".into());
    let of_node = Row::new(
        Scope::Node { node: node.clone() },
        &Arc::new(Facts { host_id: "h".into(), ..Facts::default() }),
        [
            (Measure::CpuUsage, 900.0),
            (Measure::MemoryUsage, f64::from(1 << 30)),
            (Measure::CpuNodeAllocatable, 2000.0),
            (Measure::NetworkReceived, 12.0),
            (Measure::Uptime, 60_000.0),
        ]
        .into(),
    );
    let facts = Arc::new(Facts { pod_id: "u".into(), labels: "app:web".into(), ..Facts::default() });
    let scope = Scope::Pod { node: node.clone(), namespace: namespace.clone(), pod: pod.clone() };
    let of_pod = Row::new(scope.clone(), &facts, [(Measure::Uptime, 5000.0)].into());
    let container = Scope::Container {
        node: node.clone(),
        namespace: namespace.clone(),
        pod: pod.clone(),
        container: "a".into(),
    };
    let others = [(container, "logs"), (scope, "Volume:data")].map(|(scope, resource)| Row {
        resource: Some(resource.into()),
        ..Row::new(scope, &facts, [(Measure::FilesystemUsage, 5.0)].into())
    });
    let container = |name: &str, cpu: f64| {
        let (node, namespace, pod) = (node.clone(), namespace.clone(), pod.clone());
        Row::new(
            Scope::Container { node, namespace, pod, container: name.into() },
            &facts,
            [(Measure::CpuUsage, cpu), (Measure::MemoryUsage, 4096.0), (Measure::CpuRequest, 100.0)].into(),
        )
    };
    let containers = vec![container("a", 10.0), container("b b", 20.0)];
    Snapshot::new(1_767_225_600_000, vec![of_node], vec![of_pod], containers, others.into())
}

/// Pods with a container and a volume each on nodes of a hundred pods, with values that differ by time and pod.
#[cfg(test)]
pub fn large_example(pods: u32, at: i64) -> Snapshot {
    use Measure as M;
    let mut seed = at.unsigned_abs();
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(seed >> 33).unwrap_or(0) % below)
    };
    let (mut all_pods, mut containers, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..pods {
        let node: Box<str> = format!("node-{:03}.cluster.local", number / 100).into();
        let namespace: Box<str> = format!("namespace-{}", number % 20).into();
        let pod: Box<str> = format!("deployment-{}-6d4cf56db6-{number:05}", number % 50).into();
        let facts = Arc::new(Facts {
            pod_id: format!("f7b1d9e0-0000-4000-8000-{number:012}").into(),
            labels: format!("app:web-{},pod-template-hash:6d4cf56db6", number % 50).into(),
            image: "registry.example/team/server:1.2.3".into(),
            ..Facts::default()
        });
        let scope = Scope::Pod { node: node.clone(), namespace: namespace.clone(), pod: pod.clone() };
        let values = [
            (M::NetworkReceived, random(1 << 30)),
            (M::NetworkSent, random(1 << 30)),
            (M::NetworkReceivedRate, random(100_000) / 7.0),
            (M::NetworkSentRate, random(100_000) / 7.0),
            (M::Uptime, random(1 << 30)),
        ];
        all_pods.push(Row::new(scope.clone(), &facts, values.into()));
        let values =
            [(M::FilesystemUsage, random(1 << 30)), (M::FilesystemLimit, 1e9), (M::FilesystemAvailable, 5e8)];
        volumes.push(Row { resource: Some("Volume:data".into()), ..Row::new(scope, &facts, values.into()) });
        let values = [
            (M::CpuUsage, random(500)),
            (M::MemoryUsage, random(65_536) * 4096.0),
            (M::CpuRequest, 100.0),
            (M::CpuLimit, 500.0),
            (M::MemoryRequest, 256e6),
            (M::MemoryLimit, 512e6),
            (M::Restarts, 0.0),
        ];
        let scope = Scope::Container { node, namespace, pod, container: "server".into() };
        containers.push(Row::new(scope, &facts, values.into()));
    }
    Snapshot::new(at, Vec::new(), all_pods, containers, volumes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_has_sums_of_pods_namespaces_nodes_and_cluster() {
        let snapshot = example();
        let find = |kind: &str| {
            let is_kind = |row: &&Row| row.labels().contains(&("type", kind)) && row.resource.is_none();
            let values = &snapshot.rows.iter().find(is_kind).expect("a row").values;
            move |measure: Measure| values.get(&measure).copied()
        };
        assert_eq!(
            (find("pod")(Measure::CpuUsage), find("pod")(Measure::Uptime)),
            (Some(30.0), Some(5000.0))
        );
        assert_eq!(find("ns")(Measure::CpuRequest), Some(200.0));
        assert_eq!(
            (find("cluster")(Measure::CpuUsage), find("cluster")(Measure::CpuRequest)),
            (Some(900.0), Some(200.0))
        );
        assert_eq!(find("node")(Measure::CpuNodeUtilization), Some(0.45));
        assert_eq!(find("node")(Measure::CpuNodeReservation), Some(0.1));
        assert_eq!(find("pod_container")(Measure::CpuRequestUtilization), Some(0.1));
        assert_eq!(find("cluster")(Measure::Uptime), None);
        assert_eq!(snapshot.rows.len(), 8);
        let volume = snapshot.rows.last().expect("a row");
        assert!(volume.labels().contains(&("resource_id", "Volume:data")) && volume.labels().is_sorted());
        assert!(volume.attributes().contains(&("k8s.volume.name", "data")));
        assert!(volume.attributes().contains(&("k8s.pod.uid", "u")));
    }
}
