//! One served version of a resource, and the conversion between it and the stored one.

use super::conversions::with_conversions;
use super::{Storage, WriteContext, metadata};
use crate::cache::Entry;
use crate::request_info::Verbs;
use api::kind::StoredAs;
use api::subresources;
use api::{ResourceNames, Rules, Text};
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::apply::{self, Reset};
use machinery::schema::{SchemaRef, TypeHandle};
use machinery::status::{Result, Status};
use std::ops::Deref;
use std::sync::Arc;

/// One version of a resource.
pub struct Version {
    pub kind: ResourceNames,
    pub api_version: String,
    pub rules: Arc<dyn Rules>,
    pub storage: Arc<Storage>,
    pub verbs: Verbs,
    pub subresources: Vec<Subresource>,
    /// `None`: this version is the stored one.
    pub conversion: Option<Conversion>,
    schema: TypeHandle,
    /// Reset fields of the main resource; subresources have their own.
    reset: Reset,
}

/// One subresource of a version.
pub struct Subresource {
    pub name: Text,
    pub verbs: Verbs,
    /// `None` if it needs a component that this server does not run.
    pub facts: Option<&'static subresources::Subresource>,
    reset: Reset,
}

/// A version together with the others that serve the same objects.
pub struct Served {
    version: Arc<Version>,
    /// All versions of the resource, this one included; empty if it is the only one.
    versions: Arc<[Arc<Version>]>,
}

/// Conversion between a served version and the stored one.
#[derive(Clone)]
pub enum Conversion {
    /// Of a built-in kind.
    BuiltIn(&'static StoredAs),
    /// The versions have the same fields: only `apiVersion` differs.
    Rename,
    /// Asynchronous and fallible.
    Batch(Arc<dyn Convert>),
}

/// Conversion of several objects in one call.
pub trait Convert: Send + Sync {
    /// Converts objects of any version of the resource, in their order.
    fn convert<'a>(&'a self, objects: Vec<Value>, api_version: &'a str) -> BoxFuture<'a, Result<Vec<Value>>>;
}

impl Deref for Served {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.version
    }
}

impl Version {
    /// One version. `subresources` are names with their verbs.
    pub fn new(
        kind: ResourceNames,
        rules: Arc<dyn Rules>,
        schema: TypeHandle,
        storage: Arc<Storage>,
        conversion: Option<Conversion>,
        verbs: Verbs,
        subresources: impl IntoIterator<Item = (Text, Verbs)>,
    ) -> Self {
        let resource = kind.resource();
        let subresources = subresources.into_iter().map(|(name, verbs)| Subresource {
            verbs,
            facts: subresources::find(resource, &name),
            reset: rules.reset_fields(&name),
            name,
        });
        let subresources: Vec<Subresource> = subresources.collect();
        let has_status = subresources.iter().any(|row| row.name == "status");
        let reset = if has_status { rules.reset_fields("") } else { Reset::Nothing };
        let api_version = kind.api_version();
        Self { kind, api_version, rules, storage, verbs, subresources, conversion, schema, reset }
    }

    pub fn namespaced(&self) -> bool {
        self.kind.namespaced()
    }

