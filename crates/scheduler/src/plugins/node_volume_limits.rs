//! NodeVolumeLimits: limits the volumes of a CSI driver per node to the driver's own limit.

use std::collections::{HashMap, HashSet};

use objects::core::v1::PersistentVolumeClaim;
use objects::csi_migration::csi_source;
use objects::csi_topology::{in_tree_plugin, is_migrated_on};
use objects::storage::v1::CSINode;

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{Cluster, NodeInfo, PodInfo};
use crate::storage::class_of;

const REASON: &str = "node(s) exceed max volume count";

pub struct NodeVolumeLimits;

/// A volume identified by its driver's handle.
#[derive(Clone, PartialEq, Eq, Hash)]
struct DriverVolume {
    driver: String,
    handle: String,
    /// In-tree plugin of a migrated volume; the driver counts it on nodes that use the driver instead.
    plugin: Option<&'static str>,
}

fn driver_volume(cluster: &Cluster, claim: &PersistentVolumeClaim) -> Option<DriverVolume> {
    let volume =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    if let Some(volume) = volume.and_then(|name| cluster.objects.volumes.get("", name)) {
        let csi = csi_source(volume)?;
        let plugin = in_tree_plugin(volume);
        return Some(DriverVolume { driver: csi.driver.clone(), handle: csi.volume_handle.clone(), plugin });
    }
    // Unbound: its class names the driver, and the claim stands for the volume.
    let class = cluster.objects.storage_classes.get("", class_of(claim))?;
    let metadata = &claim.metadata;
    let handle = format!(
        "unprovisioned {}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    );
    Some(DriverVolume { driver: class.provisioner.clone(), handle, plugin: None })
}

fn of_pod(cluster: &Cluster, pod: &PodInfo, into: &mut HashSet<DriverVolume>) {
    let claims = pod.claims.iter().filter_map(|name| cluster.objects.claims.get(&pod.namespace, name));
    into.extend(claims.filter_map(|claim| driver_volume(cluster, claim)));
}

fn limits(node: &CSINode) -> HashMap<&str, i64> {
    let drivers = node.spec.drivers.iter();
    drivers
        .filter_map(|driver| Some((driver.name.as_str(), driver.allocatable.as_ref()?.count?.into())))
        .collect()
}

#[derive(Clone)]
struct NodeVolumeLimitsFilter<'a> {
    cluster: &'a Cluster,
    wanted: HashSet<DriverVolume>,
}

