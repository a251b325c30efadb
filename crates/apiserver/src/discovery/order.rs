//! Discovery documents as JSON with the members in the order of Kubernetes' types: scripts select text from them.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

/// Members of documents: `APIVersions`, `APIGroupList`, `APIGroup`, `APIResourceList`, `version.Info`.
const DOCUMENT: &[&str] = &[
    "kind",
    "apiVersion",
    "groupVersion",
    "name",
    "groups",
    "resources",
    "versions",
    "preferredVersion",
    "serverAddressByClientCIDRs",
    "major",
    "minor",
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
];

/// Members of the objects in them, aggregated discovery included.
const PART: &[&str] = &[
    "metadata",
    "name",
    "versions",
    "preferredVersion",
    "singularName",
    "namespaced",
    "groupVersion",
    "group",
    "version",
    "kind",
    "resource",
    "subresource",
    "responseKind",
    "scope",
    "singularResource",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
    "resources",
    "subresources",
    "freshness",
    "clientCIDR",
    "serverAddress",
];

/// A value whose members are written in the order of a table; others follow by the alphabet.
struct Ordered<'a>(&'a Value, &'static [&'static str]);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => {
                let rank = |key: &str| self.1.iter().position(|known| *known == key).unwrap_or(usize::MAX);
                let mut members: Vec<(usize, &String, &Value)> =
                    map.iter().map(|(key, value)| (rank(key), key, value)).collect();
                members.sort_by_key(|(rank, key, _)| (*rank, *key));
                let mut out = serializer.serialize_map(Some(members.len()))?;
                for (_, key, value) in members {
                    out.serialize_entry(key, &Ordered(value, PART))?;
                }
                out.end()
            }
            Value::Array(items) => {
                let mut out = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    out.serialize_element(&Ordered(item, PART))?;
                }
                out.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

/// A document, with a newline at its end.
pub fn document(value: &Value, pretty: bool) -> Vec<u8> {
    let ordered = Ordered(value, DOCUMENT);
    let encoded = if pretty { serde_json::to_vec_pretty(&ordered) } else { serde_json::to_vec(&ordered) };
    let mut out = encoded.unwrap_or_default();
    out.push(b'\n');
    out
}

/// An item of an aggregated document.
pub fn item(value: &Value) -> String {
    serde_json::to_string(&Ordered(value, PART)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::{Discovery, built_in};
    use std::sync::Arc;

    fn text(value: &Value) -> String {
        String::from_utf8(document(value, false)).expect("UTF-8")
    }

    #[test]
    fn members_have_order_of_kubernetes() {
        let versions = built_in(api::resources::RESOURCES).into_iter().map(Arc::new);
        let discovery = Discovery::new(versions, "192.0.2.1:6443");
        let core = text(&discovery.resource_list("", "v1").expect("served"));
        assert!(core.starts_with(r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","namespaced":true,"kind":"Binding","verbs":["create"]},"#), "{core}");
        assert!(core.contains(r#"{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["cm"],"storageVersionHash":"#));
        assert!(core.contains(r#"{"name":"pods/eviction","singularName":"","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]}"#));
        let apps = text(&discovery.group("apps").expect("served"));
        assert_eq!(
            apps,
            "{\"kind\":\"APIGroup\",\"apiVersion\":\"v1\",\"name\":\"apps\",\"versions\":[{\"groupVersion\":\"apps/v1\",\"version\":\"v1\"}],\"preferredVersion\":{\"groupVersion\":\"apps/v1\",\"version\":\"v1\"}}\n"
        );
        let aggregated = String::from_utf8_lossy(&discovery.aggregated_core().json).into_owned();
        assert!(aggregated.contains(r#""items":[{"metadata":{},"versions":[{"version":"v1","resources":[{"resource":"bindings","responseKind":{"group":"","version":"","kind":"Binding"},"scope":"Namespaced","singularResource":"binding","verbs":["create"]}"#), "{aggregated}");
    }
}
