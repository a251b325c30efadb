//! Discovery: groups, versions and resources of the server, in every form that clients request.
//!
//! Pure documents, no HTTP. A [`Discovery`] is immutable: when custom resources or API services are added or removed,
//! a new one replaces it. Documents are built on first use.

mod group_version;
mod order;
mod root_paths;
mod version;

#[cfg(test)]
mod reference_tests;

pub use group_version::{ApiResource, ApiSubresource, GroupVersion, built_in, compare_versions};
pub use order::document;
pub use root_paths::{CHECKS, HealthCheck};
pub use version::{GIT_VERSION, register_build_info, version};

use crate::shared_map::SharedMap;
use api::Text;
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

/// Media type (without its encoding) of the aggregated form, in requests and responses.
pub const AGGREGATED_PARAMETERS: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A document as JSON.
///
/// Only aggregated documents are served with `ETag: "<etag>"`, `Vary: Accept`, `Cache-Control: public`, and with 304
/// when `If-None-Match` equals the quoted tag. The tag is the same in every encoding.
#[derive(Clone, Debug)]
pub struct Document {
    pub json: Bytes,
    /// Upper-case hexadecimal, without quotes.
    pub etag: String,
}

impl Document {
    fn of(json: Vec<u8>) -> Self {
        let etag = hex::encode_upper(Sha512::digest(&json));
        Document { json: Bytes::from(json), etag }
    }

    /// Reports whether a request's `If-None-Match` matches this document.
    pub fn matches(&self, if_none_match: &str) -> bool {
        if_none_match.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(self.etag.as_str())
    }
}

/// Discovery of one group: shared by all catalogues in which it is the same.
#[derive(Debug)]
struct Group {
    /// In discovery order, at least one.
    versions: Vec<Arc<GroupVersion>>,
    /// Its item in the aggregated form.
    aggregated: OnceLock<String>,
}

impl Group {
    /// `None` without versions.
    fn new(mut versions: Vec<Arc<GroupVersion>>) -> Option<Arc<Self>> {
        raise_to_maximum(&mut versions);
        versions.sort_by(|one, other| one.rank(other));
        (!versions.is_empty()).then(|| Arc::new(Self { versions, aggregated: OnceLock::new() }))
    }

    fn name(&self) -> &Text {
        &self.versions[0].group
    }

    fn aggregated(&self) -> &str {
        self.aggregated.get_or_init(|| order::item(&aggregated_group(&self.versions)))
    }
}

/// Documents of the discovery paths.
#[derive(Debug)]
pub struct Discovery {
    groups: SharedMap<Arc<Group>>,
    /// In discovery order, sorted for the first list.
    ordered: OnceLock<Vec<Arc<Group>>>,
    server_address: Arc<str>,
    aggregated_core: OnceLock<Document>,
    aggregated_groups: OnceLock<Document>,
}

impl Discovery {
    /// `host:port` at which clients reach this server.
    pub fn server_address(&self) -> &str {
        &self.server_address
    }

    /// `server_address` is the `host:port` in `/api`.
    pub fn new(
        versions: impl IntoIterator<Item = Arc<GroupVersion>>,
        server_address: impl Into<Arc<str>>,
    ) -> Self {
        let mut by_group: HashMap<Text, Vec<Arc<GroupVersion>>> = HashMap::new();
        for version in versions {
            by_group.entry(version.group.clone()).or_default().push(version);
        }
        Self::of_groups(SharedMap::default(), by_group, server_address.into())
    }

    /// This discovery with other versions of some groups; a group without versions is left out. All others are
    /// shared.
    #[must_use]
    pub fn with_groups(&self, changed: HashMap<Text, Vec<Arc<GroupVersion>>>) -> Self {
        Self::of_groups(self.groups.clone(), changed, Arc::clone(&self.server_address))
    }

    fn of_groups(
        mut groups: SharedMap<Arc<Group>>,
        changed: HashMap<Text, Vec<Arc<GroupVersion>>>,
        server_address: Arc<str>,
    ) -> Self {
        for (name, versions) in changed {
            match Group::new(versions) {
                Some(group) => groups.insert(Arc::from(&*name), group),
                None => groups.remove(&name),
            }
        }
        let (aggregated_core, aggregated_groups) = (OnceLock::new(), OnceLock::new());
        Discovery { groups, ordered: OnceLock::new(), server_address, aggregated_core, aggregated_groups }
    }

    fn ordered(&self) -> &[Arc<Group>] {
        self.ordered.get_or_init(|| {
            let mut groups: Vec<Arc<Group>> = self.groups.values().cloned().collect();
            groups.sort_by(|one, other| one.versions[0].rank(&other.versions[0]));
            groups
        })
    }