    pub fn schema(&self) -> SchemaRef<'_> {
        self.schema.get()
    }

    /// The key of an object.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        let root = &self.storage.cache.root;
        if self.namespaced() { [root, namespace, "/", name].concat() } else { [root, name].concat() }
    }

    /// Key prefix of a namespace's objects, or of all.
    pub fn scope_key(&self, namespace: &str) -> String {
        let root = &self.storage.cache.root;
        if self.namespaced() && !namespace.is_empty() {
            [root, namespace, "/"].concat()
        } else {
            root.clone()
        }
    }

    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.kind.group(), self.kind.resource(), name)
    }

    pub fn conflict(&self, name: &str, why: impl std::fmt::Display) -> Status {
        Status::conflict(self.kind.group(), self.kind.resource(), name, why)
    }

    /// Reports whether the resource has this subresource; the empty one is the resource itself.
    pub fn has_subresource(&self, name: &str) -> bool {
        name.is_empty() || self.subresource(name).is_some()
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|row| row.name == name)
    }

    fn reset(&self, subresource: &str) -> &Reset {
        match self.subresource(subresource) {
            _ if subresource.is_empty() => &self.reset,
            Some(row) => &row.reset,
            None => &Reset::Nothing,
        }
    }

    /// Reports whether the stored bytes of an object are in this version.
    pub fn shows_stored_bytes(&self, entry: &Entry) -> bool {
        match self.conversion {
            None => true,
            Some(Conversion::BuiltIn(_) | Conversion::Rename) => false,
            // Objects may be stored in another version than the current storage version.
            Some(Conversion::Batch(_)) => {
                let layout = &self.storage.cache.layout;
                self.api_version == layout.api_version && layout.prefix.fits(&entry.bytes)
            }
        }
    }

    /// Reports whether the stored bytes of all these objects are in this version.
    pub fn shows_all_stored_bytes(&self, entries: &[Arc<Entry>]) -> bool {
        match self.conversion {
            None => true,
            Some(Conversion::BuiltIn(_) | Conversion::Rename) => false,
            Some(Conversion::Batch(_)) => entries.iter().all(|entry| self.shows_stored_bytes(entry)),
        }
    }

    /// Converts an object from the stored version, except by webhook.
    pub fn present(&self, stored: Value) -> Value {
        match &self.conversion {
            Some(Conversion::BuiltIn(conversion)) => (conversion.from_stored)(stored),
            Some(Conversion::Rename) => {
                let mut object = renamed(stored, &self.api_version);
                self.rules.prune(&mut object);
                object
            }
            None | Some(Conversion::Batch(_)) => stored,
        }
    }

    /// Converts a stored object to this version.
    pub async fn presented(&self, stored: Value) -> Result<Value> {
        self.converted_one(stored).await.map(|stored| self.present(stored))
    }

    /// The webhook part of converting stored objects, in one call. [`Self::present`] does the rest.
    pub async fn converted(&self, stored: Vec<Value>) -> Result<Vec<Value>> {
        match &self.conversion {
            Some(Conversion::Batch(convert)) if stored.iter().any(|object| !self.is_of_this(object)) => {
                convert.convert(stored, &self.api_version).await
            }
            _ => Ok(stored),
        }
    }

    /// The same for one object.
    pub async fn converted_one(&self, stored: Value) -> Result<Value> {
        match &self.conversion {
            Some(Conversion::Batch(convert)) => one(&**convert, stored, &self.api_version).await,
            _ => Ok(stored),
        }
    }

    fn is_of_this(&self, object: &Value) -> bool {
        object.get("apiVersion").and_then(Value::as_str) == Some(&self.api_version)
    }

    /// Converts an object of this version to the stored one.
    pub(super) async fn stored(&self, object: Value) -> Result<Value> {
        let wanted = &self.storage.cache.layout.api_version;
        match &self.conversion {
            None => Ok(object),
            Some(Conversion::BuiltIn(conversion)) => Ok((conversion.to_stored)(object)),
            Some(Conversion::Rename) => Ok(self.read_stored(renamed(object, wanted))),
            Some(Conversion::Batch(convert)) => {
                one(&**convert, object, wanted).await.map(|object| self.read_stored(object))
            }
        }
    }

    /// An object in the stored version as it would be read back.
    fn read_stored(&self, mut object: Value) -> Value {
        self.storage.rules.read(&mut object);
        object
    }

    /// The conversion before the stored kind's rules, if those apply instead of this version's.
    pub(super) fn early_conversion(&self) -> Option<&'static StoredAs> {
        match self.conversion {
            Some(Conversion::BuiltIn(conversion)) => Some(conversion).filter(|found| found.rules_of_stored),
            _ => None,
        }
    }

    fn rules_are_of_stored(&self) -> bool {
        self.conversion.is_none() || self.early_conversion().is_some()
    }

    /// The stored version of an object that the [`Self::governing`] rules have processed.
    pub(super) async fn stored_form(&self, object: Value) -> Result<Value> {
        if self.rules_are_of_stored() { Ok(object) } else { self.stored(object).await }
    }

    /// The rules that apply to writes.
    pub fn governing(&self) -> &dyn Rules {
        if self.rules_are_of_stored() { &*self.storage.rules } else { &*self.rules }
    }

    /// Names of the kind whose rules apply to writes.
    pub fn governing_names(&self) -> &ResourceNames {
        if self.rules_are_of_stored() { &self.storage.kind } else { &self.kind }
    }

    /// Normalizes an object after its rules have changed it, to the form in which it is stored.
    pub(super) fn normalize(&self, object: &mut Value) -> Result<()> {
        let stored = self.storage.schema.as_ref().filter(|_| self.rules_are_of_stored());
        let schema = stored.unwrap_or(&self.schema).get();
        self.governing().normalize_stored(object, schema).map_err(Status::internal)
    }

    /// The webhook that converts objects of this version.
    pub(super) fn webhook(&self) -> Option<&dyn Convert> {
        match &self.conversion {
            Some(Conversion::Batch(convert)) => Some(&**convert),
            _ => None,
        }
    }

    /// Converts an object of another version to this one; `None` if neither is known, or if a webhook converts.
    pub(super) fn converted_from(&self, other: &Version, object: &Value) -> Option<Value> {
        let stored = match (&other.conversion, &self.conversion) {
            (Some(Conversion::Batch(_)), _) => return None,
            (Some(Conversion::BuiltIn(conversion)), _) => (conversion.to_stored)(object.clone()),
            // Nothing is dropped: an apply reports fields that this version does not declare.
            (Some(Conversion::Rename), _) | (None, Some(Conversion::Rename)) => {
                return Some(renamed(object.clone(), &self.api_version));
            }
            (None, _) => object.clone(),
        };
        Some(self.present(stored))
    }
}