impl<'a> Filter<'a> for NodeVolumeLimitsFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let objects = &self.cluster.objects;
        let Some(csi_node) = objects.csi_nodes.get("", &node.name) else { return Ok(()) };
        let limits = limits(csi_node);
        if limits.is_empty() {
            return Ok(());
        }
        let mut held = HashSet::new();
        for pod in &node.pods {
            of_pod(self.cluster, pod, &mut held);
        }
        let on_node = objects.attachments.all().filter(|attachment| attachment.spec.node_name == *node.name);
        for attachment in on_node {
            let volume = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| objects.volumes.get("", name));
            if let Some(volume) = volume
                && let Some(csi) = csi_source(volume)
            {
                let (driver, handle) = (attachment.spec.attacher.clone(), csi.volume_handle.clone());
                held.insert(DriverVolume { driver, handle, plugin: in_tree_plugin(volume) });
            }
        }
        for (driver, limit) in limits {
            let count = |volumes: &mut dyn Iterator<Item = &DriverVolume>| {
                let counts = |volume: &&DriverVolume| {
                    let is_migrated = |plugin| is_migrated_on(plugin, Some(csi_node));
                    volume.driver == driver && volume.plugin.is_none_or(is_migrated)
                };
                i64::try_from(volumes.filter(counts).count()).unwrap_or(i64::MAX)
            };
            let more = count(&mut self.wanted.difference(&held));
            if more > 0 && count(&mut held.iter()) + more > limit {
                return Err(Rejection::unschedulable(REASON));
            }
        }
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodeVolumeLimits {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let objects = &cycle.cluster.objects;
        for name in &cycle.pod.claims {
            if objects.claims.get(&cycle.pod.namespace, name).is_none() {
                let namespace = &cycle.pod.namespace;
                let reason =
                    format!("looking up PVC {namespace}/{name}: persistentvolumeclaim \"{name}\" not found");
                return PreFilter::Reject(Rejection::unresolvable(reason));
            }
        }
        let mut wanted = HashSet::new();
        of_pod(cycle.cluster, cycle.pod, &mut wanted);
        if wanted.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Check(Box::new(NodeVolumeLimitsFilter { cluster: cycle.cluster, wanted }))
    }

    fn interests(&self) -> Actions {
        Actions::CSI_NODE_ADD
            .or(Actions::CSI_NODE_UPDATE)
            .or(Actions::POD_DELETE)
            .or(Actions::CLAIM_ADD)
            .or(Actions::ATTACHMENT_DELETE)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Pod { old: Some(gone), .. } => {
                !gone.claims.is_empty() && (gone.node_name().is_some() || gone.nominated_node().is_some())
            }
            Changed::Claim(claim) => {
                claim.metadata.namespace.as_deref() == Some(&*pod.namespace)
                    && pod.claims.iter().any(|name| claim.metadata.name.as_deref() == Some(&**name))
            }
            Changed::CsiNode { old: Some(old), new } => {
                let before = limits(old);
                limits(new).iter().any(|(driver, limit)| *limit > before.get(driver).copied().unwrap_or(0))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::reasons;
    use crate::testing::{PodBuilder, cluster, node, pod};
    use serde_json::json;
    use std::sync::Arc;

    fn uses(name: &str, claims: &[&str]) -> PodBuilder {
        let volumes: Vec<_> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        pod(name).spec(json!({"volumes": volumes}))
    }

    #[test]
    fn volume_limit_of_driver_rejects_node() {
        let mut cluster = cluster([node("a")], [uses("x", &["one"]).on("a")]);
        for name in ["one", "two", "three"] {
            let claim =
                json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"volumeName": name}});
            cluster.objects.claims.set(Arc::new(serde_json::from_value(claim).expect("a claim")));
            let volume =
                json!({"metadata": {"name": name}, "spec": {"csi": {"driver": "d", "volumeHandle": name}}});
            cluster.objects.volumes.set(Arc::new(serde_json::from_value(volume).expect("a volume")));
        }
        assert_eq!(reasons(&NodeVolumeLimits, &cluster, uses("p", &["two", "three"])), ["a: "]);
        let limit = json!({"metadata": {"name": "a"}, "spec": {"drivers": [{"name": "d", "nodeID": "a", "allocatable": {"count": 2}}]}});
        cluster.objects.csi_nodes.set(Arc::new(serde_json::from_value(limit).expect("a CSINode")));
        let full = format!("a: {REASON}");
        for (claims, expected) in [
            (&["two"][..], "a: "),
            (&["two", "three"][..], full.as_str()),
            // An already attached volume counts once.
            (&["one", "two"][..], "a: "),
            (&[][..], "a: "),
        ] {
            assert_eq!(reasons(&NodeVolumeLimits, &cluster, uses("p", claims)), [expected], "{claims:?}");
        }
        let attached = json!({"metadata": {"name": "va"}, "spec": {"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "three"}}});
        cluster.objects.attachments.set(Arc::new(serde_json::from_value(attached).expect("an attachment")));
        assert_eq!(reasons(&NodeVolumeLimits, &cluster, uses("p", &["two"])), [full]);
    }

    #[test]
    fn migrated_in_tree_volumes_count_for_their_driver() {
        let mut cluster = cluster([node("a"), node("old")], []);
        let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"volumeName": "v"}});
        cluster.objects.claims.set(Arc::new(serde_json::from_value(claim).expect("a claim")));
        let volume = json!({"metadata": {"name": "v"}, "spec": {"gcePersistentDisk": {"pdName": "d"}}});
        cluster.objects.volumes.set(Arc::new(serde_json::from_value(volume).expect("a volume")));
        for (name, migrated) in
            [("a", "kubernetes.io/gce-pd,kubernetes.io/cinder"), ("old", "kubernetes.io/cinder")]
        {
            let annotations = json!({objects::csi_topology::MIGRATED_PLUGINS: migrated});
            let drivers =
                json!([{"name": "pd.csi.storage.gke.io", "nodeID": name, "allocatable": {"count": 0}}]);
            let csi_node =
                json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"drivers": drivers}});
            cluster.objects.csi_nodes.set(Arc::new(serde_json::from_value(csi_node).expect("a CSINode")));
        }
        let mut verdicts = reasons(&NodeVolumeLimits, &cluster, uses("p", &["c"]));
        verdicts.sort();
        assert_eq!(verdicts, [format!("a: {REASON}"), "old: ".to_owned()]);
    }
}
