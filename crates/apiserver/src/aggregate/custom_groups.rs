//! APIServices of the group versions that definitions of custom resources and components of this process serve.
//!
//! Such an APIService is labelled as managed by the server: it is created with the first definition of its group version,
//! created again if it is deleted, reset if its spec is changed, and deleted with the last definition. Without the label
//! it belongs to the user, and so does one that replaces a component of this process by a service.

use crate::cache::Entry;
use crate::discovery::GroupVersion;
use crate::registry::feed::FeedUpdate;
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use api::value::Fields;
use machinery::Value;
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
    /// All APIServices by name; for those managed by the server, their spec.
    present: BTreeMap<String, Option<Value>>,
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
            let object = entry.value();
            let managed = object.field("metadata").field("labels").text(MANAGED) == "true";
            Some(managed.then(|| object.field("spec").clone()))
        });
    }

    pub fn set_extensions(&mut self, extensions: Vec<GroupVersion>) {
        self.changed |= self.extensions.len() != extensions.len();
        self.extensions = extensions;
    }

    /// Creates the APIServices that are missing, resets those with another spec, and deletes those that no definition
    /// needs.
    pub async fn reconcile(&mut self, registry: &Registry) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let mut wanted: BTreeMap<String, Value> = BTreeMap::new();
        for (group, version) in self.served.values().flatten() {
            wanted.insert(name(group, version), spec(group, version, PRIORITIES));
        }
        for GroupVersion { group, version, group_priority, version_priority, .. } in &self.extensions {
            let spec = spec(group, version, (*group_priority, *version_priority));
            wanted.entry(name(group, version)).or_insert(spec);
        }
        for (name, spec) in &wanted {
            match self.present.get(name) {
                None => create(registry, name, spec).await?,
                Some(Some(present)) if present != spec && !self.is_replaced(name, present) => {
                    reset(registry, name, spec).await?;
                }
                Some(_) => {}
            }
        }
        // One with a service replaced a component that is disabled now.
        let unneeded = |(name, spec): &(&String, &Option<Value>)| {
            spec.as_ref().is_some_and(|spec| !has_service(spec)) && !wanted.contains_key(*name)
        };
        for (name, _) in self.present.iter().filter(unneeded) {
            delete(registry, name).await?;
        }
        self.changed = false;
        Ok(())
    }

    /// Reports whether a service serves the group version of a component.
    fn is_replaced(&self, name: &str, present: &Value) -> bool {
        let mut served = self.served.values().flatten();
        has_service(present) && !served.any(|(group, version)| self::name(group, version) == name)
    }
}

fn has_service(spec: &Value) -> bool {
    spec.field("service").is_object()
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

/// Spec of the APIService of a group version.
fn spec(group: &str, version: &str, priorities: (i32, i32)) -> Value {
    json!({
        "group": group, "version": version,
        "groupPriorityMinimum": priorities.0, "versionPriority": priorities.1,
    })
}

async fn create(registry: &Registry, name: &str, spec: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": name, "labels": {MANAGED: "true"}},
        "spec": spec,
    });
    match crate::bootstrap::create(registry, API_SERVICES, object, "kube-apiserver").await {
        // Another server on the same store created it first.
        Err(status) if status.reason == "AlreadyExists" => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Overwrites the spec of an APIService, unless it is no longer managed by the server.
async fn reset(registry: &Registry, name: &str, spec: &Value) -> Result<()> {
    let served = registry.builtin(API_SERVICES.0, API_SERVICES.1, API_SERVICES.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext::server(&user, &record, "");
    let strategy = UpdateStrategy::main(served.governing());
    let written = registry.update(served, name, strategy, true, &context, |old| {
        let mut new = old.clone();
        if new.field("metadata").field("labels").text(MANAGED) == "true" {
            new.set("spec", spec.clone());
        }
        Ok(Change::Replace(new))
    });
    match written.await {
        Err(status) if status.code == 404 => Ok(()),
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
