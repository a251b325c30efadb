//! The generic registry: every verb on every stored resource, with the kind's own rules plugged in.
//!
//! A [`Storage`] stores the objects of one kind; a [`Served`] is one served version of it. A [`Catalogue`] holds
//! those of one moment. One file per verb.

mod admin_access;
mod built_in;
pub mod catalogue;
#[cfg(test)]
mod catalogue_tests;
mod claim_status;
pub mod conditions;
mod conversions;
pub mod create;
mod decoded_input;
pub mod delete;
mod edit;
pub mod feed;
pub mod leases;
pub mod list;
mod measured_store;
pub mod metadata;
pub mod patch;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod runtime_config_tests;
pub mod scale;
pub mod services;
pub mod stores;
pub mod update;
pub mod version;
pub mod watch;
mod write_record;

pub use catalogue::{Catalogue, Catalogues};
pub use decoded_input::DecodedInput;
pub use stores::{StoreOverride, Stores};
pub use version::{Conversion, Convert, Served, Subresource, Version};
pub use write_record::WriteRecord;

use crate::admission::Admission;
use crate::aggregate::Routing;
use crate::authorize::{Authorization, Choice};
use crate::cache::{Cache, Entry, Layout, Reader};
use crate::stored_form::Prefix;
use crate::user::UserInfo;
use api::runtime_config::RuntimeConfig;
use api::{ResourceNames, Rules};
use machinery::Value;
use machinery::schema::TypeHandle;
use machinery::status::{Result, Status};
use measured_store::MeasuredStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Store, StoreError};

/// Storage of one kind.
pub struct Storage {
    /// The kind in its stored version.
    pub kind: ResourceNames,
    pub rules: Arc<dyn Rules>,
    pub cache: Cache,
    pub store: Arc<dyn Store>,
    /// Schema of the stored version.
    schema: Option<TypeHandle>,
    pub lists: ListCounters,
}

/// Lists of a resource since its storage exists, from the watch cache and from the store.
#[derive(Debug, Default)]
pub struct ListCounters {
    pub cache: ListCounter,
    pub store: ListCounter,
}

/// Lists, the objects that they read, and those that they returned.
#[derive(Debug, Default)]
pub struct ListCounter {
    pub lists: AtomicU64,
    pub fetched: AtomicU64,
    pub returned: AtomicU64,
}

impl ListCounter {
    fn add(&self, fetched: usize, returned: usize) {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.fetched.fetch_add(fetched as u64, Ordering::Relaxed);
        self.returned.fetch_add(returned as u64, Ordering::Relaxed);
    }

    /// Numbers of lists, fetched and returned objects.
    #[must_use]
    pub fn read(&self) -> [u64; 3] {
        [&self.lists, &self.fetched, &self.returned].map(|number| number.load(Ordering::Relaxed))
    }
}

/// Durations configured by Kubernetes' flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Lifetime of events.
    pub event_ttl: Duration,
    /// Default toleration of pods for nodes that are not ready, in seconds.
    pub not_ready_toleration: i64,
    /// Default toleration of pods for unreachable nodes, in seconds.
    pub unreachable_toleration: i64,
    /// Shortest time after which the server ends a watch.
    pub min_request_timeout: Duration,
    /// Routing to the services of webhooks.
    pub service_routing: Routing,
    /// Interval of repairing cluster IPs and node ports of services.
    pub service_repair: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            event_ttl: Duration::from_secs(3600),
            not_ready_toleration: 300,
            unreachable_toleration: 300,
            min_request_timeout: Duration::from_secs(1800),
            service_routing: Routing::Endpoints,
            service_repair: Duration::from_secs(3 * 60),
        }
    }
}

/// All stored resources and their shared state.
pub struct Registry {
    pub catalogues: Catalogues,
    pub store: Arc<dyn Store>,
    pub admission: Admission,
    pub authorization: Arc<Authorization>,
    pub services: services::Services,
    pub tuning: Tuning,
    leases: leases::Leases,
}

/// User, manager and options of a write: its parameters besides the object.
pub struct WriteContext<'a> {
    pub user: &'a UserInfo,
    /// Verb of the request: `update`, `patch`.
    pub verb: &'a str,
    /// Field manager of the write.
    pub manager: String,
    pub dry_run: bool,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub record: &'a WriteRecord,
    /// True for the server itself, as opposed to a client of the same name: exempt from webhooks and policies.
    pub is_server: bool,
}

impl<'a> WriteContext<'a> {
    /// A write of the server itself.
    pub fn server(user: &'a UserInfo, record: &'a WriteRecord, namespace: &'a str) -> Self {
        Self {
            user,
            verb: "update",
            manager: "kube-apiserver".to_owned(),
            dry_run: false,
            subresource: "",
            namespace,
            record,
            is_server: *user == UserInfo::server(),
        }
    }
}

