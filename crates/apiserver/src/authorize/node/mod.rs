//! The Node authorizer: a kubelet may read the objects that its own pods refer to, and those that every node needs.
//!
//! A node is a member of `system:nodes` named `system:node:<name>`. NodeRestriction admission limits its writes to
//! its own objects: names of new objects are not known here.

mod references;

use super::rules::Rule;
use super::{Attributes, Authorizer, Decision, ResolvedRules};
use crate::registry::Storage;
use crate::registry::feed::{self, Feed, FeedUpdate};
use crate::user::UserInfo;
use futures_util::future::BoxFuture;
use machinery::selector::field::FieldSelector;
use machinery::status::Result;
use parking_lot::{RwLock, RwLockReadGuard};
use references::{ObjectKind, References};
use serde::Deserialize;
use std::sync::Arc;

/// Permissions of every node: verbs, groups, resources.
const NODE_RULES: [(&[&str], &[&str], &[&str]); 9] = [
    (&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
    (&["create"], &["authorization.k8s.io"], &["subjectaccessreviews", "localsubjectaccessreviews"]),
    (READ, &[""], &["services"]),
    (&["create", "update", "patch"], &["", "events.k8s.io"], &["events"]),
    (&["get"], &[""], &["endpoints"]),
    (&["create", "get", "list", "watch"], &["certificates.k8s.io"], &["certificatesigningrequests"]),
    (READ, &["storage.k8s.io"], &["csidrivers"]),
    (READ, &["node.k8s.io"], &["runtimeclasses"]),
    (READ, &["certificates.k8s.io"], &["clustertrustbundles"]),
];
const READ: &[&str] = &["get", "list", "watch"];
const OWN_OBJECT: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// Service accounts in kube-system of the proxy and network policy agents of a node. Every node may request their
/// tokens; NodeRestriction requires that such a token is bound to the Node object of the requesting node.
pub const AGENT_ACCOUNTS: [&str; 2] = ["ferry-proxy", "ferry-network-policy"];

/// Reports whether a service account is one of [`AGENT_ACCOUNTS`].
pub fn is_agent_account(namespace: &str, name: &str) -> bool {
    namespace == "kube-system" && AGENT_ACCOUNTS.contains(&name)
}

/// Storages of the objects that tie others to nodes.
pub struct Storages {
    pub pods: Arc<Storage>,
    pub persistent_volumes: Arc<Storage>,
    pub volume_attachments: Arc<Storage>,
    pub resource_slices: Arc<Storage>,
    pub pod_certificate_requests: Arc<Storage>,
}

pub struct Node {
    storages: Storages,
    rules: Vec<Rule>,
    state: RwLock<State>,
}

struct State {
    references: References,
    pods: Feed,
    volumes: Feed,
}

impl State {
    fn refresh(&mut self) {
        let Self { references, pods, volumes } = self;
        follow(pods, references, References::clear_pods, References::put_pod, References::remove_pod);
        follow(
            volumes,
            references,
            References::clear_volumes,
            References::put_volume,
            References::remove_volume,
        );
    }
}

fn follow(
    feed: &mut Feed,
    references: &mut References,
    clear: fn(&mut References),
    put: fn(&mut References, &str, &[u8]),
    remove: fn(&mut References, &str),
) {
    if !feed.stale() {
        return;
    }
    let changes = match feed.take() {
        FeedUpdate::Changes(changes) => changes,
        FeedUpdate::Snapshot(entries) => {
            clear(references);
            entries.into_iter().map(|entry| (entry, false)).collect()
        }
    };
    let root = feed.storage().cache.root.as_str();
    for (entry, gone) in changes {
        let Some(key) = entry.key.strip_prefix(root) else { continue };
        match gone {
            true => remove(references, key),
            false => put(references, key, &entry.bytes),
        }
    }
}

/// Node name of a user; `None` if it is no node.
pub fn node_name(user: &UserInfo) -> Option<&str> {
    user.name.strip_prefix("system:node:").filter(|_| user.is_in("system:nodes"))
}

impl Node {
    pub fn new(storages: Storages) -> Self {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let rules = NODE_RULES
            .iter()
            .map(|(verbs, groups, resources)| Rule {
                verbs: list(verbs),
                api_groups: list(groups),
                resources: list(resources),
                ..Rule::default()
            })
            .collect();
        let state = State {
            references: References::default(),
            pods: Feed::new(storages.pods.clone()),
            volumes: Feed::new(storages.persistent_volumes.clone()),
        };
        Self { storages, rules, state: RwLock::new(state) }
    }

    fn current(&self) -> RwLockReadGuard<'_, State> {
        let state = self.state.read();
        if !state.pods.stale() && !state.volumes.stale() {
            return state;
        }
        drop(state);
        self.state.write().refresh();
        self.state.read()
    }

    /// `Ok`: allowed; otherwise the reason, possibly empty.
    async fn decide(&self, node: &str, wanted: &Attributes<'_>) -> Result<Result<(), String>> {
        let no = |why: &str| Ok(Err(why.to_owned()));
        if node.is_empty() {
            return no("unknown node for user \"system:node:\"");
        }
        if !wanted.is_resource {
            return no("");
        }
        let verb = wanted.verb;
        match (wanted.group, wanted.resource) {
            ("", "secrets") => self.read(node, ObjectKind::Secret, wanted).await,
            ("", "configmaps") => self.read(node, ObjectKind::ConfigMap, wanted).await,
            ("", "persistentvolumeclaims") if wanted.subresource == "status" => match verb {
                "update" | "patch" => self.related(node, ObjectKind::PersistentVolumeClaim, wanted).await,
                _ => no("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(node, ObjectKind::PersistentVolumeClaim, wanted).await,
            ("", "persistentvolumes") => self.get(node, ObjectKind::PersistentVolume, wanted).await,
            ("resource.k8s.io", "resourceclaims") => self.get(node, ObjectKind::ResourceClaim, wanted).await,
            ("storage.k8s.io", "volumeattachments") => {
                if verb != "get" {
                    return no("can only get individual resources of this type");
                }
                self.own(node, &self.storages.volume_attachments, wanted).await
            }
            ("", "serviceaccounts") if verb == "get" && wanted.subresource.is_empty() => {
                self.read(node, ObjectKind::ServiceAccount, wanted).await
            }
            ("", "serviceaccounts") => match (verb, wanted.name, wanted.subresource) {
                ("create", name, "token") if is_agent_account(wanted.namespace, name) => Ok(Ok(())),
                ("create", name, "token") if !name.is_empty() => {
                    self.related(node, ObjectKind::ServiceAccount, wanted).await
                }
                ("create", name, _) if !name.is_empty() => {
                    no("can only create token subresource of serviceaccount")
                }
                _ => no("can only create tokens for individual service accounts"),
            },
            ("coordination.k8s.io", "leases") => Ok(lease(node, wanted)),
            ("storage.k8s.io", "csinodes") => Ok(csi_node(node, wanted)),
            ("resource.k8s.io", "resourceslices") => self.slice(node, wanted).await,
            ("certificates.k8s.io", "podcertificaterequests") => self.pod_certificate(node, wanted).await,
            ("", "nodes") => Ok(node_object(node, wanted)),
            ("", "pods") => self.pod(node, wanted).await,
            _ if self.rules.iter().any(|rule| rule.allows(wanted)) => Ok(Ok(())),
            _ => no(""),
        }
    }

    async fn get(&self, node: &str, kind: ObjectKind, wanted: &Attributes<'_>) -> Result<Result<(), String>> {
        if wanted.verb != "get" {
            return Ok(Err("can only get individual resources of this type".to_owned()));
        }
        if !wanted.subresource.is_empty() {
            return Ok(Err("cannot get subresource".to_owned()));
        }
        self.related(node, kind, wanted).await
    }

    async fn read(
        &self,
        node: &str,
        kind: ObjectKind,
        wanted: &Attributes<'_>,
    ) -> Result<Result<(), String>> {
        let why = if !READ.contains(&wanted.verb) {
            "can only read resources of this type"
        } else if !wanted.subresource.is_empty() {
            "cannot read subresource"
        } else if wanted.namespace.is_empty() {
            "can only read namespaced object of this type"
        } else {
            return self.related(node, kind, wanted).await;
        };
        Ok(Err(why.to_owned()))
    }

    /// Reports whether an object on the node refers to this one.
    async fn related(
        &self,
        node: &str,
        kind: ObjectKind,
        wanted: &Attributes<'_>,
    ) -> Result<Result<(), String>> {
        if wanted.name.is_empty() {
            return Ok(Err("No Object name found".to_owned()));
        }
        feed::ready(&self.storages.pods).await?;
        feed::ready(&self.storages.persistent_volumes).await?;
        let known = self.current().references.relates(node, kind, wanted.namespace, wanted.name);
        Ok(if known { Ok(()) } else { Err(unrelated(node)) })
    }

    /// Reports whether the object itself names the node.
    async fn own(
        &self,
        node: &str,
        storage: &Storage,
        wanted: &Attributes<'_>,
    ) -> Result<Result<(), String>> {
        #[derive(Deserialize)]
        struct Slim {
            spec: SlimSpec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct SlimSpec {
            #[serde(default)]
            node_name: Option<String>,
        }
        if wanted.name.is_empty() {
            return Ok(Err("No Object name found".to_owned()));
        }
        if !wanted.subresource.is_empty() {
            return Ok(Err("cannot get subresource".to_owned()));
        }
        feed::ready(storage).await?;
        let root = &storage.cache.root;
        let key = match wanted.namespace {
            "" => format!("{root}{}", wanted.name),
            namespace => format!("{root}{namespace}/{}", wanted.name),
        };
        let entry = storage.cache.get(&key);
        let object = entry.and_then(|entry| serde_json::from_slice::<Slim>(&entry.bytes).ok());
        let named = object.and_then(|object| object.spec.node_name);
        Ok(if named.as_deref() == Some(node) { Ok(()) } else { Err(unrelated(node)) })
    }

    /// NodeRestriction checks the created objects.
    async fn pod_certificate(&self, node: &str, wanted: &Attributes<'_>) -> Result<Result<(), String>> {
        let why = match wanted.verb {
            _ if !wanted.subresource.is_empty() => {
                "nodes may not access the status subresource of PodCertificateRequests"
            }
            "create" => return Ok(Ok(())),
            "get" => return self.own(node, &self.storages.pod_certificate_requests, wanted).await,
            "list" | "watch" if selects(wanted, "spec.nodeName", node) => return Ok(Ok(())),
            "list" | "watch" => "can only list/watch podcertificaterequests with nodeName field selector",
            verb => return Ok(Err(format!("nodes may not {verb} podcertificaterequests"))),
        };
        Ok(Err(why.to_owned()))
    }

    async fn slice(&self, node: &str, wanted: &Attributes<'_>) -> Result<Result<(), String>> {
        let why = match wanted.verb {
            _ if !wanted.subresource.is_empty() => "cannot authorize ResourceSlice subresources",
            "create" => return Ok(Ok(())),
            "get" | "update" | "patch" | "delete" => {
                return self.own(node, &self.storages.resource_slices, wanted).await;
            }
            "watch" | "list" | "deletecollection" if selects(wanted, "spec.nodeName", node) => {
                return Ok(Ok(()));
            }
            "watch" | "list" | "deletecollection" => {
                "can only list/watch/deletecollection resourceslices with nodeName field selector"
            }
            _ => {
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
            }
        };
        Ok(Err(why.to_owned()))
    }

    async fn pod(&self, node: &str, wanted: &Attributes<'_>) -> Result<Result<(), String>> {
        match (wanted.subresource, wanted.verb) {
            ("", "get") => self.related(node, ObjectKind::Pod, wanted).await,
            ("", "list" | "watch") if selects(wanted, "spec.nodeName", node) => Ok(Ok(())),
            ("", "list" | "watch") if !wanted.name.is_empty() => {
                self.related(node, ObjectKind::Pod, wanted).await
            }
            ("", "list" | "watch") => {
                Ok(Err("can only list/watch pods with spec.nodeName field selector".to_owned()))
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(Ok(())),
            _ => Ok(Err(String::new())),
        }
    }
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

fn selects(wanted: &Attributes<'_>, field: &str, node: &str) -> bool {
    FieldSelector::parse(wanted.field_selector).is_ok_and(|selector| selector.requires(field) == Some(node))
}

fn lease(node: &str, wanted: &Attributes<'_>) -> Result<(), String> {
    let why = if !OWN_OBJECT.contains(&wanted.verb) {
        "can only get, create, update, patch, or delete a node lease"
    } else if wanted.namespace != "kube-node-lease" {
        "can only access leases in the \"kube-node-lease\" system namespace"
    } else if wanted.verb != "create" && wanted.name != node {
        "can only access node lease with the same name as the requesting node"
    } else {
        return Ok(());
    };
    Err(why.to_owned())
}

fn csi_node(node: &str, wanted: &Attributes<'_>) -> Result<(), String> {
    let why = if !OWN_OBJECT.contains(&wanted.verb) {
        "can only get, create, update, patch, or delete a CSINode"
    } else if !wanted.subresource.is_empty() {
        "cannot authorize CSINode subresources"
    } else if wanted.verb != "create" && wanted.name != node {
        "can only access CSINode with the same name as the requesting node"
    } else {
        return Ok(());
    };
    Err(why.to_owned())
}

fn node_object(node: &str, wanted: &Attributes<'_>) -> Result<(), String> {
    match (wanted.subresource, wanted.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match wanted.name {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            name => Err(format!("node '{node}' cannot read '{name}', only its own Node object")),
        },
        _ => Err(String::new()),
    }
}

impl Authorizer for Node {
    fn label(&self) -> (&'static str, &str) {
        ("Node", "node")
    }

    fn authorize<'a>(
        &'a self,
        user: &'a UserInfo,
        attributes: &'a Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>> {
        let Some(node) = node_name(user) else {
            return Box::pin(std::future::ready(Ok(Decision::NoOpinion(String::new()))));
        };
        Box::pin(async move {
            Ok(match self.decide(node, attributes).await? {
                Ok(()) => Decision::Allowed(Arc::default()),
                Err(why) => Decision::NoOpinion(why),
            })
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>> {
        let mut found = ResolvedRules::default();
        if node_name(user).is_some() {
            found.incomplete = true;
            found.errors.push("node authorizer does not support user rule resolution".to_owned());
        }
        Box::pin(std::future::ready(Ok(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(verb: &'a str, namespace: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes { verb, is_resource: true, namespace, name, ..Attributes::default() }
    }

    #[test]
    fn node_identity_is_parsed() {
        for (name, group, want) in [
            ("system:node:n1", "system:nodes", Some("n1")),
            ("system:node:n1", "others", None),
            ("n1", "system:nodes", None),
        ] {
            let groups = vec![group.to_owned()];
            let user = UserInfo { name: name.to_owned(), groups, ..UserInfo::default() };
            assert_eq!(node_name(&user), want, "{name} {group}");
        }
    }

    #[test]
    fn node_may_access_only_own_lease_and_node() {
        for (attributes, want) in [
            (request("update", "kube-node-lease", "n1"), true),
            (request("create", "kube-node-lease", ""), true),
            (request("update", "kube-node-lease", "n2"), false),
            (request("update", "default", "n1"), false),
            (request("list", "kube-node-lease", ""), false),
        ] {
            assert_eq!(lease("n1", &attributes).is_ok(), want, "{attributes:?}");
        }
        for (attributes, want) in [
            (request("get", "", "n1"), true),
            (request("get", "", "n2"), false),
            (request("list", "", ""), false),
            (request("list", "", "n1"), true),
            (request("delete", "", "n1"), false),
            (Attributes { subresource: "status", ..request("patch", "", "n1") }, true),
            (Attributes { subresource: "proxy", ..request("get", "", "n1") }, false),
        ] {
            assert_eq!(node_object("n1", &attributes).is_ok(), want, "{attributes:?}");
        }
    }

    #[test]
    fn agent_accounts_are_only_those_of_kube_system() {
        assert!(is_agent_account("kube-system", "ferry-proxy"));
        assert!(!is_agent_account("default", "ferry-proxy"));
        assert!(!is_agent_account("kube-system", "default"));
    }

    #[test]
    fn node_selectors_must_select_own_node() {
        for (selector, want) in [
            ("spec.nodeName=n1", true),
            ("metadata.namespace=x,spec.nodeName=n1", true),
            ("spec.nodeName!=n1", false),
            ("spec.nodeName=n2", false),
            ("", false),
        ] {
            let attributes = Attributes { field_selector: selector, ..request("list", "", "") };
            assert_eq!(selects(&attributes, "spec.nodeName", "n1"), want, "{selector}");
        }
    }
}
