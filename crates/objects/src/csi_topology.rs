//! CSI migration: topology of in-tree volumes in the labels of their CSI drivers, and the nodes on which the in-tree
//! plugin is migrated.

use std::collections::BTreeSet;

use crate::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeSpec,
    VolumeNodeAffinity,
};
use crate::storage::v1::CSINode;

/// Annotation of a CSINode: in-tree plugins whose volumes this node uses through CSI drivers.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
/// Separates the zones of a volume that has several, in its label.
const ZONES: &str = "__";

/// An in-tree plugin that is replaced by a CSI driver.
struct InTreePlugin {
    name: &'static str,
    is_of: fn(&PersistentVolumeSpec) -> bool,
    topology: Topology,
}

/// Topology labels of a CSI driver.
#[derive(Clone, Copy)]
enum Topology {
    /// The driver's volumes have no topology, or the translation sets none.
    Unchanged,
    Zone(&'static str),
    ZoneAndRegion(&'static str, &'static str),
}

/// Sorted by name.
const PLUGINS: [InTreePlugin; 7] = [
    InTreePlugin {
        name: "kubernetes.io/aws-ebs",
        is_of: |spec| spec.aws_elastic_block_store.is_some(),
        topology: Topology::Zone("topology.ebs.csi.aws.com/zone"),
    },
    InTreePlugin {
        name: "kubernetes.io/azure-disk",
        is_of: |spec| spec.azure_disk.is_some(),
        topology: Topology::Unchanged,
    },
    InTreePlugin {
        name: "kubernetes.io/azure-file",
        is_of: |spec| spec.azure_file.is_some(),
        topology: Topology::Unchanged,
    },
    InTreePlugin {
        name: "kubernetes.io/cinder",
        is_of: |spec| spec.cinder.is_some(),
        topology: Topology::Zone("topology.cinder.csi.openstack.org/zone"),
    },
    InTreePlugin {
        name: "kubernetes.io/gce-pd",
        is_of: |spec| spec.gce_persistent_disk.is_some(),
        topology: Topology::Zone("topology.gke.io/zone"),
    },
    InTreePlugin {
        name: "kubernetes.io/portworx-volume",
        is_of: |spec| spec.portworx_volume.is_some(),
        topology: Topology::Unchanged,
    },
    InTreePlugin {
        name: "kubernetes.io/vsphere-volume",
        is_of: |spec| spec.vsphere_volume.is_some(),
        topology: Topology::ZoneAndRegion("topology.csi.vmware.com/zone", "topology.csi.vmware.com/region"),
    },
];

fn plugin(volume: &PersistentVolume) -> Option<&'static InTreePlugin> {
    let spec = volume.spec.as_ref()?;
    PLUGINS.iter().find(|plugin| (plugin.is_of)(spec))
}

/// Value of [`MIGRATED_PLUGINS`] of a node whose kubelet uses CSI drivers for all volumes, as since Kubernetes v1.31.
#[must_use]
pub fn migrated_plugins() -> String {
    PLUGINS.map(|plugin| plugin.name).join(",")
}

/// Name of the in-tree plugin of a volume, if a CSI driver replaces it.
#[must_use]
pub fn in_tree_plugin(volume: &PersistentVolume) -> Option<&'static str> {
    plugin(volume).map(|plugin| plugin.name)
}

/// Reports whether a node uses the volumes of an in-tree plugin through its CSI driver.
#[must_use]
pub fn is_migrated_on(plugin: &str, node: Option<&CSINode>) -> bool {
    let annotation = node.and_then(|node| node.metadata.annotations.as_ref()?.get(MIGRATED_PLUGINS));
    annotation.is_some_and(|names| names.split(',').any(|name| name == plugin))
}

