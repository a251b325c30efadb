//! The generic registry: every verb on every stored resource, with the kind's own rules plugged in.
//!
//! A [`Storage`] is where a kind lives (one per stored kind); a [`Served`] is one version of it on the wire.
//! One file per verb.

mod admin_access;
pub mod allocate;
pub mod create;
pub mod delete;
mod edit;
pub mod leases;
pub mod list;
pub mod metadata;
mod node_ports;
pub mod patch;
#[cfg(test)]
mod race_tests;
mod repair;
pub mod scale;
pub mod update;
mod versions;
mod warnings;
pub mod watch;

pub use warnings::Warnings;

use crate::admission::Admission;
use crate::authorize::node::{self, Node};
use crate::authorize::{Authorization, Choice, Rbac};
use crate::cache::{Cache, Entry, Layout, canonical::Prefix};
use crate::user::UserInfo;
use api::kind::{Kind, Scope};
use api::resources::Resource;
use machinery::Value;
use machinery::apply::{self, Reset};
use machinery::codec::typed;
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use store::{Store, StoreError};

/// Where one kind is stored.
pub struct Storage {
    /// The kind in the version that is stored.
    pub kind: &'static Kind,
    pub cache: Cache,
    pub store: Arc<dyn Store>,
}

/// Turns objects of a served version into the stored one and back.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    pub to_stored: fn(Value) -> Value,
    pub from_stored: fn(Value) -> Value,
    /// The stored kind's rules hold; those of the served version end with its defaults.
    pub rules_of_stored: bool,
}

/// One version of a resource as clients see it.
pub struct Served {
    pub resource: &'static Resource,
    pub kind: &'static Kind,
    pub api_version: String,
    pub schema: SchemaRef<'static>,
    pub storage: Arc<Storage>,
    /// `None`: this version is the stored one.
    pub conversion: Option<Conversion>,
    /// What each door keeps from being owned through it.
    resets: Vec<(&'static str, Reset)>,
    /// The other versions that the same objects are served in.
    versions: Option<versions::Versions>,
}

/// Names of groups, versions and resources are Ferry's own, so nobody can choose them to collide: a hash that is quick on
/// short texts will do (FNV).
type ByName<T> = HashMap<&'static str, T, BuildHasherDefault<NameHasher>>;

#[derive(Default)]
pub struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        const START: u64 = 0xcbf2_9ce4_8422_2325;
        let hash = bytes
            .iter()
            .fold(self.0 ^ START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Every stored resource, by group, version and plural.
pub struct Registry {
    served: ByName<ByName<ByName<Arc<Served>>>>,
    pub store: Arc<dyn Store>,
    pub admission: Admission,
    pub authorization: Arc<Authorization>,
    pub services: allocate::Services,
    leases: leases::Leases,
}

/// Who writes, as what, and with which options: what every write needs besides the object.
pub struct WriteContext<'a> {
    pub user: &'a UserInfo,
    /// The name under which managedFields records the write.
    pub manager: String,
    pub dry_run: bool,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub warnings: &'a Warnings,
    /// The server itself writes, not a client of this name: exempt from webhooks and policies.
    pub is_server: bool,
}

impl<'a> WriteContext<'a> {
    /// A write of the server itself.
    pub fn server(user: &'a UserInfo, warnings: &'a Warnings, namespace: &'a str) -> Self {
        Self {
            user,
            manager: "kube-apiserver".to_owned(),
            dry_run: false,
            subresource: "",
            namespace,
            warnings,
            is_server: *user == UserInfo::server(),
        }
    }
}

/// What a write left behind.
pub enum Written {
    /// Stored: the bytes and their revision.
    Stored(Arc<Entry>),
    /// A dry run, or an object that is gone: only the value remains, in the stored version.
    Value(Value),
}

impl Written {
    pub fn value(&self) -> Value {
        match self {
            Self::Stored(entry) => entry.value(),
            Self::Value(value) => value.clone(),
        }
    }
}

impl Served {
    pub fn namespaced(&self) -> bool {
        self.kind.scope == Scope::Namespaced
    }

    /// The key of an object, or the prefix of a namespace's or the whole resource's objects.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        let root = &self.storage.cache.root;
        if self.namespaced() { [root, namespace, "/", name].concat() } else { [root, name].concat() }
    }

