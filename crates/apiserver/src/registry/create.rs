//! Create: system fields, the kind's rules, admission, one compare-and-swap.

use super::metadata::{
    ensure_namespace, fill_system_fields, generate_name, refuse, validate_new, wipe_system_fields,
};
use super::services::WriteOutcome;
use super::{OrStatus, Registry, Served, WriteContext, WriteRecord, Written, metadata, write_error};
use crate::admission::{Attributes, Operation, shown_name};
use crate::authorize::{self, escalation};
use crate::cache::Entry;
use api::value::Fields;
use bytes::Bytes;
use machinery::field::ErrorBudget;
use machinery::status::{Details, Result, Status};
use machinery::{Value, meta};
use std::sync::Arc;
use store::{Expect, Op, Outcome, StoreError, Txn};

/// Reports whether the request that stores a new object was authorized as a create.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CreateAccess {
    Authorized,
    /// The request was authorized as an update or a patch: `create` is checked before validating admission, as in
    /// Kubernetes' `withAuthorization`.
    Unchecked,
}

/// Attempts to generate a free name.
const NAME_ATTEMPTS: usize = 8;

impl Registry {
    /// Stores a new object. `object` is in the served version, decoded, normalised and defaulted.
    pub async fn create(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
    ) -> Result<Written> {
        wipe_system_fields(&mut object);
        self.create_unsanitized(served, object, context, CreateAccess::Authorized).await
    }

    /// Creates the object of a PUT that does not exist. As in Kubernetes, it keeps system fields, and in a dry run
    /// its resource version. The user needs permission to create it.
    pub async fn create_missing(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
    ) -> Result<Written> {
        let version = meta::resource_version(&object);
        if !version.is_empty() {
            crate::wire::query::parse_uint(version).map_err(|why| Status::new(500, "", why))?;
        }
        if !context.dry_run {
            meta::metadata_mut(&mut object).remove("resourceVersion");
        }
        self.create_unsanitized(served, object, context, CreateAccess::Unchecked).await
    }

    async fn create_unsanitized(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
        access: CreateAccess,
    ) -> Result<Written> {
        ensure_namespace(&mut object, served, context.namespace)?;
        metadata::check_size(&object)?;
        metadata::dedup_owner_references(&mut object, context);
        served.track(None, &mut object, context).await;
        self.admit_create(served, "", &mut object, context).await?;
        metadata::dedup_owner_references(&mut object, context);
        self.insert(served, object, context, access).await
    }

    /// Returns 403 unless the user may create this object.
    async fn authorize_create(&self, served: &Served, name: &str, context: &WriteContext<'_>) -> Result<()> {
        let attributes = authorize::Attributes {
            verb: "create",
            is_resource: true,
            group: served.kind.group(),
            version: served.kind.version(),
            resource: served.kind.resource(),
            subresource: context.subresource,
            namespace: context.namespace,
            name,
            ..authorize::Attributes::default()
        };
        self.authorization.check(context.user, &attributes).await
    }

    /// `subject` is the name in the request's path, if any.
    pub(super) async fn admit_create(
        &self,
        served: &Served,
        subject: &str,
        object: &mut Value,
        context: &WriteContext<'_>,
    ) -> Result<()> {
        if let Some(why) = served.rules.rejects_creation() {
            let kind = &served.kind;
            return Err(Status::forbidden(kind.group(), kind.resource(), meta::name(object), why));
        }
        // managedFields are not recomputed: fields added by admission have no owner.
        let name = shown_name(object).to_owned();
        let attributes = Attributes::new(served, context, Operation::Create).named(&name);
        self.admission.mutate(self, &attributes, Some(object), None).await?;
        escalation::check(&self.authorization, served, context, subject, object, None).await
    }

    /// The common part of create, and of apply and update of a missing object.
    pub(super) async fn insert(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
        access: CreateAccess,
    ) -> Result<Written> {
        fill_system_fields(&mut object);
        let generate = meta::text(&object, "generateName");
        if !meta::name(&object).is_empty() || generate.is_empty() {
            return self.insert_once(served, object, context, access).await;
        }
        let name = self.free_name(served, generate, meta::namespace(&object)).await?;
        meta::metadata_mut(&mut object).insert("name".to_owned(), name.into());
        match self.insert_once(served, object, context, access).await {
            Err(status) if status.reason == "AlreadyExists" => Err(name_conflict(served, &status)),
            outcome => outcome,
        }
    }

    /// Generates a free name. Another request may take it before it is stored, but rarely does: copying every object
    /// for a retry would cost more than an error to the client.
    async fn free_name(&self, served: &Served, generate: &str, namespace: &str) -> Result<String> {
        if served.rules.generates_no_suffix() {
            return Ok(generate.to_owned());
        }
        let cache = &served.storage.cache;
        let mut name = String::new();
        for _ in 0..NAME_ATTEMPTS {
            name = generate_name(generate);
            let key = served.key(namespace, &name);
            cache.ready_for(&key).await.or_status()?;
            if cache.get(&key).is_none() {
                return Ok(name);
            }
        }
        let kind = served.governing_names();
        Err(name_conflict(served, &Status::already_exists(kind.group(), kind.resource(), &name)))
    }

    async fn insert_once(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
        access: CreateAccess,
    ) -> Result<Written> {
        let reservation = self.reserve(served, &mut object, None, context).await?;
        let outcome = self.insert_reserved(served, object, context, access).await;
        self.settle(reservation, WriteOutcome::of(outcome.is_ok(), context)).await;
        outcome
    }