/// Affinity of an in-tree volume in the labels of its CSI driver, from its own affinity or its zone labels. `None` if
/// the volume's own affinity applies.
#[must_use]
pub fn translated_affinity(volume: &PersistentVolume) -> Option<VolumeNodeAffinity> {
    let topology = plugin(volume)?.topology;
    if matches!(topology, Topology::Unchanged) {
        return None;
    }
    let mut affinity = volume.spec.as_ref()?.node_affinity.clone().unwrap_or_default();
    let label = |name: &str| volume.metadata.labels.as_ref().and_then(|labels| labels.get(name));
    // Labels of the stable names take precedence over the beta ones, the affinity over the volume's labels.
    let version = (0..2)
        .find(|version| has(&affinity, ZONE[*version]))
        .or_else(|| (0..2).find(|version| label(ZONE[*version]).is_some()))
        .unwrap_or(0);
    let (zone, region) = (ZONE[version], REGION[version]);
    let mut translate = |from: &str, to: &str, values: Vec<&str>| {
        if has_values(&affinity, from) {
            rename(&mut affinity, from, to);
        } else {
            add(&mut affinity, to, &values);
        }
    };
    let of = |name: &str| label(name).map(String::as_str).unwrap_or_default();
    match topology {
        Topology::Unchanged => {}
        Topology::Zone(key) => {
            translate(zone, key, of(zone).split(ZONES).collect());
            if version == 1 && has_values(&affinity, region) {
                rename(&mut affinity, region, REGION[0]);
            }
        }
        Topology::ZoneAndRegion(zone_key, region_key) => {
            translate(zone, zone_key, vec![of(zone)]);
            translate(region, region_key, vec![of(region)]);
        }
    }
    Some(affinity)
}

fn expressions<'a>(
    affinity: &'a VolumeNodeAffinity,
    key: &'a str,
) -> impl Iterator<Item = &'a NodeSelectorRequirement> {
    let terms = affinity.required.iter().flat_map(|required| &required.node_selector_terms);
    terms.flat_map(|term| term.match_expressions.iter().flatten()).filter(move |one| one.key == key)
}

fn has(affinity: &VolumeNodeAffinity, key: &str) -> bool {
    expressions(affinity, key).next().is_some()
}

fn has_values(affinity: &VolumeNodeAffinity, key: &str) -> bool {
    expressions(affinity, key).any(|one| one.values.as_ref().is_some_and(|values| !values.is_empty()))
}

fn terms(affinity: &mut VolumeNodeAffinity) -> impl Iterator<Item = &mut NodeSelectorTerm> {
    affinity.required.iter_mut().flat_map(|required| &mut required.node_selector_terms)
}

fn rename(affinity: &mut VolumeNodeAffinity, from: &str, to: &str) {
    for one in terms(affinity).flat_map(|term| term.match_expressions.iter_mut().flatten()) {
        if one.key == from {
            to.clone_into(&mut one.key);
        }
    }
}

