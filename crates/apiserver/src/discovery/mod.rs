//! Discovery: which groups, versions and resources the server has, in every form clients ask for.
//!
//! Pure documents, no HTTP. A [`Discovery`] is immutable: when custom resources or API services come or go,
//! a new one takes its place. Documents are built when first asked for.

mod group_version;
mod root_paths;
mod version;

#[cfg(test)]
mod reference_tests;

pub use group_version::{ApiResource, ApiSubresource, GroupVersion, built_in, compare_versions};
pub use root_paths::{CHECKS, HealthCheck};
pub use version::{GIT_VERSION, version};

use api::Text;
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

/// The media type (without its encoding) that asks for the aggregated form; answers carry it too.
pub const AGGREGATED_PARAMETERS: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A document as JSON.
///
/// Only aggregated documents are answered with `ETag: "<etag>"`, `Vary: Accept`, `Cache-Control: public`, and
/// with 304 when `If-None-Match` equals the quoted tag. The tag is the same in every encoding.
#[derive(Clone, Debug)]
pub struct Document {
    pub json: Bytes,
    /// Upper-case hexadecimal, without quotes.
    pub etag: String,
}

impl Document {
    fn of(value: &Value) -> Self {
        let json = value.to_string().into_bytes();
        let etag = hex::encode_upper(Sha512::digest(&json));
        Document { json: Bytes::from(json), etag }
    }

    /// Whether a request's `If-None-Match` says that the client has this document.
    pub fn matches(&self, if_none_match: &str) -> bool {
        if_none_match.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(self.etag.as_str())
    }
}

/// What the discovery paths answer.
#[derive(Debug)]
pub struct Discovery {
    /// In discovery order: the versions of a group stand together.
    versions: Vec<Arc<GroupVersion>>,
    /// Names of the groups.
    groups: HashSet<Text>,
    server_address: String,
    aggregated_core: OnceLock<Document>,
    aggregated_groups: OnceLock<Document>,
}

impl Discovery {
    /// `host:port` by which clients reach this server.
    pub fn server_address(&self) -> &str {
        &self.server_address
    }

    /// `server_address` is the `host:port` that `/api` tells clients.
    pub fn new(
        versions: impl IntoIterator<Item = Arc<GroupVersion>>,
        server_address: impl Into<String>,
    ) -> Self {
        let mut versions: Vec<Arc<GroupVersion>> = versions.into_iter().collect();
        raise_to_group_maximum(&mut versions);
        versions.sort_by(|one, other| one.rank(other));
        let groups = versions.iter().map(|gv| gv.group.clone()).collect();
        Discovery {
            versions,
            groups,
            server_address: server_address.into(),
            aggregated_core: OnceLock::new(),
            aggregated_groups: OnceLock::new(),
        }
    }

    /// The group versions in discovery order.
    pub fn versions(&self) -> &[Arc<GroupVersion>] {
        &self.versions
    }

    /// `/api`: an APIVersions.
    pub fn api_versions(&self) -> Value {
        let versions: Vec<&str> =
            self.versions.iter().filter(|gv| gv.group.is_empty()).map(|gv| gv.version.as_ref()).collect();
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
        self.named_groups().find(|versions| versions[0].group == name).map(|versions| {
            let mut group = group(versions);
            let map = group.as_object_mut().expect("an object literal");
            map.insert("kind".to_owned(), json!("APIGroup"));
            map.insert("apiVersion".to_owned(), json!("v1"));
            group
        })
    }

    /// Reports whether `/apis/{group}` is served.
    pub fn has_group(&self, name: &str) -> bool {
        !name.is_empty() && self.groups.contains(name)
    }

    /// `/api/v1` (with an empty group) and `/apis/{group}/{version}`: an APIResourceList.
    pub fn resource_list(&self, group: &str, version: &str) -> Option<Value> {
        let found = self.versions.iter().find(|gv| gv.group == group && gv.version == version);
        found.map(|found| found.resource_list())
    }

    /// The aggregated form of `/api`: an APIGroupDiscoveryList.
    pub fn aggregated_core(&self) -> &Document {
        self.aggregated_core.get_or_init(|| Document::of(&self.aggregated_core_value()))
    }

    /// The aggregated form of `/apis`: an APIGroupDiscoveryList.
    pub fn aggregated_groups(&self) -> &Document {
        self.aggregated_groups.get_or_init(|| Document::of(&self.aggregated_groups_value()))
    }

    /// [`Self::aggregated_core`] as a value, for the other encodings.
    pub fn aggregated_core_value(&self) -> Value {
        aggregated(self.groups().filter(|versions| versions[0].group.is_empty()))
    }

    /// [`Self::aggregated_groups`] as a value, for the other encodings.
    pub fn aggregated_groups_value(&self) -> Value {
        aggregated(self.named_groups())
    }

    /// `/`: the paths this server answers.
    pub fn root_paths(&self) -> Value {
        let mut paths: BTreeSet<String> = root_paths::fixed().into_iter().collect();
        for gv in self.versions.iter().filter(|gv| !gv.group.is_empty()) {
            paths.insert(format!("/apis/{}", gv.group));
            paths.insert(format!("/apis/{}/{}", gv.group, gv.version));
        }
        json!({ "paths": paths })
    }

    fn groups(&self) -> impl Iterator<Item = &[Arc<GroupVersion>]> {
        self.versions.chunk_by(|a, b| a.group == b.group)
    }

    fn named_groups(&self) -> impl Iterator<Item = &[Arc<GroupVersion>]> {
        self.groups().filter(|versions| !versions[0].group.is_empty())
    }
}

/// `storageVersionHash` of a resource whose objects are stored as this kind.
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    use base64::Engine;
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// A group stands where its best version puts it.
fn raise_to_group_maximum(versions: &mut [Arc<GroupVersion>]) {
    let mut best: HashMap<Text, i32> = HashMap::new();
    for gv in versions.iter() {
        let entry = best.entry(gv.group.clone()).or_insert(gv.group_priority);
        *entry = (*entry).max(gv.group_priority);
    }
    for gv in versions {
        let best = best[gv.group.as_ref()];
        if gv.group_priority != best {
            Arc::make_mut(gv).group_priority = best;
        }
    }
}

/// An APIGroup without kind, as it stands in a list.
fn group(versions: &[Arc<GroupVersion>]) -> Value {
    json!({
        "name": versions[0].group,
        "versions": versions.iter().map(|gv| gv.entry()).collect::<Vec<_>>(),
        "preferredVersion": versions[0].entry(),
    })
}

fn aggregated<'a>(groups: impl Iterator<Item = &'a [Arc<GroupVersion>]>) -> Value {
    let items: Vec<Value> = groups
        .map(|versions| {
            let name = &versions[0].group;
            json!({
                "metadata": if name.is_empty() { json!({}) } else { json!({"name": name}) },
                "versions": versions.iter().map(|gv| gv.aggregated()).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}