    async fn insert_reserved(
        &self,
        served: &Served,
        mut object: Value,
        context: &WriteContext<'_>,
        access: CreateAccess,
    ) -> Result<Written> {
        let claims_version = !context.dry_run && claims_version(&object);
        if !context.dry_run {
            meta::metadata_mut(&mut object).remove("resourceVersion");
        }
        if let Some(conversion) = served.early_conversion() {
            object = (conversion.to_stored)(object);
        }
        prepare_new(&mut object, served, context);
        let name = meta::name(&object).to_owned();
        let mut errors = self.validate_admin_access(served, &object).await;
        let budget = ErrorBudget::begin();
        errors.extend(validate_new(&object, served));
        drop(budget);
        refuse(served, &name, errors, context)?;
        let rules = served.governing();
        for warning in rules.warnings(&object, None) {
            context.record.warn(warning);
        }
        rules.canonicalize(&mut object);
        // Reading from the store sets defaults, so stored objects must have them: some depend on the preparation
        // above.
        rules.set_defaults(&mut object);
        served.normalize(&mut object)?;
        if access == CreateAccess::Unchecked {
            Box::pin(self.authorize_create(served, &name, context)).await?;
        }
        let attributes = Attributes::new(served, context, Operation::Create).named(&name);
        self.admission.validate(self, &attributes, Some(&object), None).await?;

        let key = served.key(meta::namespace(&object), &name);
        let stored = served.stored_form(object).await?;
        served.storage.cache.ready_for(&key).await.or_status()?;
        if claims_version {
            return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        if context.dry_run {
            if served.storage.cache.get(&key).is_some() {
                return Err(already_exists(served, &name));
            }
            return Ok(Written::Value(stored));
        }
        let bytes = served.storage.cache.layout.prefix.encode(&stored);
        // Drop now, while the value is in the CPU cache. After the await it would be a cold free.
        drop(stored);
        self.put_new(served, key.into(), &name, bytes, context).await
    }

    /// Stores a new object, unless the key has one.
    async fn put_new(
        &self,
        served: &Served,
        key: Arc<str>,
        name: &str,
        bytes: Bytes,
        context: &WriteContext<'_>,
    ) -> Result<Written> {
        let _writing = base::trace::writing();
        match self.put(served, &key, Expect::Absent, &bytes, context.record).await? {
            Outcome::Committed { revision, .. } => {
                context.record.committed(&key, revision);
                Ok(Written::Stored(Arc::new(Entry::new(key, bytes, revision))))
            }
            Outcome::Conflict { current, .. } => {
                let mut status = already_exists(served, name);
                let deleting = current.is_some_and(|kv| {
                    let old: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
                    meta::deletion_timestamp(&old).is_some()
                });
                if deleting {
                    status.message = format!("object is being deleted: {}", status.message);
                }
                Err(status)
            }
        }
    }

    /// Stores a value, with a lease if its kind expires. A lease that the store has lost is replaced once.
    pub(super) async fn put(
        &self,
        served: &Served,
        key: &Arc<str>,
        expect: Expect,
        value: &Bytes,
        record: &WriteRecord,
    ) -> Result<Outcome> {
        let mut lease = self.lease(served).await?;
        let txn = |lease| Txn { key: key.clone(), expect, op: Op::Put { value: value.clone(), lease } };
        let mut outcome = served.storage.store.txn(txn(lease)).await;
        if let (Err(StoreError::LeaseNotFound(_)), Some(lost)) = (&outcome, lease) {
            self.leases.forget(lost).await;
            lease = self.lease(served).await?;
            outcome = served.storage.store.txn(txn(lease)).await;
        }
        outcome.map_err(|error| write_error(&error, record))
    }

    /// A lease for kinds whose objects expire.
    async fn lease(&self, served: &Served) -> Result<Option<store::LeaseId>> {
        // Events are the only kind that expires.
        let Some(_) = served.storage.rules.ttl_seconds() else { return Ok(None) };
        let seconds = self.tuning.event_ttl.as_secs().max(1);
        self.leases.lease(&*served.storage.store, seconds).await.map(Some).or_status()
    }
}

/// Sets the fields of a new object that clients cannot set, before validation.
fn prepare_new(object: &mut Value, served: &Served, context: &WriteContext<'_>) {
    let rules = served.governing();
    if rules.counts_generation() {
        meta::metadata_mut(object).insert("generation".to_owned(), 1.into());
    }
    if let Some(stamp) = rules.stamp_user() {
        stamp(object, &context.user.to_value());
    }
    for warning in rules.early_warnings(object) {
        context.record.warn(warning);
    }
    let shared = rules.labels_from().filter(|path| {
        context.record.input.defaulted_labels() && object.at("metadata.labels") == object.at(path)
    });
    rules.prepare_create(object);
    if let Some(path) = shared {
        let labels = object.at(path).clone();
        meta::metadata_mut(object).insert("labels".to_owned(), labels);
    }
}

fn already_exists(served: &Served, name: &str) -> Status {
    let kind = served.governing_names();
    Status::already_exists(kind.group(), kind.resource(), name)
}

/// Reports whether a new object has a resource version.
fn claims_version(object: &Value) -> bool {
    crate::wire::query::parse_uint(meta::resource_version(object)).is_ok_and(|version| version != 0)
}

fn name_conflict(served: &Served, status: &Status) -> Status {
    let details = status.details.clone().unwrap_or_default();
    let name = details.name.clone();
    Status::new(
        409,
        "AlreadyExists",
        format!(
            "{} {name:?} already exists, the server was not able to generate a unique name for the object",
            machinery::status::qualified(served.kind.group(), served.kind.resource())
        ),
    )
    .with_details(Details { retry_after_seconds: 1, ..*details })
}
