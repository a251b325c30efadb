//! Discovery of the resources that a server currently serves.

use serde::Deserialize;

use crate::client::PreparedRequest;
use crate::{Client, ClientError, ResourceKey};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A resource in the preferred version of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceInfo {
    pub key: ResourceKey,
    pub kind: String,
    pub verbs: Vec<String>,
    /// Singular name, such as `pod`.
    pub singular: String,
    /// Short names, such as `po`.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// Names of its subresources, such as `status`.
    pub subresources: Vec<String>,
}

impl ResourceInfo {
    #[must_use]
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|able| able == verb)
    }
}

/// The resources of a server.
///
/// ```no_run
/// # async fn list(client: client::Client) -> Result<(), client::ClientError> {
/// let discovery = client.discover().await?;
/// let deployments = discovery.find("apps/v1", "Deployment").expect("served");
/// assert!(deployments.can("patch"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Every resource once, in the first version that has it.
    pub preferred: Vec<ResourceInfo>,
    /// Every resource in every version, to look up an `apiVersion` and `kind`.
    pub all: Vec<ResourceInfo>,
    /// Groups whose server did not respond: their resources are unknown.
    pub stale: Vec<String>,
    /// Group versions such as `apps/v1`, in the server's order.
    pub group_versions: Vec<String>,
}

impl Discovery {
    /// The resource of a kind, in any version.
    #[must_use]
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&ResourceInfo> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.all
            .iter()
            .find(|info| info.kind == kind && info.key.group == group && info.key.version == version)
    }
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: GroupName,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct GroupName {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(default)]
    response_kind: Option<DiscoveredKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    subresources: Vec<Subresource>,
}

#[derive(Deserialize)]
struct Subresource {
    #[serde(default)]
    subresource: String,
}

#[derive(Deserialize)]
struct DiscoveredKind {
    #[serde(default)]
    kind: String,
}

impl Client {
    /// Requests the discovery documents of the server.
    pub async fn discover(&self) -> Result<Discovery, ClientError> {
        let mut discovery = Discovery::default();
        for root in ["/api", "/apis"] {
            let prepared = PreparedRequest { accept: AGGREGATED, ..PreparedRequest::get(root.to_owned()) };
            let bytes = self.bytes(&prepared).await?;
            let groups: Groups =
                serde_json::from_slice(&bytes).map_err(|source| prepared.undecodable(source))?;
            for group in groups.items {
                discovery.add(group);
            }
        }
        Ok(discovery)
    }
}

impl Discovery {
    fn add(&mut self, group: Group) {
        let name = group.metadata.name;
        let first = self.preferred.len();
        for version in group.versions {
            self.group_versions.push(match name.as_str() {
                "" => version.version.clone(),
                name => format!("{name}/{}", version.version),
            });
            if version.freshness == "Stale" {
                self.stale.push(name.clone());
            }
            for resource in version.resources {
                let info = ResourceInfo {
                    key: ResourceKey {
                        group: name.clone(),
                        version: version.version.clone(),
                        resource: resource.resource,
                        namespaced: resource.scope == "Namespaced",
                    },
                    kind: resource.response_kind.map(|kind| kind.kind).unwrap_or_default(),
                    verbs: resource.verbs,
                    singular: resource.singular_resource,
                    short_names: resource.short_names,
                    categories: resource.categories,
                    subresources: resource.subresources.into_iter().map(|sub| sub.subresource).collect(),
                };
                let known =
                    self.preferred[first..].iter().any(|other| other.key.resource == info.key.resource);
                if !known {
                    self.preferred.push(info.clone());
                }
                self.all.push(info);
            }
        }
    }
}