/// Requires one of `values` in every term; nothing if there are none.
fn add(affinity: &mut VolumeNodeAffinity, key: &str, values: &[&str]) {
    let values: BTreeSet<&str> =
        values.iter().map(|value| value.trim()).filter(|value| !value.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let required: &mut NodeSelector = affinity.required.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    let requirement = NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.into_iter().map(str::to_owned).collect()),
    };
    for term in terms(affinity) {
        term.match_expressions.get_or_insert_default().push(requirement.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GA: &str = "topology.kubernetes.io";
    const BETA: &str = "failure-domain.beta.kubernetes.io";

    /// The terms of a volume's translated affinity, each as `key in values` in its order.
    fn translated(source: Value, labels: Value, terms: Value) -> Option<Vec<Vec<String>>> {
        let mut spec = source;
        if !terms.is_null() {
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        }
        let object = json!({"metadata": {"name": "pv", "labels": labels}, "spec": spec});
        let volume: PersistentVolume = serde_json::from_value(object).expect("a volume");
        let required = translated_affinity(&volume)?.required.unwrap_or_default();
        let text = |one: &NodeSelectorRequirement| {
            format!("{} {} {}", one.key, one.operator, one.values.clone().unwrap_or_default().join(","))
        };
        let term = |term: &NodeSelectorTerm| term.match_expressions.iter().flatten().map(text).collect();
        Some(required.node_selector_terms.iter().map(term).collect())
    }

    fn term(expressions: &[(&str, &str, &[&str])]) -> Value {
        let one = |(host, what, values): &(&str, &str, &[&str])| json!({"key": format!("{host}/{what}"), "operator": "In", "values": values});
        json!({"matchExpressions": expressions.iter().map(one).collect::<Vec<_>>()})
    }

    fn labels(pairs: &[(&str, &str, &str)]) -> Value {
        pairs.iter().map(|(host, what, value)| (format!("{host}/{what}"), json!(value))).collect()
    }

    /// Cases of Kubernetes' csi-translation-lib.
    #[test]
    fn zone_affinity_and_labels_translate_to_driver_keys() {
        let disk = || json!({"gcePersistentDisk": {"pdName": "d"}});
        let none = || json!({});
        for (name, labels, terms, want) in [
            ("nothing", none(), Value::Null, vec![]),
            (
                "stable zone label",
                labels(&[(GA, "zone", "us-east1-a"), (GA, "region", "us-east1")]),
                Value::Null,
                vec![vec!["topology.gke.io/zone In us-east1-a"]],
            ),
            (
                "beta zone label of several zones",
                labels(&[(BETA, "zone", "us-central1-c__us-central1-a__us-central1-a")]),
                Value::Null,
                vec![vec!["topology.gke.io/zone In us-central1-a,us-central1-c"]],
            ),
            (
                "zone of the affinity counts more than the label",
                labels(&[(GA, "zone", "us-east1-a")]),
                json!([term(&[(GA, "zone", &["us-east1-c"])])]),
                vec![vec!["topology.gke.io/zone In us-east1-c"]],
            ),
            (
                "label is added to terms about something else",
                labels(&[(GA, "zone", "us-east1-a")]),
                json!([term(&[("x", "y", &["1"])]), term(&[("x", "z", &["2"])])]),
                vec![
                    vec!["x/y In 1", "topology.gke.io/zone In us-east1-a"],
                    vec!["x/z In 2", "topology.gke.io/zone In us-east1-a"],
                ],
            ),
            (
                "beta zone and region",
                none(),
                json!([term(&[(BETA, "zone", &["us-east1-a"]), (BETA, "region", &["us-east1"])])]),
                vec![vec!["topology.gke.io/zone In us-east1-a", "topology.kubernetes.io/region In us-east1"]],
            ),
            (
                "stable region stays",
                none(),
                json!([term(&[(GA, "zone", &["us-east1-a"]), (GA, "region", &["us-east1"])])]),
                vec![vec!["topology.gke.io/zone In us-east1-a", "topology.kubernetes.io/region In us-east1"]],
            ),
            ("empty label", labels(&[(GA, "zone", "")]), Value::Null, vec![]),
        ] {
            let want: Vec<Vec<String>> =
                want.into_iter().map(|term| term.into_iter().map(str::to_owned).collect()).collect();
            assert_eq!(translated(disk(), labels, terms), Some(want), "{name}");
        }
    }

    #[test]
    fn affinity_keys_depend_on_driver() {
        let all = labels(&[(GA, "zone", "z"), (GA, "region", "r")]);
        for (source, want) in [
            (
                json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}),
                Some(vec!["topology.ebs.csi.aws.com/zone In z"]),
            ),
            (json!({"cinder": {"volumeID": "c"}}), Some(vec!["topology.cinder.csi.openstack.org/zone In z"])),
            (
                json!({"vsphereVolume": {"volumePath": "v"}}),
                Some(vec!["topology.csi.vmware.com/zone In z", "topology.csi.vmware.com/region In r"]),
            ),
            (json!({"azureDisk": {"diskName": "n", "diskURI": "/u"}}), None),
            (json!({"portworxVolume": {"volumeID": "p"}}), None),
            (json!({"hostPath": {"path": "/x"}}), None),
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), None),
        ] {
            let want = want.map(|term| vec![term.into_iter().map(str::to_owned).collect::<Vec<_>>()]);
            assert_eq!(translated(source.clone(), all.clone(), Value::Null), want, "{source}");
        }
        let zones = labels(&[(GA, "zone", "a__b")]);
        let vsphere = json!({"vsphereVolume": {"volumePath": "v"}});
        let want = Some(vec![vec!["topology.csi.vmware.com/zone In a__b".to_owned()]]);
        assert_eq!(translated(vsphere, zones, Value::Null), want);
    }

    #[test]
    fn migrated_plugins_are_read_from_csi_node_annotation() {
        let node = |annotation: Value| -> CSINode {
            let metadata = json!({"name": "n", "annotations": {MIGRATED_PLUGINS: annotation}});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"drivers": []}})).expect("a node")
        };
        let all = node(json!(migrated_plugins()));
        assert!(PLUGINS.iter().all(|plugin| is_migrated_on(plugin.name, Some(&all))));
        assert!(PLUGINS.is_sorted_by_key(|plugin| plugin.name));
        let one = node(json!("kubernetes.io/gce-pd"));
        assert!(is_migrated_on("kubernetes.io/gce-pd", Some(&one)));
        assert!(!is_migrated_on("kubernetes.io/aws-ebs", Some(&one)));
        assert!(!is_migrated_on("kubernetes.io/gce", Some(&one)));
        assert!(!is_migrated_on("kubernetes.io/cinder", Some(&node(json!("")))));
        assert!(!is_migrated_on("kubernetes.io/cinder", None));
    }
}
