//! Discovery of one group version: the common form of built-in kinds, custom resources and aggregated API services.

use api::Scope;
use api::resources::{PRIORITIES, Resource};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::cmp::Ordering;

type Text = Cow<'static, str>;

/// One group version with its resources, and its rank among the others.
#[derive(Clone, Debug)]
pub struct GroupVersion {
    pub group: Text,
    pub version: Text,
    /// Groups with the higher number come first, then by name.
    pub group_priority: i32,
    /// Versions of a group with the higher number come first, then by the usual order of versions.
    pub version_priority: i32,
    /// The resources are from an earlier response of a server that is unavailable now.
    pub stale: bool,
    pub resources: Vec<ApiResource>,
}

/// One resource as discovery shows it.
#[derive(Clone, Debug)]
pub struct ApiResource {
    pub name: Text,
    pub singular: Text,
    pub kind: Text,
    pub namespaced: bool,
    pub verbs: Vec<Text>,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    /// Empty for resources that are not stored.
    pub storage_version_hash: Text,
    /// Group and version of the aggregated form's `responseKind`: empty for built-in kinds, the resource's
    /// own for custom resources.
    pub response: (Text, Text),
    pub subresources: Vec<ApiSubresource>,
}

/// One subresource; an empty group and version mean those of the resource.
#[derive(Clone, Debug)]
pub struct ApiSubresource {
    pub name: Text,
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    pub verbs: Vec<Text>,
}

impl GroupVersion {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Sort key among group versions in discovery.
    pub fn rank(&self, other: &GroupVersion) -> Ordering {
        other
            .group_priority
            .cmp(&self.group_priority)
            .then_with(|| self.group.cmp(&other.group))
            .then_with(|| other.version_priority.cmp(&self.version_priority))
            .then_with(|| compare_versions(&other.version, &self.version))
    }

    /// The APIResourceList of this group version.
    pub fn resource_list(&self) -> Value {
        let mut resources = Vec::new();
        for resource in &self.resources {
            resources.push(resource.listed());
            resources.extend(resource.subresources.iter().map(|sub| sub.listed(resource)));
        }
        let mut list = json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": self.api_version(),
            "resources": resources,
        });
        if self.group.is_empty() {
            // The core group omits apiVersion, as in Kubernetes 1.1.
            list.as_object_mut().expect("an object literal").remove("apiVersion");
        }
        list
    }

    /// The item of this version in an APIGroupDiscovery.
    pub fn aggregated(&self) -> Value {
        let mut version = Map::new();
        version.insert("version".to_owned(), json!(self.version));
        if !self.resources.is_empty() {
            version
                .insert("resources".to_owned(), self.resources.iter().map(ApiResource::aggregated).collect());
        }
        version.insert("freshness".to_owned(), json!(if self.stale { "Stale" } else { "Current" }));
        Value::Object(version)
    }

    /// Its entry in an APIGroup.
    pub fn entry(&self) -> Value {
        json!({"groupVersion": self.api_version(), "version": self.version})
    }
}

impl ApiResource {
    fn listed(&self) -> Value {
        let mut resource = json!({
            "name": self.name,
            "singularName": self.singular,
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": self.verbs,
        });
        let map = resource.as_object_mut().expect("an object literal");
        self.add_aliases(map);
        if !self.storage_version_hash.is_empty() {
            map.insert("storageVersionHash".to_owned(), json!(self.storage_version_hash));
        }
        resource
    }

    fn aggregated(&self) -> Value {
        let own = (self.response.0.as_ref(), self.response.1.as_ref());
        let mut resource = json!({
            "resource": self.name,
            "responseKind": {"group": own.0, "version": own.1, "kind": self.kind},
            "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": self.singular,
            "verbs": self.verbs,
        });
        let map = resource.as_object_mut().expect("an object literal");
        self.add_aliases(map);
        if !self.subresources.is_empty() {
            let subresources = self.subresources.iter().map(|sub| sub.aggregated(own)).collect();
            map.insert("subresources".to_owned(), subresources);
        }
        resource
    }

    fn add_aliases(&self, map: &mut Map<String, Value>) {
        for (key, names) in [("shortNames", &self.short_names), ("categories", &self.categories)] {
            if !names.is_empty() {
                map.insert(key.to_owned(), json!(names));
            }
        }
    }
}

impl ApiSubresource {
    fn listed(&self, of: &ApiResource) -> Value {
        let mut resource = json!({
            "name": format!("{}/{}", of.name, self.name),
            "singularName": "",
            "namespaced": of.namespaced,
            "kind": self.kind,
            "verbs": self.verbs,
        });
        if !self.version.is_empty() {
            let map = resource.as_object_mut().expect("an object literal");
            map.insert("group".to_owned(), json!(self.group));
            map.insert("version".to_owned(), json!(self.version));
        }
        resource
    }

