//! Graph of observed owner references.

use std::collections::{HashMap, HashSet};

use client::ResourceKey;
use objects::meta::v1::{ObjectMeta, OwnerReference};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// An object of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub resource: ResourceKey,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub owners: Vec<OwnerReference>,
    pub stage: Stage,
}

/// Deletion state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alive,
    /// Foreground: waits until its dependents are deleted.
    DeletingDependents,
    /// Orphaning: waits until its dependents no longer name it.
    Orphaning,
    /// Waits for other finalizers, or for nothing.
    Going,
}

impl Stage {
    fn of(meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
        match meta.deletion_timestamp {
            None => Self::Alive,
            Some(_) if has(FOREGROUND) => Self::DeletingDependents,
            Some(_) if has(ORPHAN) => Self::Orphaning,
            Some(_) => Self::Going,
        }
    }
}

/// The graph; every change returns the objects to reconcile.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<String, Node>,
    dependents: HashMap<String, HashSet<String>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// Uids of the objects with an owner reference to this one.
    pub fn dependents(&self, uid: &str) -> Vec<String> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    /// Adds or updates an object.
    pub fn put(&mut self, resource: &ResourceKey, kind: &str, meta: &ObjectMeta) -> Vec<String> {
        let Some(uid) = meta.uid.clone() else { return Vec::new() };
        let node = Node {
            resource: resource.clone(),
            kind: kind.to_owned(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            stage: Stage::of(meta),
        };
        let old = self.nodes.insert(uid.clone(), node.clone());
        let (was, before) = old.map_or((Stage::Alive, Vec::new()), |old| (old.stage, old.owners));
        let mut look = Vec::new();
        for owner in before.iter().filter(|owner| !node.owners.contains(owner)) {
            // An owner may have waited for this reference to be removed, or to stop blocking it.
            if self.is_deleting_dependents(&owner.uid) {
                look.push(owner.uid.clone());
            }
            if !node.owners.iter().any(|other| other.uid == owner.uid) {
                take_out(&mut self.dependents, &owner.uid, &uid);
            }
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        let has_new_owner = node.owners.iter().any(|owner| !before.contains(owner));
        if has_new_owner && !self.owners_are_fine(&node) {
            look.push(uid.clone());
        }
        if node.stage != was && matches!(node.stage, Stage::DeletingDependents | Stage::Orphaning) {
            if node.stage == Stage::DeletingDependents {
                look.extend(self.dependents(&uid));
            }
            look.push(uid);
        }
        look
    }

    /// Removes a deleted object.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut look = self.dependents(uid);
        for owner in &node.owners {
            take_out(&mut self.dependents, &owner.uid, uid);
            if self.is_deleting_dependents(&owner.uid) {
                look.push(owner.uid.clone());
            }
        }
        look
    }

    /// Removes all objects of a resource that is no longer served.
    pub fn forget(&mut self, resource: &ResourceKey) {
        let gone: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.resource == *resource)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            if let Some(node) = self.nodes.remove(&uid) {
                node.owners.iter().for_each(|owner| take_out(&mut self.dependents, &owner.uid, &uid));
            }
        }
    }

    fn is_deleting_dependents(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.stage == Stage::DeletingDependents)
    }

    /// True if all owners have been observed, match their references, and do not wait for the object's deletion.
    pub fn owners_are_fine(&self, node: &Node) -> bool {
        node.owners.iter().all(|reference| {
            self.nodes.get(&reference.uid).is_some_and(|owner| {
                let in_reach = owner.namespace.is_empty() || owner.namespace == node.namespace;
                in_reach
                    && owner.kind == reference.kind
                    && owner.name == reference.name
                    && group_of(&reference.api_version) == owner.resource.group
                    && owner.stage != Stage::DeletingDependents
            })
        })
    }

    /// Dependents that block the deletion of an object.
    pub fn blocking(&self, uid: &str) -> Vec<String> {
        let blocks = |dependent: &String| {
            self.nodes.get(dependent).is_some_and(|node| {
                node.owners.iter().any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
            })
        };
        self.dependents(uid).into_iter().filter(blocks).collect()
    }
}

fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

fn take_out(dependents: &mut HashMap<String, HashSet<String>>, owner: &str, uid: &str) {
    if let Some(known) = dependents.get_mut(owner) {
        known.remove(uid);
        if known.is_empty() {
            dependents.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, time};

    fn resource() -> ResourceKey {
        ResourceKey {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "things".to_owned(),
            namespaced: true,
        }
    }

    fn owned(name: &str, owners: &[&str]) -> ObjectMeta {
        let reference = |owner: &&str| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Thing".to_owned(),
            name: (*owner).to_owned(),
            uid: format!("uid-{owner}"),
            controller: None,
            block_owner_deletion: Some(true),
        };
        ObjectMeta { owner_references: Some(owners.iter().map(reference).collect()), ..meta(name) }
    }

    fn deleted(meta: ObjectMeta, finalizer: &str) -> ObjectMeta {
        ObjectMeta { deletion_timestamp: Some(time(1)), finalizers: Some(vec![finalizer.to_owned()]), ..meta }
    }

    fn put(graph: &mut Graph, meta: &ObjectMeta) -> Vec<String> {
        let mut look = graph.put(&resource(), "Thing", meta);
        look.sort();
        look
    }

    #[test]
    fn unobserved_owners_are_enqueued() {
        let mut graph = Graph::default();
        assert_eq!(put(&mut graph, &owned("child", &["parent"])), ["uid-child"]);
        assert!(put(&mut graph, &meta("parent")).is_empty());
        assert!(put(&mut graph, &owned("other", &["parent"])).is_empty());
        let mut gone = graph.remove("uid-parent");
        gone.sort();
        assert_eq!(gone, ["uid-child", "uid-other"]);
        // The same name, but another object.
        let mut again = meta("parent");
        again.uid = Some("uid-new".to_owned());
        put(&mut graph, &again);
        assert!(!graph.owners_are_fine(graph.get("uid-child").expect("known")));
    }

    #[test]
    fn foreground_owner_waits_for_blocking_dependents() {
        let mut graph = Graph::default();
        put(&mut graph, &meta("parent"));
        put(&mut graph, &owned("child", &["parent"]));
        let leaving = deleted(meta("parent"), FOREGROUND);
        assert_eq!(put(&mut graph, &leaving), ["uid-child", "uid-parent"]);
        assert!(put(&mut graph, &leaving).is_empty(), "only once");
        assert_eq!(graph.blocking("uid-parent"), ["uid-child"]);
        let mut free = owned("child", &["parent"]);
        free.owner_references.as_mut().expect("one")[0].block_owner_deletion = Some(false);
        assert!(put(&mut graph, &free).contains(&"uid-parent".to_owned()));
        assert!(graph.blocking("uid-parent").is_empty());
        assert_eq!(graph.remove("uid-child"), ["uid-parent"]);
    }

    #[test]
    fn orphaning_and_removed_resources_update_graph() {
        let mut graph = Graph::default();
        put(&mut graph, &meta("parent"));
        put(&mut graph, &owned("child", &["parent"]));
        assert_eq!(put(&mut graph, &deleted(meta("parent"), ORPHAN)), ["uid-parent"]);
        assert!(put(&mut graph, &owned("child", &[])).is_empty());
        assert!(graph.dependents("uid-parent").is_empty());
        graph.forget(&resource());
        assert!(graph.get("uid-parent").is_none());
    }
}