/// Result of a write.
pub enum Written {
    /// Stored: the bytes and their revision.
    Stored(Arc<Entry>),
    /// A dry run, or a deleted object: only the value remains, in the stored version.
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

/// Message of a write conflict.
pub const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Maps store errors to Status.
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
            tracing::error!(error = %other, "store request failed");
            Status::internal(other)
        }
    }
}

/// Conversion of the store's results to those of requests.
pub trait OrStatus<T> {
    /// The value, or the error as [`store_error`] maps it.
    fn or_status(self) -> Result<T>;
}

impl<T> OrStatus<T> for std::result::Result<T, StoreError> {
    fn or_status(self) -> Result<T> {
        self.map_err(|error| store_error(&error))
    }
}

/// Maps the error of a write. An unknown outcome is recorded in the request: its allocations must be retained.
fn write_error(error: &StoreError, record: &WriteRecord) -> Status {
    if matches!(error, StoreError::OutcomeUnknown { .. } | StoreError::Poisoned { .. }) {
        record.note_unknown_outcome();
    }
    store_error(error)
}

impl Registry {
    pub fn new(store: Arc<dyn Store>, admission: Admission, services: services::Services) -> Self {
        let authorizers = vec![Choice::Node, Choice::Rbac];
        Self::with_authorizers(store, admission, services, authorizers, String::new())
    }

    /// As [`Registry::new`], with these authorizers and the `host:port` in discovery.
    pub fn with_authorizers(
        store: Arc<dyn Store>,
        admission: Admission,
        services: services::Services,
        authorizers: Vec<Choice>,
        server_address: String,
    ) -> Self {
        let runtime = RuntimeConfig::default();
        Self::with_runtime_config(store, admission, services, authorizers, server_address, &runtime)
    }

    /// As [`Registry::with_authorizers`], serving the built-in versions that `runtime` selects.
    pub fn with_runtime_config(
        stores: impl Into<Stores>,
        admission: Admission,
        services: services::Services,
        authorizers: Vec<Choice>,
        server_address: String,
        runtime: &RuntimeConfig,
    ) -> Self {
        let stores = stores.into();
        let mut built_in = built_in::BuiltIn::new(&stores, runtime);
        let (node, rbac) = built_in.authorizers();
        let authorization = Arc::new(Authorization::new(node, rbac, authorizers));
        let catalogues = Catalogues::new(built_in.served(), server_address, runtime);
        let (tuning, leases) = (Tuning::default(), leases::Leases::default());
        Self { catalogues, store: stores.main, admission, authorization, services, tuning, leases }
    }

    /// The catalogue for a new request.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogues.load()
    }

    /// A built-in resource, which is known to exist.
    pub fn builtin(&self, group: &str, version: &str, resource: &str) -> Result<&Arc<Served>> {
        self.catalogues
            .built_in()
            .served(group, version, resource)
            .ok_or_else(|| Status::internal(format!("no storage for {resource}.{version}.{group}")))
    }
}

impl Storage {
    /// Storage of a built-in kind: `schema` is its protobuf type.
    pub fn new(
        kind: ResourceNames,
        rules: Arc<dyn Rules>,
        schema: Option<TypeHandle>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::with_reader(kind, rules, schema, None, store)
    }

    /// Storage of a custom resource. `renames`: versions differ in their names only.
    pub fn custom(kind: ResourceNames, rules: Arc<dyn Rules>, renames: bool, store: Arc<dyn Store>) -> Self {
        let reader = Reader { rules: Arc::clone(&rules), renames };
        Self::with_reader(kind, rules, None, Some(reader), store)
    }

    fn with_reader(
        kind: ResourceNames,
        rules: Arc<dyn Rules>,
        schema: Option<TypeHandle>,
        reader: Option<Reader>,
        store: Arc<dyn Store>,
    ) -> Self {
        let api_version = kind.api_version();
        let group = if kind.group().is_empty() { "core" } else { kind.group() };
        let layout = Layout {
            prefix: Prefix::new(&api_version, kind.kind()),
            fields: rules.indexed_fields(),
            unindexed: rules.unindexed_members(),
            schema: schema.clone().filter(|_| !rules.is_custom()),
            api_version,
            kind: kind.kind().to_owned(),
            reader,
        };
        let store: Arc<dyn Store> = Arc::new(MeasuredStore::new(store, kind.group(), kind.resource()));
        let root = format!("/registry/{group}/{}/", kind.resource());
        let cache = Cache::new(Arc::new(layout), root, store.clone());
        Self { kind, rules, cache, store, schema, lists: ListCounters::default() }
    }

    /// A value returned by the store.
    fn entry(&self, kv: store::KeyValue) -> Arc<Entry> {
        Arc::new(self.cache.layout.entry(kv.key, kv.value, kv.mod_revision))
    }
}
