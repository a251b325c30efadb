//! Pod spec fields of disabled features: they are dropped on write, unless the old object has them.

use crate::value::Fields;
use machinery::Value;
use std::sync::atomic::{AtomicBool, Ordering};

/// Feature gate of ClusterTrustBundle projections, global to the process.
static CLUSTER_TRUST_BUNDLES: AtomicBool = AtomicBool::new(false);

/// Sets the feature gate of ClusterTrustBundle projections.
pub fn set_cluster_trust_bundles(on: bool) {
    CLUSTER_TRUST_BUNDLES.store(on, Ordering::Relaxed);
}

/// Drops fields of disabled features from a pod spec. `old` is the stored spec ([`Value::Null`] on create).
pub fn drop_disabled_fields(spec: &mut Value, old: &Value) {
    let off = match CLUSTER_TRUST_BUNDLES.load(Ordering::Relaxed) {
        true => &["podCertificate"][..],
        false => &["clusterTrustBundle", "podCertificate"],
    };
    for source in off.iter().copied().filter(|source| !projects(old, source)) {
        drop_projection(spec, source);
    }
    if !old.has("schedulingGroup") {
        spec.unset("schedulingGroup");
    }
    if !stop_signals_in_use(old) {
        drop_stop_signals(spec);
    }
}

/// Drops fields of disabled features from a pod status.
pub fn drop_disabled_status_fields(status: &mut Value, old: &Value) {
    if !old.has("nodeAllocatableResourceClaimStatuses") {
        status.unset("nodeAllocatableResourceClaimStatuses");
    }
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let in_use = lists.iter().any(|list| {
        old.items(list).iter().any(|s| s.items("volumeMounts").iter().any(|mount| mount.has("volumeStatus")))
    });
    if in_use {
        return;
    }
    for list in lists {
        for container in status.items_mut(list) {
            for mount in container.items_mut("volumeMounts") {
                mount.unset("volumeStatus");
            }
        }
    }
}

fn projects(spec: &Value, source: &str) -> bool {
    spec.items("volumes")
        .iter()
        .any(|volume| volume.field("projected").items("sources").iter().any(|s| s.has(source)))
}

fn drop_projection(spec: &mut Value, source: &str) {
    for volume in spec.items_mut("volumes") {
        if let Some(projected) = volume.field_mut("projected") {
            for projection in projected.items_mut("sources") {
                projection.unset(source);
            }
        }
    }
}

fn stop_signals_in_use(spec: &Value) -> bool {
    super::container_lists(spec).any(|(_, list)| list.iter().any(|c| c.field("lifecycle").has("stopSignal")))
}

fn drop_stop_signals(spec: &mut Value) {
    for list in super::CONTAINER_LISTS {
        for container in spec.items_mut(list) {
            let Some(lifecycle) = container.field_mut("lifecycle") else { continue };
            // An old empty lifecycle is retained.
            if lifecycle.unset("stopSignal").is_some() && crate::value::is_zero(lifecycle) {
                container.unset("lifecycle");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn disabled_fields_are_dropped_unless_in_use() {
        let spec = json!({
            "volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {}}]}}],
            "containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGTERM"}}, {"lifecycle": {}}],
            "schedulingGroup": {},
        });
        let mut new = spec.clone();
        drop_disabled_fields(&mut new, &Value::Null);
        assert_eq!(
            new,
            json!({"volumes": [{"name": "v", "projected": {"sources": [{}]}}], "containers": [{"name": "c"}, {"lifecycle": {}}]})
        );
        let mut new = spec.clone();
        drop_disabled_fields(&mut new, &spec);
        assert_eq!(new, spec);
    }
}
