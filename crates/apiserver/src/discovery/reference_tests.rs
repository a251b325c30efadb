//! Compares every discovery document with those of a stock Kubernetes API server.

use super::*;
use api::resources::RESOURCES;

fn discovery() -> Discovery {
    Discovery::new(built_in(RESOURCES).into_iter().map(Arc::new), "127.0.0.1:6443")
}

fn value(document: &Document) -> Value {
    serde_json::from_slice(&document.json).expect("JSON")
}

#[test]
fn documents_equal_the_reference() {
    let discovery = discovery();
    let mut compared = 0;
    for (name, want) in reference::DISCOVERY.values() {
        let got = match name.as_str() {
            "root-paths" => discovery.root_paths(),
            "api" => discovery.api_versions(),
            "apis" => discovery.group_list(),
            "aggregated-api" => value(discovery.aggregated_core()),
            "aggregated-apis" => value(discovery.aggregated_groups()),
            "api__v1" => discovery.resource_list("", "v1").expect("the core group"),
            other => {
                let parts: Vec<&str> = other.split("__").collect();
                discovery.resource_list(parts[1], parts[2]).unwrap_or_else(|| panic!("{other} is missing"))
            }
        };
        assert_eq!(got, want, "{name}");
        compared += 1;
    }
    assert!(compared >= 27, "only {compared} documents compared");
}

#[test]
fn etag_changes_with_content() {
    let (a, b) = (discovery(), discovery());
    assert_eq!(a.aggregated_groups().etag, b.aggregated_groups().etag);
    assert_ne!(a.aggregated_groups().etag, a.aggregated_core().etag);
    assert_eq!(a.aggregated_core().etag.len(), 128);
    let quoted = format!("\"{}\"", a.aggregated_core().etag);
    assert!(a.aggregated_core().matches(&quoted));
    assert!(!a.aggregated_core().matches(&a.aggregated_core().etag));
}

#[test]
fn group_lists_preferred_version() {
    let group = discovery().group("autoscaling").expect("a built-in group");
    assert_eq!(group["preferredVersion"]["version"], "v2");
    assert_eq!(group["versions"][1]["groupVersion"], "autoscaling/v1");
    assert_eq!(discovery().group("nope"), None);
    assert_eq!(discovery().group(""), None);
}

#[test]
fn added_group_is_sorted_into_discovery() {
    let mut versions = built_in(RESOURCES);
    for version in ["v1beta1", "v1", "v2alpha1"] {
        versions.push(GroupVersion {
            group: "example.com".into(),
            version: version.into(),
            group_priority: 1000,
            version_priority: 100,
            stale: version == "v1beta1",
            resources: Vec::new(),
        });
    }
    let discovery = Discovery::new(versions.into_iter().map(Arc::new), "127.0.0.1:6443");
    let last = discovery.group_list()["groups"].as_array().and_then(|groups| groups.last().cloned());
    let last = last.expect("groups");
    assert_eq!(last["name"], "example.com");
    assert_eq!(last["preferredVersion"]["version"], "v1");
    assert_eq!(last["versions"][2]["version"], "v2alpha1");
    let aggregated = value(discovery.aggregated_groups());
    assert_eq!(aggregated["items"][20]["versions"][1]["freshness"], "Stale");
}

#[test]
fn storage_version_hashes_are_those_of_the_table() {
    // Kinds that Kubernetes stores in another group or version than they are served in.
    let elsewhere = [
        ("CustomResourceDefinition", "apiextensions.k8s.io", "v1beta1"),
        ("MutatingAdmissionPolicy", "admissionregistration.k8s.io", "v1beta1"),
        ("MutatingAdmissionPolicyBinding", "admissionregistration.k8s.io", "v1beta1"),
        ("Event", "", "v1"),
        ("HorizontalPodAutoscaler", "autoscaling", "v2"),
    ];
    for row in RESOURCES.iter().filter(|row| !row.storage_version_hash.is_empty()) {
        let stored = elsewhere.iter().find(|(kind, ..)| *kind == row.kind);
        let (group, version) =
            stored.map_or((row.group, row.version), |(_, group, version)| (group, version));
        assert_eq!(storage_version_hash(group, version, row.kind), row.storage_version_hash, "{}", row.kind);
    }
}
