//! Decodes a kubelet's `/metrics/resource`.

use crate::exposition::{Format, LineTooLong, Lines, SampleError, sample};
use crate::point::{Point, UNKNOWN_START};
use crate::record::{BoundPod, PodRecord};
use crate::storage::{NodeBatch, PodBatch};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Length of a line, at most.
const LONGEST_LINE: usize = 16 << 10;
/// Containers of a node, at most. A kubelet runs 110 pods by default.
const MAX_CONTAINERS: usize = 20_000;

const MILLISECOND: i64 = 1_000_000;

/// Reason why a page was not decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("failed to parse line {number}")]
    Sample { number: usize, source: SampleError },
    #[error(transparent)]
    Line(#[from] LineTooLong),
    #[error("more than {MAX_CONTAINERS} containers")]
    TooManyContainers,
}

/// A page being decoded.
#[derive(Debug)]
pub struct Decoder {
    lines: Lines,
    page: Page,
}

/// A pod of the page, and the points of its containers.
#[derive(Debug)]
struct PagePod {
    record: Arc<PodRecord>,
    containers: Vec<(Box<str>, Point)>,
}

#[derive(Debug)]
struct Page {
    /// Lines so far.
    number: usize,
    /// Time of samples without a timestamp, in milliseconds.
    now: i64,
    node: Point,
    /// By namespace and name.
    pods: BTreeMap<Box<str>, BTreeMap<Box<str>, PagePod>>,
    containers: usize,
}

const EMPTY: Point = Point { start: UNKNOWN_START, at: 0, cpu: 0, memory: 0 };

impl Decoder {
    /// A decoder of a page that was requested at `now`, in milliseconds since the epoch.
    pub fn new(now: i64) -> Self {
        let page = Page { number: 0, now, node: EMPTY, pods: BTreeMap::new(), containers: 0 };
        Self { lines: Lines::new(LONGEST_LINE), page }
    }

    pub fn push(&mut self, piece: &[u8], bound: BoundPod<'_>) -> Result<(), DecodeError> {
        let page = &mut self.page;
        self.lines.push(piece, |line| page.take(line, bound))
    }

    /// The points of the page. A pod of which a container lacks a value is left out, as is an incomplete node.
    pub fn finish(self, bound: BoundPod<'_>) -> Result<NodeBatch, DecodeError> {
        let Self { lines, mut page } = self;
        lines.finish(|line| page.take(line, bound))?;
        let is_complete = |point: &Point| point.at != 0 && point.cpu != 0 && point.memory != 0;
        let all = page.pods.into_iter().flat_map(|(namespace, pods)| {
            pods.into_iter().map(move |(name, pod)| (namespace.clone(), name, pod.containers))
        });
        let mut pods = Vec::new();
        for (namespace, name, mut containers) in all.filter(|(.., containers)| !containers.is_empty()) {
            if containers.iter().all(|(_, point)| is_complete(point)) {
                containers.shrink_to_fit();
                pods.push(PodBatch { namespace, name, containers });
            } else {
                tracing::debug!(%namespace, pod = %name, "incomplete metrics of a pod");
            }
        }
        Ok(NodeBatch { node: Some(page.node).filter(is_complete), pods })
    }
}

