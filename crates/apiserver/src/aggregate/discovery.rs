//! Reads the discovery documents of extension servers.

use super::target::Target;
use crate::discovery::{ApiResource, ApiSubresource, GroupVersion};
use api::Text;
use api::value::{Fields, texts};
use machinery::Value;

fn text(value: &str) -> Text {
    Text::Owned(value.to_owned())
}

fn all_texts(items: &[Value]) -> Vec<Text> {
    texts(items).map(text).collect()
}

/// The group version of an APIService with these resources.
pub fn group_version(target: &Target, resources: Vec<ApiResource>, stale: bool) -> GroupVersion {
    GroupVersion {
        group: text(&target.group),
        version: text(&target.version),
        group_priority: target.group_priority,
        version_priority: target.version_priority,
        stale,
        resources,
    }
}

/// Resources of the target's group version in an APIGroupDiscoveryList; `None` if it is missing.
pub fn aggregated(document: &Value, target: &Target) -> Option<Vec<ApiResource>> {
    let mut groups = document.items("items").iter();
    let group = groups.find(|group| group.field("metadata").text("name") == target.group)?;
    let version = group.items("versions").iter().find(|version| version.text("version") == target.version)?;
    let kind = |of: &Value| {
        let kind = of.field("responseKind");
        (text(kind.text("group")), text(kind.text("version")), text(kind.text("kind")))
    };
    let resource = |row: &Value| {
        let (group, version, kind_name) = kind(row);
        ApiResource {
            name: text(row.text("resource")),
            singular: text(row.text("singularResource")),
            kind: kind_name,
            namespaced: row.text("scope") == "Namespaced",
            verbs: all_texts(row.items("verbs")),
            short_names: all_texts(row.items("shortNames")),
            categories: all_texts(row.items("categories")),
            storage_version_hash: text(""),
            response: (group, version),
            subresources: row
                .items("subresources")
                .iter()
                .map(|row| {
                    let (group, version, kind) = kind(row);
                    let (name, verbs) = (text(row.text("subresource")), all_texts(row.items("verbs")));
                    ApiSubresource { name, group, version, kind, verbs }
                })
                .collect(),
        }
    };
    Some(version.items("resources").iter().map(resource).collect())
}

/// Resources of an APIResourceList, with their subresources.
pub fn listed(document: &Value, target: &Target) -> Vec<ApiResource> {
    let own = |row: &Value| {
        let or = |value: &str, default: &str| text(if value.is_empty() { default } else { value });
        (or(row.text("group"), &target.group), or(row.text("version"), &target.version))
    };
    let rows = || document.items("resources").iter();
    let mut resources: Vec<ApiResource> = rows()
        .filter(|row| !row.text("name").contains('/'))
        .map(|row| ApiResource {
            name: text(row.text("name")),
            singular: text(row.text("singularName")),
            kind: text(row.text("kind")),
            namespaced: row.flag("namespaced"),
            verbs: all_texts(row.items("verbs")),
            short_names: all_texts(row.items("shortNames")),
            categories: all_texts(row.items("categories")),
            storage_version_hash: text(row.text("storageVersionHash")),
            response: own(row),
            subresources: Vec::new(),
        })
        .collect();
    for row in rows() {
        let Some((parent, name)) = row.text("name").split_once('/') else { continue };
        let Some(resource) = resources.iter_mut().find(|resource| resource.name == parent) else { continue };
        let (group, version) = own(row);
        let (kind, verbs) = (text(row.text("kind")), all_texts(row.items("verbs")));
        resource.subresources.push(ApiSubresource { name: text(name), group, version, kind, verbs });
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn target() -> Target {
        Target::new(&json!({"metadata": {"name": "v1.example.com"}, "spec": {
            "group": "example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
            "service": {"namespace": "ns", "name": "api"}}}))
        .expect("a service")
    }

    #[test]
    fn discovery_aggregated_and_legacy_return_same_resources() {
        let kind = json!({"group": "example.com", "version": "v1", "kind": "Flunder"});
        let new = json!({"items": [{"metadata": {"name": "example.com"}, "versions": [{"version": "v1", "resources": [{
            "resource": "flunders", "singularResource": "flunder", "scope": "Namespaced", "verbs": ["get", "list"],
            "shortNames": ["fl"], "responseKind": kind,
            "subresources": [{"subresource": "status", "verbs": ["get"], "responseKind": kind}]}]}]}]});
        let old = json!({"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
             "verbs": ["get", "list"], "shortNames": ["fl"]},
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "orphan/status", "namespaced": true, "kind": "Orphan", "verbs": ["get"]}]});
        let new = group_version(&target(), aggregated(&new, &target()).expect("its version"), false);
        let old = group_version(&target(), listed(&old, &target()), false);
        assert_eq!(new.resource_list(), old.resource_list());
        assert_eq!(new.aggregated(), old.aggregated());
        assert_eq!(new.resources.len(), 1);
        assert_eq!((new.group_priority, new.version_priority), (2000, 15));
    }

    #[test]
    fn discovery_malformed_document_has_no_resources() {
        for document in [json!(null), json!([]), json!({"items": 3}), json!({"items": [{"versions": {}}]})] {
            assert!(aggregated(&document, &target()).is_none(), "{document}");
            assert!(listed(&document, &target()).is_empty(), "{document}");
        }
    }
}
