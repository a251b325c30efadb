//! APIServices of the group versions that definitions of custom resources and components of this process serve.
//!
//! Such an APIService is labelled as managed by the server: it is created with the first definition of its group version,
//! created again if it is deleted, and deleted with the last definition.

use crate::cache::Entry;
use crate::discovery::GroupVersion;
use crate::registry::feed::FeedUpdate;
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use api::value::Fields;
use machinery::status::Result;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const API_SERVICES: (&str, &str, &str) = ("apiregistration.k8s.io", "v1", "apiservices");
/// Ranks of the groups and versions of custom resources, as Kubernetes registers them.
const PRIORITIES: (i32, i32) = (1000, 100);
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The part of a definition that contains its group versions; schemas are skipped unread.
#[derive(serde::Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(serde::Deserialize)]
struct DefinitionSpec {
    group: String,
    versions: Vec<DefinitionVersion>,
}

#[derive(serde::Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    served: bool,
}

/// Group versions of definitions, and the APIServices that exist for them.
#[derive(Default)]
pub struct CustomGroups {
    /// Served group versions by the name of the definition.
    served: BTreeMap<String, Vec<(String, String)>>,
    /// Names of all APIServices; `true`: managed by the server.
    present: BTreeMap<String, bool>,
    /// Group versions of components of this process.
    extensions: Vec<GroupVersion>,
    /// Set when any of the above changes, until all APIServices are in sync.
    changed: bool,
}

impl CustomGroups {
    pub fn take_definitions(&mut self, update: &FeedUpdate) {
        self.changed |= for_each(update, &mut self.served, |entry| {
            let Definition { spec } = serde_json::from_slice(&entry.bytes).ok()?;
            let versions = spec.versions.into_iter().filter(|version| version.served);
            Some(versions.map(|version| (spec.group.clone(), version.name)).collect())
        });
    }

    pub fn take_api_services(&mut self, update: &FeedUpdate) {
        self.changed |= for_each(update, &mut self.present, |entry| {
            Some(entry.value().field("metadata").field("labels").text(MANAGED) == "true")
        });
    }

    pub fn set_extensions(&mut self, extensions: Vec<GroupVersion>) {
        self.changed |= self.extensions.len() != extensions.len();
        self.extensions = extensions;
    }

    /// Creates the APIServices that are missing, and deletes those that no definition needs.
    pub async fn reconcile(&mut self, registry: &Registry) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let wanted: BTreeSet<&(String, String)> = self.served.values().flatten().collect();
        for (group, version) in &wanted {
            if !self.present.contains_key(&name(group, version)) {
                create(registry, group, version, PRIORITIES).await?;
            }
        }
        let mut names: BTreeSet<String> =
            wanted.iter().map(|(group, version)| name(group, version)).collect();
        for GroupVersion { group, version, group_priority, version_priority, .. } in &self.extensions {
            let name = name(group, version);
            if !self.present.contains_key(&name) {
                create(registry, group, version, (*group_priority, *version_priority)).await?;
            }
            names.insert(name);
        }
        for (name, _) in self.present.iter().filter(|(name, managed)| **managed && !names.contains(*name)) {
            delete(registry, name).await?;
        }
        self.changed = false;
        Ok(())
    }
}

fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

/// Updates a map by object name; objects for which `read` returns `None` are left out. Reports whether the map
/// changed.
fn for_each<T: PartialEq>(
    update: &FeedUpdate,
    map: &mut BTreeMap<String, T>,
    read: impl Fn(&Entry) -> Option<T>,
) -> bool {
    let name_of = |entry: &Entry| entry.key.rsplit('/').next().unwrap_or_default().to_owned();
    let mut changed = false;
    let mut apply = |entry: &Entry, gone: bool| {
        let (name, read) = (name_of(entry), if gone { None } else { read(entry) });
        if map.get(&name) == read.as_ref() {
            return;
        }
        changed = true;
        match read {
            Some(value) => map.insert(name, value),
            None => map.remove(&name),
        };
    };
    match update {
        FeedUpdate::Changes(changes) => changes.iter().for_each(|(entry, gone)| apply(entry, *gone)),
        FeedUpdate::Snapshot(entries) => {
            entries.iter().for_each(|entry| apply(entry, false));
            let present: BTreeSet<String> = entries.iter().map(|entry| name_of(entry)).collect();
            let before = map.len();
            map.retain(|name, _| present.contains(name));
            changed |= map.len() != before;
        }
    }
    changed
}

async fn create(registry: &Registry, group: &str, version: &str, priorities: (i32, i32)) -> Result<()> {
    let object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": name(group, version), "labels": {MANAGED: "true"}},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": priorities.0, "versionPriority": priorities.1},
    });
    match crate::bootstrap::create(registry, API_SERVICES, object, "kube-apiserver").await {
        // Another server on the same store created it first.
        Err(status) if status.reason == "AlreadyExists" => Ok(()),
        outcome => outcome.map(drop),
    }
}

async fn delete(registry: &Registry, name: &str) -> Result<()> {
    let served = registry.builtin(API_SERVICES.0, API_SERVICES.1, API_SERVICES.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext::server(&user, &record, "");
    match registry.delete(served, name, &DeleteOptions::default(), &context).await {
        Err(status) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}