impl Page {
    fn take(&mut self, line: &[u8], bound: BoundPod<'_>) -> Result<(), DecodeError> {
        self.number = self.number.saturating_add(1);
        // Lines of other metrics are not parsed: `pod_` and `container_swap_` rows are half of a page.
        let Some(metric) = Metric::of(line) else { return Ok(()) };
        let parsed = sample(line, Format::Text);
        let parsed = parsed.map_err(|source| DecodeError::Sample { number: self.number, source })?;
        let Some(found) = parsed else { return Ok(()) };
        let point = if metric.is_of_node() {
            &mut self.node
        } else {
            let (namespace, pod, name) =
                (found.label("namespace"), found.label("pod"), found.label("container"));
            if !self.pods.get(namespace).is_some_and(|pods| pods.contains_key(pod)) {
                let Some(record) = bound(namespace, pod) else { return Ok(()) };
                let pods = self.pods.entry(namespace.into()).or_default();
                pods.insert(pod.into(), PagePod { record, containers: Vec::new() });
            }
            let Some(PagePod { record, containers }) =
                self.pods.get_mut(namespace).and_then(|pods| pods.get_mut(pod))
            else {
                return Ok(());
            };
            let at = match containers.iter().position(|(known, _)| **known == *name) {
                Some(at) => at,
                None if !record.has_container(name) => return Ok(()),
                None if self.containers >= MAX_CONTAINERS => return Err(DecodeError::TooManyContainers),
                None => {
                    self.containers = self.containers.saturating_add(1);
                    containers.push((name.into(), EMPTY));
                    containers.len().saturating_sub(1)
                }
            };
            match containers.get_mut(at) {
                Some((_, point)) => point,
                None => return Ok(()),
            }
        };
        let at = found.timestamp.unwrap_or(self.now).saturating_mul(MILLISECOND);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts of floats saturate"
        )]
        match metric {
            Metric::NodeCpu | Metric::Cpu => {
                point.cpu = (found.value * 1e9) as u64;
                point.at = at;
            }
            Metric::NodeMemory | Metric::Memory => {
                point.memory = found.value as u64;
                // The window of a rate is that of its CPU time.
                if point.at == 0 {
                    point.at = at;
                }
            }
            Metric::Start => point.start = (found.value * 1e9) as i64,
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Metric {
    NodeCpu,
    NodeMemory,
    Cpu,
    Memory,
    Start,
}

const METRICS: [(&[u8], Metric); 5] = [
    (b"node_cpu_usage_seconds_total", Metric::NodeCpu),
    (b"node_memory_working_set_bytes", Metric::NodeMemory),
    (b"container_cpu_usage_seconds_total", Metric::Cpu),
    (b"container_memory_working_set_bytes", Metric::Memory),
    (b"container_start_time_seconds", Metric::Start),
];

impl Metric {
    fn of(line: &[u8]) -> Option<Self> {
        let is_named = |name: &[u8]| {
            line.strip_prefix(name).is_some_and(|rest| matches!(rest.first(), Some(b'{' | b' ' | b'\t')))
        };
        METRICS.iter().find(|(name, _)| is_named(name)).map(|(_, metric)| *metric)
    }

    fn is_of_node(self) -> bool {
        matches!(self, Self::NodeCpu | Self::NodeMemory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ContainerRecord;

    const NOW: i64 = 1_700_000_000_000;

    fn decode(page: &str) -> Result<NodeBatch, DecodeError> {
        let mut decoder = Decoder::new(NOW);
        for piece in page.as_bytes().chunks(7) {
            decoder.push(piece, &bound)?;
        }
        decoder.finish(&bound)
    }

    /// Pods with the containers a, b and c.
    fn bound(_: &str, pod: &str) -> Option<Arc<PodRecord>> {
        let container = |name: &str| ContainerRecord { name: name.into(), ..ContainerRecord::default() };
        let containers = ["a", "b", "c"].map(container).into();
        (pod != "elsewhere").then(|| Arc::new(PodRecord { containers, ..PodRecord::default() }))
    }

    #[test]
    fn pods_of_other_nodes_and_containers_of_no_pod_are_left_out() {
        let row = |pod: &str, container: &str| {
            format!(
                "container_cpu_usage_seconds_total{{container=\"{container}\",namespace=\"n\",pod=\"{pod}\"}} 1\n\
                 container_memory_working_set_bytes{{container=\"{container}\",namespace=\"n\",pod=\"{pod}\"}} 1\n"
            )
        };
        let page =
            [row("here", "c"), row("here", "other"), row("none", "other"), row("elsewhere", "c")].concat();
        let pods = decode(&page).expect("decodes").pods;
        let found: Vec<_> = pods.iter().map(|pod| (&*pod.name, pod.containers.len())).collect();
        assert_eq!(found, [("here", 1)]);
    }

    const PAGE: &str = r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="ns",pod="b"} 4.710169 1633253812125
container_cpu_usage_seconds_total{container="c",namespace="ns",pod="a"} 1.5 1633253812000
container_memory_working_set_bytes{container="c",namespace="ns",pod="b"} 1.253376e+07 1633253812125
container_memory_working_set_bytes{container="c",namespace="ns",pod="a"} 4096
container_start_time_seconds{container="c",namespace="ns",pod="b"} 1.633252712e+09
node_cpu_usage_seconds_total 357.35491 1633253809720
node_memory_working_set_bytes 1.616273408e+09 1633253809720
pod_cpu_usage_seconds_total{namespace="ns",pod="b"} no number
scrape_error 0
"#;

    #[test]
    fn page_of_a_kubelet() {
        let batch = decode(PAGE).expect("decodes");
        let node = batch.node.expect("a node");
        assert_eq!(
            (node.at, node.cpu, node.memory),
            (1_633_253_809_720 * MILLISECOND, 357_354_910_000, 1_616_273_408)
        );
        let names: Vec<_> = batch.pods.iter().map(|pod| &*pod.name).collect();
        assert_eq!(names, ["a", "b"], "sorted");
        let (name, point) = &batch.pods[1].containers[0];
        assert_eq!((&**name, point.cpu, point.memory), ("c", 4_710_169_000, 12_533_760));
        assert_eq!((point.start, point.at), (1_633_252_712_000_000_000, 1_633_253_812_125 * MILLISECOND));
        let (_, point) = &batch.pods[0].containers[0];
        assert_eq!((point.start, point.at), (UNKNOWN_START, 1_633_253_812_000 * MILLISECOND));
    }

    #[test]
    fn sample_without_timestamp_is_of_now() {
        let batch =
            decode("node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 2").expect("decodes");
        assert_eq!(batch.node.map(|node| node.at), Some(NOW * MILLISECOND));
    }

    #[test]
    fn incomplete_points_are_left_out() {
        let batch = decode(
            "node_cpu_usage_seconds_total 0\nnode_memory_working_set_bytes 5\n\
             container_cpu_usage_seconds_total{container=\"a\",namespace=\"n\",pod=\"p\"} 1\n\
             container_memory_working_set_bytes{container=\"a\",namespace=\"n\",pod=\"p\"} 1\n\
             container_cpu_usage_seconds_total{container=\"b\",namespace=\"n\",pod=\"p\"} 1\n",
        );
        assert_eq!(batch, Ok(NodeBatch::default()));
    }

    #[test]
    fn wrong_data_is_an_error_and_never_a_panic() {
        assert!(matches!(decode("node_cpu_usage_seconds_total one\n"), Err(DecodeError::Sample { .. })));
        assert!(matches!(decode(&"x".repeat(20 << 10)), Err(DecodeError::Line(_))));
        let batch = decode(
            "node_cpu_usage_seconds_total -1e300 9223372036854775807\nnode_memory_working_set_bytes NaN\n",
        );
        assert_eq!(batch, Ok(NodeBatch::default()));
        let many: String = (0..MAX_CONTAINERS + 1)
            .map(|number| format!("container_cpu_usage_seconds_total{{container=\"c\",namespace=\"n\",pod=\"{number}\"}} 1\n"))
            .collect();
        assert_eq!(decode(&many), Err(DecodeError::TooManyContainers));
    }
}
