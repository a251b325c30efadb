//! Scheduler's view of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::core::v1::{Pod, PodSpec, TopologySpreadConstraint};

use super::affinity::PodTerms;
use super::labels::{Labels, Requirement, Selector};
use super::node_affinity::{Preferred, Required};
use super::resources::{PodRequests, pod_requests};
use super::taints::Toleration;

pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A host port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub address: Box<str>,
    pub protocol: Box<str>,
    pub port: i32,
}

impl HostPort {
    const ANY: &'static str = "0.0.0.0";

    /// Two uses of one port conflict unless they are for different addresses.
    #[must_use]
    pub fn collides(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || *self.address == *Self::ANY || *other.address == *Self::ANY)
    }
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadConstraint {
    pub topology_key: Box<str>,
    pub max_skew: i64,
    pub min_domains: usize,
    pub hard: bool,
    pub selector: Selector,
    /// Skips nodes that the pod's own selector and affinity exclude.
    pub honor_affinity: bool,
    /// Skips nodes with taints that the pod does not tolerate.
    pub honor_taints: bool,
}

impl SpreadConstraint {
    #[must_use]
    pub fn of(constraint: &TopologySpreadConstraint, labels: Option<&BTreeMap<String, String>>) -> Self {
        let own = |key: &String| labels.and_then(|labels| labels.get(key));
        let keys = constraint.match_label_keys.iter().flatten();
        let same = keys.filter_map(|key| Some(Requirement::equals(key, own(key)?)));
        let honors = |policy: &Option<String>, default: bool| match policy.as_deref() {
            Some("Honor") => true,
            Some("Ignore") => false,
            _ => default,
        };
        Self {
            topology_key: constraint.topology_key.as_str().into(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1),
            hard: constraint.when_unsatisfiable == "DoNotSchedule",
            selector: Selector::of(constraint.label_selector.as_ref()).and(same),
            honor_affinity: honors(&constraint.node_affinity_policy, true),
            honor_taints: honors(&constraint.node_taints_policy, false),
        }
    }
}

/// Built once for each version of a pod.
#[derive(Clone, Debug)]
pub struct PodInfo {
    pub pod: Arc<Pod>,
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub labels: Labels,
    pub priority: i32,
    pub requests: PodRequests,
    pub terminating: bool,
    pub host_ports: Box<[HostPort]>,
    pub tolerations: Box<[Toleration]>,
    pub required_nodes: Required,
    pub preferred_nodes: Preferred,
    pub terms: Option<Box<PodTerms>>,
    pub spread: Box<[SpreadConstraint]>,
    /// Claims of the pod's namespace, generic ephemeral volumes included.
    pub claims: Box<[Box<str>]>,
    /// Images of containers, init containers and image volumes, each with its tag.
    pub images: Box<[Box<str>]>,
    pub containers: usize,
}

impl PodInfo {
    #[must_use]
    pub fn new(pod: Arc<Pod>) -> Self {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let metadata = &pod.metadata;
        let labels = metadata.labels.as_ref();
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let spread = spec.topology_spread_constraints.iter().flatten();
        let preferred = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let preferred = preferred
            .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            namespace: namespace.into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
            labels: Labels::of(labels),
            priority: spec.priority.unwrap_or(0),
            requests: pod_requests(&pod),
            terminating: metadata.deletion_timestamp.is_some(),
            host_ports: host_ports(spec),
            tolerations: spec.tolerations.iter().flatten().map(Toleration::of).collect(),
            required_nodes: Required::of(spec),
            preferred_nodes: Preferred::of(preferred),
            terms: PodTerms::of(spec, namespace, labels),
            spread: spread.map(|constraint| SpreadConstraint::of(constraint, labels)).collect(),
            claims: claims(metadata.name.as_deref().unwrap_or_default(), spec),
            images: images(spec),
            containers: spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len),
            pod,
        }
    }

    /// True if another version has the same effect on other pods: nothing that is counted has changed.
    #[must_use]
    pub fn weighs_as(&self, other: &Self) -> bool {
        self.terminating == other.terminating
            && self.labels == other.labels
            && self.requests == other.requests
            && self.host_ports == other.host_ports
            && self.terms == other.terms
            && self.claims == other.claims
    }

    /// Copy of the pod, bound to a node.
    #[must_use]
    pub fn on(&self, node: &str) -> Self {
        let mut pod = Pod::clone(&self.pod);
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        Self { pod: Arc::new(pod), ..self.clone() }
    }

    #[must_use]
    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// Node of a bound pod.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        self.spec()?.node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Node that preemption has nominated.
    #[must_use]
    pub fn nominated_node(&self) -> Option<&str> {
        self.pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
    }

    #[must_use]
    pub fn scheduler_name(&self) -> &str {
        self.spec().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(DEFAULT_SCHEDULER)
    }

    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// True if the pod has finished: it uses no resources.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
}

