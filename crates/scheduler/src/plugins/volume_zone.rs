//! VolumeZone: restricts a pod to the zones in the labels of its bound volumes.

use objects::core::v1::PersistentVolume;

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{Cluster, NodeInfo, PodInfo};
use crate::storage::{class_of, is_delayed};

const REASON: &str = "node(s) had no available volume zone";

const KEYS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

pub struct VolumeZone;

/// A volume's label, its current name, and the allowed values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zones {
    key: &'static str,
    current: &'static str,
    values: Vec<String>,
}

fn zones(volume: &PersistentVolume) -> Vec<Zones> {
    let Some(labels) = &volume.metadata.labels else { return Vec::new() };
    let read = |(key, current): &(&'static str, &'static str)| {
        let values: Vec<String> =
            labels.get(*key)?.split("__").map(|value| value.trim().to_owned()).collect();
        // An empty part makes the label invalid, and it is ignored.
        (!values.iter().any(String::is_empty)).then_some(Zones { key, current, values })
    };
    KEYS.iter().filter_map(read).collect()
}

#[derive(Clone)]
struct VolumeZoneFilter(Vec<Zones>);

impl<'a> Filter<'a> for VolumeZoneFilter {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if !KEYS.iter().any(|(key, _)| node.labels.get(key).is_some()) {
            return Ok(());
        }
        let allowed = |zones: &Zones| {
            let value = node.labels.get(zones.key).or_else(|| node.labels.get(zones.current));
            value.is_some_and(|value| zones.values.iter().any(|own| own == value))
        };
        if self.0.iter().all(allowed) { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl VolumeZone {
    fn gather(cycle: Cycle<'_>) -> Result<Vec<Zones>, String> {
        let objects = &cycle.cluster.objects;
        let volumes = cycle.pod.spec().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut all = Vec::new();
        for name in
            volumes.iter().filter_map(|volume| Some(&volume.persistent_volume_claim.as_ref()?.claim_name))
        {
            let claim = objects
                .claims
                .get(&cycle.pod.namespace, name)
                .ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
            if volume.is_empty() {
                let class = class_of(claim);
                if class.is_empty() {
                    return Err("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
                }
                let class = objects
                    .storage_classes
                    .get("", class)
                    .ok_or_else(|| format!("storageclass.storage.k8s.io {class:?} not found"))?;
                if is_delayed(class) {
                    continue;
                }
                return Err("PersistentVolume had no name".to_owned());
            }
            let volume = objects
                .volumes
                .get("", volume)
                .ok_or_else(|| format!("persistentvolume {volume:?} not found"))?;
            all.extend(zones(volume));
        }
        Ok(all)
    }
}

impl Plugin for VolumeZone {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if cycle.pod.claims.is_empty() {
            return PreFilter::Skip;
        }
        match Self::gather(cycle) {
            Err(reason) => PreFilter::Reject(Rejection::unresolvable(reason)),
            Ok(zones) if zones.is_empty() => PreFilter::Skip,
            Ok(zones) => PreFilter::Check(Box::new(VolumeZoneFilter(zones))),
        }
    }

    fn interests(&self) -> Actions {
        Actions::CLASS_ADD
            .or(Actions::NODE_ADD)
            .or(Actions::NODE_LABEL)
            .or(Actions::CLAIM_ADD)
            .or(Actions::CLAIM_UPDATE)
            .or(Actions::VOLUME_ADD)
            .or(Actions::VOLUME_UPDATE)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Class(class) => is_delayed(class),
            Changed::Claim(claim) => {
                claim.metadata.namespace.as_deref() == Some(&*pod.namespace)
                    && pod.claims.iter().any(|name| claim.metadata.name.as_deref() == Some(&**name))
            }
            Changed::Volume { old: Some(old), new } => zones(old) != zones(new),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::reasons;
    use crate::testing::{cluster, node, pod};
    use serde_json::{Value, json};
    use std::sync::Arc;

    #[test]
    fn zone_labels_of_volume_restrict_nodes() {
        let nodes = || {
            [
                node("a").label("topology.kubernetes.io/zone", "a"),
                node("b").label("topology.kubernetes.io/zone", "b"),
                node("nowhere").no_labels(),
            ]
        };
        let uses = || {
            let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
            pod("p").spec(json!({"volumes": [volume]}))
        };
        let away = format!("!{REASON}");
        for (labels, expected) in [
            (json!({"topology.kubernetes.io/zone": "a"}), ["a: ".to_owned(), format!("b: {away}")]),
            (
                json!({"failure-domain.beta.kubernetes.io/zone": "b"}),
                [format!("a: {away}"), "b: ".to_owned()],
            ),
            (json!({"topology.kubernetes.io/zone": "a__b"}), ["a: ".to_owned(), "b: ".to_owned()]),
            (json!({"topology.kubernetes.io/region": "r"}), [format!("a: {away}"), format!("b: {away}")]),
            (json!({}), ["a: ".to_owned(), "b: ".to_owned()]),
        ] {
            let mut cluster = cluster(nodes(), []);
            let claim =
                json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"volumeName": "v"}});
            cluster.objects.claims.set(Arc::new(serde_json::from_value(claim).expect("a claim")));
            let volume: Value = json!({"metadata": {"name": "v", "labels": labels}});
            cluster.objects.volumes.set(Arc::new(serde_json::from_value(volume).expect("a volume")));
            assert_eq!(reasons(&VolumeZone, &cluster, uses())[..2], expected, "{labels}");
        }
    }
}