    /// The group versions in discovery order.
    pub fn versions(&self) -> impl Iterator<Item = &Arc<GroupVersion>> {
        self.ordered().iter().flat_map(|group| &group.versions)
    }

    /// The versions of a group in discovery order.
    pub fn versions_of(&self, group: &str) -> &[Arc<GroupVersion>] {
        self.groups.get(group).map_or(&[], |group| &group.versions)
    }

    /// `/api`: an APIVersions.
    pub fn api_versions(&self) -> Value {
        let versions: Vec<&str> = self.versions_of("").iter().map(|gv| gv.version.as_ref()).collect();
        json!({
            "kind": "APIVersions",
            "versions": versions,
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": self.server_address}],
        })
    }

    /// `/apis`: an APIGroupList.
    pub fn group_list(&self) -> Value {
        let groups: Vec<Value> = self.named_groups().map(group).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `/apis/{group}`: an APIGroup.
    pub fn group(&self, name: &str) -> Option<Value> {
        let found = self.groups.get(name).filter(|_| !name.is_empty());
        found.map(|found| {
            let mut group = group(&found.versions);
            let map = group.as_object_mut().expect("an object literal");
            map.insert("kind".to_owned(), json!("APIGroup"));
            map.insert("apiVersion".to_owned(), json!("v1"));
            group
        })
    }

    /// Reports whether `/apis/{group}` is served.
    pub fn has_group(&self, name: &str) -> bool {
        !name.is_empty() && self.groups.get(name).is_some()
    }

    /// `/api/v1` (with an empty group) and `/apis/{group}/{version}`: an APIResourceList.
    pub fn resource_list(&self, group: &str, version: &str) -> Option<Value> {
        let found = self.versions_of(group).iter().find(|gv| gv.version == version);
        found.map(|found| found.resource_list())
    }

    /// The aggregated form of `/api`: an APIGroupDiscoveryList.
    pub fn aggregated_core(&self) -> &Document {
        self.aggregated_core.get_or_init(|| aggregated_document(self.groups.get("")))
    }

    /// The aggregated form of `/apis`: an APIGroupDiscoveryList.
    pub fn aggregated_groups(&self) -> &Document {
        self.aggregated_groups.get_or_init(|| aggregated_document(self.all_named()))
    }

    /// `/`: the paths of this server.
    pub fn root_paths(&self) -> Value {
        let mut paths: BTreeSet<String> = root_paths::fixed().into_iter().collect();
        for gv in self.named_groups().flatten() {
            paths.insert(format!("/apis/{}", gv.group));
            paths.insert(format!("/apis/{}/{}", gv.group, gv.version));
        }
        json!({ "paths": paths })
    }

    fn all_named(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.ordered().iter().filter(|group| !group.name().is_empty())
    }

    fn named_groups(&self) -> impl Iterator<Item = &[Arc<GroupVersion>]> {
        self.all_named().map(|group| &*group.versions)
    }
}

/// `storageVersionHash` of a resource whose objects are stored as this kind.
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    use base64::Engine;
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// A group is sorted by its highest version.
fn raise_to_maximum(versions: &mut [Arc<GroupVersion>]) {
    let best = versions.iter().map(|gv| gv.group_priority).max().unwrap_or_default();
    for gv in versions.iter_mut().filter(|gv| gv.group_priority != best) {
        Arc::make_mut(gv).group_priority = best;
    }
}

/// An APIGroup without kind, as in a list.
fn group(versions: &[Arc<GroupVersion>]) -> Value {
    json!({
        "name": versions[0].group,
        "versions": versions.iter().map(|gv| gv.entry()).collect::<Vec<_>>(),
        "preferredVersion": versions[0].entry(),
    })
}

/// An APIGroupDiscovery.
fn aggregated_group(versions: &[Arc<GroupVersion>]) -> Value {
    let name = &versions[0].group;
    json!({
        "metadata": if name.is_empty() { json!({}) } else { json!({"name": name}) },
        "versions": versions.iter().map(|gv| gv.aggregated()).collect::<Vec<_>>(),
    })
}

/// An APIGroupDiscoveryList, from items that are encoded once.
fn aggregated_document<'a>(groups: impl IntoIterator<Item = &'a Arc<Group>>) -> Document {
    let mut json = String::from(
        r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":["#,
    );
    for (at, group) in groups.into_iter().enumerate() {
        if at > 0 {
            json.push(',');
        }
        json.push_str(group.aggregated());
    }
    json.push_str("]}");
    Document::of(json.into_bytes())
}