fn host_ports(spec: &PodSpec) -> Box<[HostPort]> {
    let stay =
        |container: &&objects::core::v1::Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(stay));
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
        let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty());
        Some(HostPort {
            address: address.unwrap_or(HostPort::ANY).into(),
            protocol: protocol.unwrap_or("TCP").into(),
            port: number,
        })
    });
    ports.collect()
}

fn claims(pod: &str, spec: &PodSpec) -> Box<[Box<str>]> {
    let names = spec.volumes.iter().flatten().filter_map(|volume| {
        if let Some(source) = &volume.persistent_volume_claim {
            return Some(source.claim_name.as_str().into());
        }
        volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name).into())
    });
    names.collect()
}

fn images(spec: &PodSpec) -> Box<[Box<str>]> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let images = containers.filter_map(|container| container.image.as_deref());
    let volumes =
        spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    images.chain(volumes).map(normalized_image).collect()
}

/// An image without a tag has the tag `latest`.
#[must_use]
pub fn normalized_image(name: &str) -> Box<str> {
    if name.rfind(':') <= name.rfind('/') { format!("{name}:latest").into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn host_ports_conflict_by_address() {
        let port = |address: &str, protocol: &str, port| HostPort {
            address: address.into(),
            protocol: protocol.into(),
            port,
        };
        for (one, other, expected) in [
            (port("0.0.0.0", "TCP", 80), port("127.0.0.1", "TCP", 80), true),
            (port("127.0.0.2", "TCP", 80), port("127.0.0.1", "TCP", 80), false),
            (port("127.0.0.1", "TCP", 80), port("127.0.0.1", "UDP", 80), false),
            (port("127.0.0.1", "TCP", 80), port("127.0.0.1", "TCP", 81), false),
        ] {
            assert_eq!(one.collides(&other), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn finished_phases_match_vectors() {
        for (phase, finished) in vectors::PHASES {
            let pod =
                json!({"metadata": {"name": "p"}, "spec": {"containers": []}, "status": {"phase": phase}});
            let pod = PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()));
            assert_eq!(pod.is_finished(), finished, "{phase}");
        }
    }

    #[test]
    fn image_without_tag_gets_latest() {
        for (name, expected) in [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("registry:5000/nginx", "registry:5000/nginx:latest"),
            ("a/b@sha256:0", "a/b@sha256:0"),
        ] {
            assert_eq!(&*normalized_image(name), expected);
        }
    }

    #[test]
    fn spread_match_label_keys_use_pod_labels() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"hash": "1"}},
            "spec": {"containers": [], "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "a"}}, "matchLabelKeys": ["hash", "missing"],
            }]},
        }))
        .unwrap();
        let info = PodInfo::new(Arc::new(pod));
        assert!(info.spread[0].selector.matches(&Labels::from([("app", "a"), ("hash", "1")])));
        assert!(!info.spread[0].selector.matches(&Labels::from([("app", "a"), ("hash", "2")])));
        assert!(info.spread[0].hard && info.spread[0].honor_affinity && !info.spread[0].honor_taints);
    }
}