impl Served {
    /// The only version, or one of several.
    pub fn new(version: Arc<Version>, versions: Arc<[Arc<Version>]>) -> Self {
        Self { version, versions }
    }

    /// The other versions of the same objects.
    pub fn equivalents(&self) -> impl Iterator<Item = &Version> {
        let is_other = |other: &&Arc<Version>| other.api_version != self.api_version;
        self.versions.iter().filter(is_other).map(Arc::as_ref)
    }

    pub(super) fn find(&self, api_version: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.api_version == api_version).map(Arc::as_ref)
    }

    /// Converts an object to another version; `None` if it already has that version, or has an unknown one.
    pub async fn in_version(&self, object: &Value, wanted: &Version) -> Result<Option<Value>> {
        let submitted = object.get("apiVersion").and_then(Value::as_str).unwrap_or("");
        if submitted == wanted.api_version || self.versions.is_empty() {
            return Ok(None);
        }
        match &wanted.conversion {
            Some(Conversion::Batch(convert)) => {
                one(&**convert, object.clone(), &wanted.api_version).await.map(Some)
            }
            _ => Ok(self.find(submitted).and_then(|submitted| wanted.converted_from(submitted, object))),
        }
    }
}

impl apply::Converter for Served {
    fn convert(&self, object: &Value, wanted: &str) -> Option<Value> {
        let submitted = object.get("apiVersion").and_then(Value::as_str).unwrap_or("");
        self.find(wanted)?.converted_from(self.find(submitted)?, object)
    }

    fn schema(&self, api_version: &str) -> Option<SchemaRef<'_>> {
        self.find(api_version).map(Version::schema)
    }
}

/// managedFields tracking.
impl Served {
    /// Records a create, update or patch.
    pub(super) async fn track(&self, live: Option<&Value>, new: &mut Value, context: &WriteContext<'_>) {
        // Reading a version other than the stored one adds placeholders for its missing fields.
        if let Some(conversion) = self.early_conversion() {
            *new = (conversion.from_stored)((conversion.to_stored)(std::mem::take(new)));
        }
        if !self.converts_by_webhook() {
            let converter = self.converter();
            apply::update(live, new, &self.apply_context(context, &metadata::now(), converter));
            return;
        }
        let (now, submitted) = (metadata::now(), &*new);
        let tracked = with_conversions(self, |converter| {
            let mut new = submitted.clone();
            apply::update(live, &mut new, &self.apply_context(context, &now, Some(converter)));
            new
        });
        *new = tracked.await;
    }

    /// Merges an apply into the current object.
    pub(super) async fn apply(
        &self,
        live: Option<&Value>,
        wanted: &Value,
        force: bool,
        context: &WriteContext<'_>,
    ) -> Result<Value> {
        let now = metadata::now();
        if !self.converts_by_webhook() {
            let context = self.apply_context(context, &now, self.converter());
            return apply::apply(live, wanted, force, &context).map_err(Status::from);
        }
        let merged = with_conversions(self, |converter| {
            apply::apply(live, wanted, force, &self.apply_context(context, &now, Some(converter)))
        });
        merged.await.map_err(Status::from)
    }

    fn converts_by_webhook(&self) -> bool {
        self.versions.iter().any(|version| version.webhook().is_some())
    }

    fn converter(&self) -> Option<&dyn apply::Converter> {
        (!self.versions.is_empty()).then_some(self as &dyn apply::Converter)
    }

    /// Converts an object to another version; `None` if the webhook fails: the managers of that version are then
    /// dropped.
    pub(super) async fn converted_by_webhook(&self, object: &Value, api_version: &str) -> Option<Value> {
        let convert = self.versions.iter().find_map(|version| version.webhook())?;
        one(convert, object.clone(), api_version)
            .await
            .inspect_err(|status| tracing::warn!(error = %status.message, "failed to convert object for managed fields"))
            .ok()
    }

    fn apply_context<'a>(
        &'a self,
        context: &'a WriteContext<'_>,
        now: &'a str,
        converter: Option<&'a dyn apply::Converter>,
    ) -> apply::Context<'a> {
        apply::Context {
            schema: Some(self.version.schema()),
            api_version: &self.api_version,
            kind: self.kind.kind(),
            subresource: context.subresource,
            reset: self.reset(context.subresource),
            manager: &context.manager,
            now,
            converter,
        }
    }
}

fn renamed(mut object: Value, api_version: &str) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
    }
    object
}

async fn one(convert: &dyn Convert, object: Value, api_version: &str) -> Result<Value> {
    if object.get("apiVersion").and_then(Value::as_str) == Some(api_version) {
        return Ok(object);
    }
    let mut converted = convert.convert(vec![object], api_version).await?;
    converted.pop().ok_or_else(|| Status::internal("conversion returned no object"))
}
