//! Tests of VolumeBinding.

use super::*;
use crate::plugins::tests::reasons;
use crate::testing::{PodBuilder, cluster, node, pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read<K: DeserializeOwned>(object: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object).expect("an object"))
}

fn plugin() -> VolumeBinding {
    VolumeBinding { timeout: Duration::from_secs(600) }
}

fn uses(claims: &[&str]) -> PodBuilder {
    let volumes: Vec<_> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    pod("p").spec(json!({"volumes": volumes}))
}

fn claim(name: &str, spec: Value) -> Arc<PersistentVolumeClaim> {
    let mut object = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}, "spec": spec});
    object["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
    read(object)
}

fn volume(name: &str, zone: &str, size: &str) -> Arc<PersistentVolume> {
    read(json!({
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {
            "storageClassName": "wait", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}},
        },
        "status": {"phase": "Available"},
    }))
}

fn two_zones(provisioner: &str) -> Cluster {
    let mut cluster = cluster([node("a").label("zone", "a"), node("b").label("zone", "b")], []);
    let class = json!({"metadata": {"name": "wait"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.storage_classes.set(read(class));
    cluster.objects.storage_classes.set(read(json!({"metadata": {"name": "now"}, "provisioner": "x"})));
    cluster
}

#[test]
fn unusable_claim_is_named_in_rejection() {
    let mut cluster = two_zones("x");
    let verdicts = |cluster: &Cluster| reasons(&plugin(), cluster, uses(&["c"]));
    assert_eq!(verdicts(&cluster), ["!persistentvolumeclaim \"c\" not found"]);
    cluster.objects.claims.set(claim("c", json!({"storageClassName": "now"})));
    assert_eq!(verdicts(&cluster), ["!pod has unbound immediate PersistentVolumeClaims"]);
    cluster.objects.claims.set(read(json!({"metadata": {"name": "c", "namespace": "default",
        "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}})));
    assert_eq!(verdicts(&cluster), ["!persistentvolumeclaim \"c\" is being deleted"]);
    let ephemeral = pod("p").spec(json!({"volumes": [{"name": "e", "ephemeral": {}}]}));
    assert_eq!(
        reasons(&plugin(), &cluster, ephemeral),
        ["!waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\""]
    );
}

#[test]
fn bound_claim_restricts_nodes() {
    let mut cluster = two_zones("x");
    cluster.objects.claims.set(read(json!({
        "metadata": {"name": "c", "namespace": "default", "annotations": {BIND_COMPLETED: "yes"}},
        "spec": {"volumeName": "v"},
    })));
    let gone = format!("!{REASON_GONE}");
    assert_eq!(reasons(&plugin(), &cluster, uses(&["c"])), [format!("a: {gone}"), format!("b: {gone}")]);
    cluster.objects.volumes.set(volume("v", "b", "1Gi"));
    assert_eq!(reasons(&plugin(), &cluster, uses(&["c"])), [&format!("a: !{REASON_NODE}"), "b: "]);
}

#[test]
fn unbound_claim_reserves_smallest_volume() {
    let mut cluster = two_zones("kubernetes.io/no-provisioner");
    for name in ["c", "d"] {
        cluster
            .objects
            .claims
            .set(claim(name, json!({"storageClassName": "wait", "accessModes": ["ReadWriteOnce"]})));
    }
    let none = format!("!{REASON_BIND}");
    assert_eq!(reasons(&plugin(), &cluster, uses(&["c"])), [format!("a: {none}"), format!("b: {none}")]);
    for volume in [volume("large", "a", "9Gi"), volume("small", "a", "2Gi"), volume("tiny", "a", "1Mi")] {
        cluster.objects.volumes.set(volume);
    }
    assert_eq!(reasons(&plugin(), &cluster, uses(&["c"])), ["a: ", &format!("b: {none}")]);
    let pod = uses(&["c"]).info();
    let reserved = plugin().reserve(&mut cluster, &pod, "a").expect("a volume");
    assert_eq!(reserved.volumes[0].metadata.name.as_deref(), Some("small"));
    assert_eq!(reserved.await_claims, ["c"]);
    // The next pod gets the other volume; then none is left.
    let other = plugin().reserve(&mut cluster, &uses(&["d"]).info(), "a").expect("a volume");
    assert_eq!(other.volumes[0].metadata.name.as_deref(), Some("large"));
    plugin().unreserve(&mut cluster, &reserved);
    let again = plugin().reserve(&mut cluster, &uses(&["d"]).info(), "a").expect("a volume");
    assert_eq!(again.volumes[0].metadata.name.as_deref(), Some("large"), "what is promised is kept");
}

#[test]
fn provisioning_requires_class_topology_and_capacity() {
    let mut cluster = two_zones("driver");
    cluster.objects.claims.set(claim("c", json!({"storageClassName": "wait"})));
    let verdicts = |cluster: &Cluster| reasons(&plugin(), cluster, uses(&["c"]));
    assert_eq!(verdicts(&cluster), ["a: ", "b: "]);
    let reserved = plugin().reserve(&mut cluster, &uses(&["c"]).info(), "b").expect("a node");
    let annotations = reserved.claims[0].metadata.annotations.as_ref().expect("annotations");
    assert_eq!(annotations[SELECTED_NODE], "b");
    assert_eq!(verdicts(&cluster), [&format!("a: !{REASON_BIND}"), "b: "], "the order is out");
    plugin().unreserve(&mut cluster, &reserved);

    cluster
        .objects
        .csi_drivers
        .set(read(json!({"metadata": {"name": "driver"}, "spec": {"storageCapacity": true}})));
    let full = format!("!{REASON_SPACE}");
    assert_eq!(verdicts(&cluster), [format!("a: {full}"), format!("b: {full}")]);
    cluster.objects.csi_capacities.set(read(json!({"metadata": {"name": "k", "namespace": "x"},
        "storageClassName": "wait", "capacity": "2Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}})));
    assert_eq!(verdicts(&cluster), ["a: ", &format!("b: {full}")]);
    cluster.objects.storage_classes.set(read(json!({"metadata": {"name": "wait"}, "provisioner": "driver",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]})));
    assert_eq!(verdicts(&cluster), [format!("a: !{REASON_BIND}"), format!("b: {full}")]);
}

#[test]
fn migrated_in_tree_volume_requires_driver_labels() {
    let zone = |name: &str, zone: &str| node(name).label("topology.gke.io/zone", zone);
    let mut cluster = cluster([zone("a", "z1"), zone("b", "z2"), zone("old", "z2")], []);
    cluster.objects.claims.set(claim("c", json!({"volumeName": "v"})));
    let bound = json!({"metadata": {"name": "c", "namespace": "default", "uid": "c", "resourceVersion": "1",
        "annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}});
    cluster.objects.claims.set(read(bound));
    cluster.objects.volumes.set(read(json!({
        "metadata": {"name": "v", "resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "z1"}},
        "spec": {"gcePersistentDisk": {"pdName": "d"}},
    })));
    for name in ["a", "b", "old"] {
        let migrated = if name == "old" { "" } else { "kubernetes.io/gce-pd" };
        let annotations = json!({objects::csi_topology::MIGRATED_PLUGINS: migrated});
        let csi_node =
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"drivers": []}});
        cluster.objects.csi_nodes.set(read(csi_node));
    }
    let mut verdicts = reasons(&plugin(), &cluster, uses(&["c"]));
    verdicts.sort();
    assert_eq!(verdicts, ["a: ".to_owned(), format!("b: !{REASON_NODE}"), "old: ".to_owned()]);
}
