//! Scheduler's view of a node, with its pods.

use std::collections::HashMap;
use std::sync::Arc;

use objects::core::v1::Node;

use super::labels::Labels;
use super::pod::{HostPort, PodInfo};
use super::resources::Resources;
use super::taints::Taint;

/// A node, its pods, and their sums. Updated pod by pod.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// Index in the cluster's list; indexes are vectors over these.
    pub slot: usize,
    pub name: Arc<str>,
    /// `None` while pods name a missing node.
    pub node: Option<Arc<Node>>,
    pub labels: Labels,
    pub taints: Box<[Taint]>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub max_pods: i64,
    pub requested: Resources,
    pub non_zero_milli_cpu: i64,
    pub non_zero_memory: i64,
    pub ports: Vec<HostPort>,
    pub pods: Vec<Arc<PodInfo>>,
    /// Images on the node by each of their names, with their sizes.
    pub images: HashMap<Box<str>, i64>,
}

impl NodeInfo {
    #[must_use]
    pub fn new(slot: usize, name: &str) -> Self {
        Self { slot, name: name.into(), ..Self::default() }
    }

    /// Updates the node; its pods stay.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        self.labels = Labels::of(node.metadata.labels.as_ref());
        self.taints =
            spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().filter_map(Taint::of).collect();
        self.unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        self.allocatable = allocatable.map(Resources::of).unwrap_or_default();
        self.max_pods = self.allocatable.scalar("pods").unwrap_or(0);
        self.allocatable.scalar.retain(|(name, _)| &**name != "pods");
        self.images.clear();
        for image in status.and_then(|status| status.images.as_ref()).into_iter().flatten() {
            for name in image.names.iter().flatten() {
                self.images.insert(name.as_str().into(), image.size_bytes.unwrap_or(0));
            }
        }
        self.node = Some(node);
    }

    /// Removes the node but keeps its pods, which may outlive it for a while.
    pub fn clear_node(&mut self) {
        let pods = std::mem::take(&mut self.pods);
        *self = Self { slot: self.slot, name: Arc::clone(&self.name), ..Self::default() };
        for pod in pods {
            self.add(pod);
        }
    }

    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests.exact);
        self.non_zero_milli_cpu += pod.requests.non_zero.milli_cpu;
        self.non_zero_memory += pod.requests.non_zero.memory;
        self.ports.extend_from_slice(&pod.host_ports);
        self.pods.push(pod);
    }

    /// Replaces a pod by a new version with the same resources.
    pub fn replace(&mut self, pod: &Arc<PodInfo>) {
        if let Some(own) = self.pods.iter_mut().find(|own| own.uid == pod.uid) {
            *own = Arc::clone(pod);
        }
    }

    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|pod| &*pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests.exact);
        self.non_zero_milli_cpu -= pod.requests.non_zero.milli_cpu;
        self.non_zero_memory -= pod.requests.non_zero.memory;
        for port in &pod.host_ports {
            if let Some(at) = self.ports.iter().position(|own| own == port) {
                self.ports.swap_remove(at);
            }
        }
        Some(pod)
    }

    /// Zone by which Kubernetes alternates between nodes.
    #[must_use]
    pub fn zone(&self) -> (&str, &str) {
        let either =
            |new: &str, old: &str| self.labels.get(new).or_else(|| self.labels.get(old)).unwrap_or("");
        (
            either("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
            either("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
        )
    }
}
