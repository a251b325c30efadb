//! VolumeRestrictions: disks that pods of a node cannot share, and claims that only one pod can use at a time.

use objects::core::v1::{Pod, Volume};

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{Cluster, NodeInfo, PodInfo};

const REASON_DISK: &str = "node(s) had no available disk";
const REASON_ONE_POD: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

pub struct VolumeRestrictions;

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
}

fn claim_names(pod: &Pod) -> impl Iterator<Item = &str> {
    volumes(pod)
        .iter()
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

fn is_exclusive(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

fn read_only(flag: Option<bool>) -> bool {
    flag.unwrap_or(false)
}

/// True if two volumes refer to one disk that they cannot share on a node.
fn collide(one: &Volume, other: &Volume) -> bool {
    let shared = |one: Option<bool>, other: Option<bool>| read_only(one) && read_only(other);
    let both = (&one.gce_persistent_disk, &other.gce_persistent_disk);
    if let (Some(one), Some(other)) = both {
        return one.pd_name == other.pd_name && !shared(one.read_only, other.read_only);
    }
    let both = (&one.aws_elastic_block_store, &other.aws_elastic_block_store);
    if let (Some(one), Some(other)) = both {
        return one.volume_id == other.volume_id;
    }
    if let (Some(one), Some(other)) = (&one.iscsi, &other.iscsi) {
        return one.iqn == other.iqn && !shared(one.read_only, other.read_only);
    }
    if let (Some(one), Some(other)) = (&one.rbd, &other.rbd) {
        let pool = |pool: &Option<String>| pool.clone().unwrap_or_else(|| "rbd".to_owned());
        return one.monitors.iter().any(|monitor| other.monitors.contains(monitor))
            && pool(&one.pool) == pool(&other.pool)
            && one.image == other.image
            && !shared(one.read_only, other.read_only);
    }
    false
}

fn pods_collide(pod: &Pod, other: &Pod) -> bool {
    volumes(pod)
        .iter()
        .filter(|volume| is_exclusive(volume))
        .any(|volume| volumes(other).iter().any(|held| collide(volume, held)))
}

#[derive(Clone)]
struct VolumeRestrictionsFilter<'a> {
    pod: &'a PodInfo,
    exclusive: bool,
    /// ReadWriteOncePod claims of this pod.
    alone: Vec<&'a str>,
    /// Number of uses of those claims by pods.
    in_use: i64,
}

impl VolumeRestrictionsFilter<'_> {
    fn change(&mut self, pod: &PodInfo, by: i64) {
        if pod.namespace == self.pod.namespace {
            let uses = claim_names(&pod.pod).filter(|name| self.alone.contains(name)).count();
            self.in_use += by * i64::try_from(uses).unwrap_or(0);
        }
    }
}

impl<'a> Filter<'a> for VolumeRestrictionsFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if self.exclusive && node.pods.iter().any(|other| pods_collide(&self.pod.pod, &other.pod)) {
            return Err(Rejection::unschedulable(REASON_DISK));
        }
        if self.in_use > 0 {
            return Err(Rejection::unschedulable(REASON_ONE_POD));
        }
        Ok(())
    }

    fn add(&mut self, pod: &PodInfo, _: &NodeInfo) {
        self.change(pod, 1);
    }

    fn remove(&mut self, pod: &PodInfo, _: &NodeInfo) {
        self.change(pod, -1);
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for VolumeRestrictions {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let pod = &cycle.pod.pod;
        if volumes(pod).is_empty() {
            return PreFilter::Skip;
        }
        let mut alone = Vec::new();
        for name in claim_names(pod) {
            let Some(claim) = cycle.cluster.objects.claims.get(&cycle.pod.namespace, name) else {
                let reason = format!("persistentvolumeclaim {name:?} not found");
                return PreFilter::Reject(Rejection::unresolvable(reason));
            };
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
            if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                alone.push(name);
            }
        }
        let used =
            alone.iter().filter(|name| cycle.cluster.claim_is_in_use(&cycle.pod.namespace, name)).count();
        let exclusive = volumes(pod).iter().any(is_exclusive);
        if !exclusive && used == 0 {
            return PreFilter::Skip;
        }
        let in_use = i64::try_from(used).unwrap_or(i64::MAX);
        PreFilter::Check(Box::new(VolumeRestrictionsFilter { pod: cycle.pod, exclusive, alone, in_use }))
    }

    fn interests(&self) -> Actions {
        Actions::POD_DELETE.or(Actions::NODE_ADD).or(Actions::CLAIM_ADD)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Pod { old: Some(gone), .. } => {
                gone.namespace == pod.namespace
                    && (pods_collide(&pod.pod, &gone.pod)
                        || claim_names(&gone.pod).any(|name| claim_names(&pod.pod).any(|own| own == name)))
            }
            Changed::Claim(claim) => {
                claim.metadata.namespace.as_deref() == Some(&*pod.namespace)
                    && claim_names(&pod.pod).any(|name| claim.metadata.name.as_deref() == Some(name))
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
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn with(name: &str, source: Value) -> PodBuilder {
        let mut volume = source;
        volume["name"] = json!("v");
        pod(name).spec(json!({"volumes": [volume]}))
    }

    #[test]
    fn conflicting_disk_rejects_node() {
        let gce = |read_only: bool| json!({"gcePersistentDisk": {"pdName": "d", "readOnly": read_only}});
        let rbd = |monitor: &str| json!({"rbd": {"monitors": [monitor], "image": "i"}});
        for (held, wanted, taken) in [
            (gce(false), gce(false), true),
            (gce(true), gce(true), false),
            (gce(true), gce(false), true),
            (
                json!({"awsElasticBlockStore": {"volumeID": "v"}}),
                json!({"awsElasticBlockStore": {"volumeID": "v"}}),
                true,
            ),
            (rbd("a"), rbd("a"), true),
            (rbd("a"), rbd("b"), false),
            (gce(false), rbd("a"), false),
        ] {
            let cluster = cluster([node("a"), node("b")], [with("x", held.clone()).on("a")]);
            let verdicts = reasons(&VolumeRestrictions, &cluster, with("p", wanted.clone()));
            let expected = if taken { format!("a: {REASON_DISK}") } else { "a: ".to_owned() };
            assert_eq!(verdicts, [expected.as_str(), "b: "], "{held} {wanted}");
        }
    }

    #[test]
    fn read_write_once_pod_claim_in_use_rejects_pod() {
        let uses = |name: &str| with(name, json!({"persistentVolumeClaim": {"claimName": "c"}}));
        let mut cluster = cluster([node("a")], [uses("x").on("a")]);
        assert_eq!(
            reasons(&VolumeRestrictions, &cluster, uses("p")),
            ["!persistentvolumeclaim \"c\" not found"]
        );
        let claim = |mode: &str| {
            let object =
                json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"accessModes": [mode]}});
            Arc::new(serde_json::from_value(object).expect("a claim"))
        };
        cluster.objects.claims.set(claim("ReadWriteOnce"));
        assert_eq!(reasons(&VolumeRestrictions, &cluster, uses("p")), ["a: "]);
        cluster.objects.claims.set(claim("ReadWriteOncePod"));
        assert_eq!(reasons(&VolumeRestrictions, &cluster, uses("p")), [format!("a: {REASON_ONE_POD}")]);
        cluster.remove_pod("x");
        assert_eq!(reasons(&VolumeRestrictions, &cluster, uses("p")), ["a: "]);
    }
}