    fn aggregated(&self, own: (&str, &str)) -> Value {
        let (group, version) =
            if self.version.is_empty() { own } else { (self.group.as_ref(), self.version.as_ref()) };
        json!({
            "subresource": self.name,
            "responseKind": {"group": group, "version": version, "kind": self.kind},
            "verbs": self.verbs,
        })
    }
}

/// The group versions of a table of built-in resources.
pub fn built_in(resources: impl IntoIterator<Item = &'static Resource>) -> Vec<GroupVersion> {
    let mut all: Vec<GroupVersion> = Vec::new();
    for resource in resources {
        let known = all.iter().position(|gv| gv.group == resource.group && gv.version == resource.version);
        let index = known.unwrap_or_else(|| {
            all.push(without_resources(resource.group, resource.version));
            all.len() - 1
        });
        all[index].resources.push(ApiResource::from(resource));
    }
    all
}

fn without_resources(group: &'static str, version: &'static str) -> GroupVersion {
    let known = PRIORITIES.iter().find(|p| p.group == group && p.version == version);
    GroupVersion {
        group: Cow::Borrowed(group),
        version: Cow::Borrowed(version),
        group_priority: known.map_or(1000, |p| p.group_minimum),
        version_priority: known.map_or(15, |p| p.version_priority),
        stale: false,
        resources: Vec::new(),
    }
}

fn texts(names: &'static [&'static str]) -> Vec<Text> {
    names.iter().map(|name| Cow::Borrowed(*name)).collect()
}

impl From<&'static Resource> for ApiResource {
    fn from(row: &'static Resource) -> Self {
        ApiResource {
            name: Cow::Borrowed(row.resource),
            singular: Cow::Borrowed(row.singular),
            kind: Cow::Borrowed(row.kind),
            namespaced: row.scope == Scope::Namespaced,
            verbs: texts(row.verbs),
            short_names: texts(row.short_names),
            categories: texts(row.categories),
            storage_version_hash: Cow::Borrowed(row.storage_version_hash),
            response: (Cow::Borrowed(""), Cow::Borrowed("")),
            subresources: row
                .subresources
                .iter()
                .map(|sub| ApiSubresource {
                    name: Cow::Borrowed(sub.name),
                    group: Cow::Borrowed(sub.group),
                    version: Cow::Borrowed(sub.version),
                    kind: Cow::Borrowed(sub.kind),
                    verbs: texts(sub.verbs),
                })
                .collect(),
        }
    }
}

/// The order of version names: `v10`, `v2`, `v1`, `v11beta2`, `v10beta3`, `v3beta1`, `v12alpha1`, then the
/// rest backwards by the alphabet. `Greater` comes first in discovery.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (alpha 0, beta 1, stable 2), major and minor number of `v2beta1` and the like.
fn parse_version(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let major = number(&rest[..digits])?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        tail => {
            let (stability, minor) = match tail.strip_prefix("beta") {
                Some(minor) => (1, minor),
                None => (0, tail.strip_prefix("alpha")?),
            };
            Some((stability, major, number(minor)?))
        }
    }
}

fn number(digits: &str) -> Option<u64> {
    if digits.is_empty() || digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_in_kubernetes_order() {
        let sorted = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
            "v01",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Greater, "{pair:?}");
        }
    }

    #[test]
    fn every_built_in_group_version_has_a_priority() {
        for gv in built_in(api::resources::RESOURCES) {
            assert!(gv.group_priority > 10_000, "{} has none", gv.api_version());
        }
    }

    #[test]
    fn custom_resource_has_group_in_aggregated_form() {
        let resource = ApiResource {
            name: "widgets".into(),
            singular: "widget".into(),
            kind: "Widget".into(),
            namespaced: true,
            verbs: vec!["get".into()],
            short_names: Vec::new(),
            categories: Vec::new(),
            storage_version_hash: "".into(),
            response: ("example.com".into(), "v1".into()),
            subresources: vec![
                ApiSubresource {
                    name: "status".into(),
                    group: "".into(),
                    version: "".into(),
                    kind: "Widget".into(),
                    verbs: Vec::new(),
                },
                ApiSubresource {
                    name: "scale".into(),
                    group: "autoscaling".into(),
                    version: "v1".into(),
                    kind: "Scale".into(),
                    verbs: Vec::new(),
                },
            ],
        };
        let aggregated = resource.aggregated();
        assert_eq!(aggregated["responseKind"]["group"], "example.com");
        assert_eq!(aggregated["subresources"][0]["responseKind"]["version"], "v1");
        assert_eq!(aggregated["subresources"][1]["responseKind"]["group"], "autoscaling");
        assert!(resource.listed().get("group").is_none());
    }
}