    pub fn scope_key(&self, namespace: &str) -> String {
        let root = &self.storage.cache.root;
        if self.namespaced() && !namespace.is_empty() {
            [root, namespace, "/"].concat()
        } else {
            root.clone()
        }
    }

    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.kind.group, self.kind.resource, name)
    }

    pub fn conflict(&self, name: &str, why: impl std::fmt::Display) -> Status {
        Status::conflict(self.kind.group, self.kind.resource, name, why)
    }

    /// An object of the stored version as this version shows it.
    pub fn present(&self, stored: Value) -> Value {
        match self.conversion {
            None => stored,
            Some(conversion) => (conversion.from_stored)(stored),
        }
    }

    /// An object of another version as this version shows it; `None`: it is of this one, or of none that is known.
    pub fn converted(&self, object: &Value) -> Option<Value> {
        let given = object.get("apiVersion").and_then(Value::as_str)?;
        let versions = self.versions.as_ref().filter(|_| given != self.api_version)?;
        apply::Converter::convert(versions, object, &self.api_version)
    }

    /// Whether the resource has this subresource; the empty one is the resource itself.
    pub fn has_door(&self, subresource: &str) -> bool {
        self.resets.iter().any(|(door, _)| *door == subresource)
    }

    /// An object of this version in the stored one.
    fn store(&self, object: Value) -> Value {
        match self.conversion {
            None => object,
            Some(conversion) => (conversion.to_stored)(object),
        }
    }

    /// The stored version of an object that has gone through the [`Self::rules`].
    fn stored_form(&self, object: Value) -> Value {
        if self.rules_are_of_stored() { object } else { self.store(object) }
    }

    fn rules_are_of_stored(&self) -> bool {
        self.conversion.is_none_or(|conversion| conversion.rules_of_stored)
    }

    /// Whose rules a write has to follow.
    pub fn rules(&self) -> &'static Kind {
        if self.rules_are_of_stored() { self.storage.kind } else { self.kind }
    }

    /// Brings an object that rules have changed back into the form of its type, as storing leaves it.
    fn normalize(&self, object: &mut Value) -> Result<()> {
        let stored = self.storage.cache.layout.schema.filter(|_| self.rules_are_of_stored());
        let schema = stored.unwrap_or(self.schema);
        // Definitions and API services are kept as JSON.
        let as_json = matches!(self.kind.group, "apiextensions.k8s.io" | "apiregistration.k8s.io");
        let normalize = if as_json { typed::normalize } else { typed::normalize_for_storage };
        normalize(object, schema).map_err(Status::internal)?;
        Ok(())
    }

    pub fn group_kind(&self) -> (&'static str, &'static str) {
        (self.kind.group, self.kind.kind)
    }
}

/// managedFields: who owns what.
impl Served {
    /// Records a create, update or patch.
    fn track(&self, live: Option<&Value>, new: &mut Value, context: &WriteContext<'_>) {
        // Reading a version that is not the stored one adds what stands for fields it does not have.
        if let Some(conversion) = self.conversion.filter(|conversion| conversion.rules_of_stored) {
            *new = (conversion.from_stored)((conversion.to_stored)(std::mem::take(new)));
        }
        self.with_door(context, |door| apply::update(live, new, door));
    }

    /// Merges what an apply wants into the present object.
    fn apply(
        &self,
        live: Option<&Value>,
        wanted: &Value,
        force: bool,
        context: &WriteContext<'_>,
    ) -> Result<Value> {
        self.with_door(context, |door| apply::apply(live, wanted, force, door)).map_err(Status::from)
    }

    fn with_door<T>(&self, context: &WriteContext<'_>, act: impl FnOnce(&apply::Context<'_>) -> T) -> T {
        let reset = self.resets.iter().find(|(door, _)| *door == context.subresource);
        act(&apply::Context {
            schema: Some(self.schema),
            api_version: &self.api_version,
            kind: self.kind.kind,
            subresource: context.subresource,
            reset: reset.map_or(&Reset::Nothing, |(_, reset)| reset),
            manager: &context.manager,
            now: &metadata::now(),
            converter: self.versions.as_ref().map(|versions| versions as &dyn apply::Converter),
        })
    }
}

fn resets_of(resource: &Resource) -> Vec<(&'static str, Reset)> {
    let has_status = resource.subresources.iter().any(|row| row.name == "status");
    let doors = std::iter::once("").chain(resource.subresources.iter().map(|row| row.name));
    doors.map(|door| (door, Reset::of(resource.group, resource.resource, has_status, door))).collect()
}

/// Someone else was faster.
pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The store's troubles as clients see them.
pub fn store_error(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { .. } => {
            Status::expired("The resourceVersion for the provided list is too old.")
        }
        StoreError::Unavailable { .. } => {
            tracing::warn!(%error, "store unavailable");
            Status::service_unavailable(format!("the store cannot be reached: {error}"))
        }
        StoreError::TooLarge { .. } => Status::too_large(format!("Request entity too large: {error}")),
        other => {
            tracing::error!(error = %other, "store");
            Status::internal(other)
        }
    }
}

/// The failure of a write. A write that may have been stored nevertheless is noted with the request: what was allocated
/// for it must stay allocated.
fn write_error(error: &StoreError, warnings: &Warnings) -> Status {
    if matches!(error, StoreError::OutcomeUnknown { .. } | StoreError::Poisoned { .. }) {
        warnings.note_unknown_outcome();
    }
    store_error(error)
}

impl Registry {
    pub fn new(store: Arc<dyn Store>, admission: Admission, services: allocate::Services) -> Self {
        Self::with_authorizers(store, admission, services, vec![Choice::Node, Choice::Rbac])
    }

    /// As [`Registry::new`], with these authorizers.
    pub fn with_authorizers(
        store: Arc<dyn Store>,
        admission: Admission,
        services: allocate::Services,
        authorizers: Vec<Choice>,
    ) -> Self {
        let mut storages: HashMap<(&str, &str), Arc<Storage>> = HashMap::new();
        let mut served: ByName<ByName<ByName<_>>> = ByName::default();
        let schema = api::schema::schema();
        for resource in api::resources::RESOURCES {
            let Some(kind) = api::kinds::KINDS.iter().find(|k| {
                (k.group, k.version, k.resource) == (resource.group, resource.version, resource.resource)
            }) else {
                continue;
            };
            let Some(schema) = schema.kind(kind.group, kind.version, kind.kind) else {
                tracing::error!(kind = kind.kind, "a built-in kind has no schema");
                continue;
            };
            let conversion = conversion_of(kind);
            let stored = conversion.map_or(*kind, |(stored, _)| stored);
            let storage = storages
                .entry((stored.group, stored.resource))
                .or_insert_with(|| Arc::new(Storage::new(stored, store.clone())))
                .clone();
            let row = Served {
                resource,
                kind,
                api_version: machinery::gvk::api_version(kind.group, kind.version),
                schema,
                storage,
                conversion: conversion.map(|(_, conversion)| conversion),
                resets: resets_of(resource),
                versions: versions::Versions::of(kind),
            };
            let versions = served.entry(kind.group).or_default();
            versions.entry(kind.version).or_default().insert(kind.resource, Arc::new(row));
        }
        let mut storage_of = |kind: &'static Kind| {
            let storage = storages.entry((kind.group, kind.resource));
            storage.or_insert_with(|| Arc::new(Storage::new(kind, store.clone()))).clone()
        };
        use api::kinds::{
            cluster_role, cluster_role_binding, persistent_volume, pod, resource_slice, role, role_binding,
            volume_attachment,
        };
        let node = Node::new(node::Storages {
            pods: storage_of(&pod::KIND),
            persistent_volumes: storage_of(&persistent_volume::KIND),
            volume_attachments: storage_of(&volume_attachment::KIND),
            resource_slices: storage_of(&resource_slice::KIND),
        });
        let rbac = Rbac::new(
            [&cluster_role::KIND, &cluster_role_binding::KIND, &role::KIND, &role_binding::KIND]
                .map(&mut storage_of),
        );
        let authorization = Arc::new(Authorization::new(node, rbac, authorizers));
        Self { served, store, admission, authorization, services, leases: leases::Leases::default() }
    }

    pub fn served(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Served>> {
        self.served.get(group)?.get(version)?.get(resource)
    }

    /// A built-in resource that is known to be there.
    pub fn builtin(&self, group: &str, version: &str, resource: &str) -> Result<&Arc<Served>> {
        self.served(group, version, resource)
            .ok_or_else(|| Status::internal(format!("no storage for {resource}.{version}.{group}")))
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.served.values().flat_map(HashMap::values).flat_map(HashMap::values)
    }

    /// The other versions of the same objects, in a fixed order.
    pub fn equivalents(&self, served: &Served) -> Vec<&Served> {
        // Most have none, which is known at once.
        if served.versions.is_none() {
            return Vec::new();
        }
        let is_other = |other: &&Arc<Served>| {
            Arc::ptr_eq(&other.storage, &served.storage) && other.api_version != served.api_version
        };
        let mut others: Vec<&Served> = self.all().filter(is_other).map(Arc::as_ref).collect();
        others.sort_by(|a, b| a.api_version.cmp(&b.api_version));
        others
    }
}

/// Versions that are stored as another one, and how to get there.
fn conversion_of(kind: &Kind) -> Option<(&'static Kind, Conversion)> {
    use api::kinds::{event, horizontal_pod_autoscaler as hpa};
    match (kind.group, kind.version, kind.resource) {
        ("autoscaling", "v1", "horizontalpodautoscalers") => Some((
            &hpa::KIND,
            Conversion {
                to_stored: |v| hpa::from_v1(&v),
                from_stored: |v| hpa::to_v1(&v),
                rules_of_stored: true,
            },
        )),
        ("events.k8s.io", "v1", "events") => Some((
            &event::KIND,
            Conversion {
                to_stored: event::to_core_v1,
                from_stored: event::to_events_v1,
                rules_of_stored: false,
            },
        )),
        _ => None,
    }
}

impl Storage {
    fn new(kind: &'static Kind, store: Arc<dyn Store>) -> Self {
        let api_version = machinery::gvk::api_version(kind.group, kind.version);
        let group = if kind.group.is_empty() { "core" } else { kind.group };
        let layout = Layout {
            prefix: Prefix::new(&api_version, kind.kind),
            fields: api::field_selectors::fields(kind.group, kind.version, kind.resource)
                .iter()
                .filter(|field| !matches!(field.name, "metadata.name" | "metadata.namespace"))
                .copied()
                .collect(),
            schema: api::schema::schema().kind(kind.group, kind.version, kind.kind),
            api_version,
            kind: kind.kind.to_owned(),
        };
        let root = format!("/registry/{group}/{}/", kind.resource);
        Self { kind, cache: Cache::new(Arc::new(layout), root, store.clone()), store }
    }
}
