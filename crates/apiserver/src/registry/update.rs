//! Update: the read-modify-write loop behind PUT, PATCH and every subresource that changes its object.

use super::metadata::{
    check_size, count_generation, dedup_owner_references, ensure_namespace, keep_generation,
    keep_system_fields, refuse,
};
use super::services::WriteOutcome;
use super::{MODIFIED, OrStatus, Registry, Served, WriteContext, Written, write_error};
use crate::admission::{Attributes, Operation, signers};
use crate::authorize::escalation;
use crate::cache::Entry;
use crate::chain::offload;
use api::Rules;
use api::kind::MetadataCheck;
use bytes::Bytes;
use machinery::apply;
use machinery::field::{ErrorBudget, ErrorList, FieldError, Path};
use machinery::status::{Result, Status};
use machinery::{Value, meta, names};
use std::sync::Arc;
use store::{Expect, Op, Outcome, Txn};

/// Attempts of a patch after conflicts.
pub(super) const ATTEMPTS: usize = 5;

/// Update strategy: the part of the object that a request may change, by main resource or subresource.
#[derive(Clone, Copy)]
pub struct UpdateStrategy<'a> {
    pub steps: Steps<'a>,
    /// Metadata checks of the strategy.
    pub metadata: &'static [MetadataCheck],
    /// True if changes increment the generation.
    pub counts_generation: bool,
    /// True if writes may cause warnings.
    pub warns: bool,
}

/// Preparation and validation of an update.
#[derive(Clone, Copy)]
pub enum Steps<'a> {
    /// Of the main resource.
    Main(&'a dyn Rules),
    /// Of the status subresource.
    Status(&'a dyn Rules),
    /// Of a subresource of one built-in kind.
    Own { prepare: fn(&mut Value, &Value), validate: fn(&Value, &Value) -> ErrorList },
}

impl<'a> UpdateStrategy<'a> {
    pub fn main(rules: &'a dyn Rules) -> Self {
        Self {
            steps: Steps::Main(rules),
            metadata: rules.metadata_on_update(),
            counts_generation: rules.counts_generation(),
            warns: true,
        }
    }

    pub fn status(rules: &'a dyn Rules) -> Self {
        Self {
            steps: Steps::Status(rules),
            metadata: rules.metadata_on_status_update(),
            counts_generation: false,
            warns: false,
        }
    }

    fn prepare(&self, new: &mut Value, old: &Value) {
        match self.steps {
            Steps::Main(rules) => rules.prepare_update(new, old),
            Steps::Status(rules) => rules.prepare_status_update(new, old),
            Steps::Own { prepare, .. } => prepare(new, old),
        }
    }

    /// Errors, and warnings about tolerated invalid values.
    fn validate(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        match self.steps {
            Steps::Main(rules) => rules.check_update(new, old),
            Steps::Status(rules) => rules.check_status_update(new, old),
            Steps::Own { validate, .. } => (validate(new, old), Vec::new()),
        }
    }
}

/// New state computed by the caller from the current object, in the served version.
pub enum Change<'a> {
    /// Replaces the object. managedFields are still to be computed; a uid is a precondition.
    Replace(Value),
    /// The result of a patch: a uid is an ordinary change.
    Patched(Value),
    /// Replaces the object; managedFields are up to date.
    Applied(Value),
    /// Merges an apply into the object.
    Apply { wanted: &'a Value, force: bool, complete: Complete<'a> },
}

/// Completes an object merged by an apply.
pub type Complete<'a> = &'a (dyn Fn(&mut Value) -> Result<()> + Send + Sync);

impl Registry {
    /// Changes an object until it is stored or rejected. `make` is called with the current object in the served
    /// version, again for each attempt.
    pub async fn update<'a>(
        &self,
        served: &Served,
        name: &str,
        strategy: UpdateStrategy<'_>,
        retry: bool,
        context: &WriteContext<'_>,
        mut make: impl FnMut(&Value) -> Result<Change<'a>>,
    ) -> Result<Written> {
        let mut current = self.current(served, name, context).await?;
        let mut attempts = 0;
        loop {
            let Some(entry) = current else { return Err(served.not_found(name)) };
            match self.update_once(served, name, strategy, context, &entry, &mut make).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Raced(latest) => {
                    attempts += 1;
                    if !retry || attempts >= ATTEMPTS {
                        return Err(served.conflict(name, MODIFIED));
                    }
                    current = latest;
                }
            }
        }
    }

    /// The current object.
    pub(super) async fn current(
        &self,
        served: &Served,
        name: &str,
        context: &WriteContext<'_>,
    ) -> Result<Option<Arc<Entry>>> {
        let key = served.key(context.namespace, name);
        let cache = &served.storage.cache;
        // The cache of a remote store may lag behind a state that the client has seen on another server.
        cache.fresh(&key).await.or_status()?;
        Ok(cache.get(&key))
    }

    async fn update_once<'a>(
        &self,
        served: &Served,
        name: &str,
        strategy: UpdateStrategy<'_>,
        context: &WriteContext<'_>,
        entry: &Arc<Entry>,
        make: &mut impl FnMut(&Value) -> Result<Change<'a>>,
    ) -> Result<Attempt> {
        offload::heavy_if_large(entry.bytes.len()).await;
        let old = served.presented(entry.value()).await?;
        let (mut new, applied) = match make(&old)? {
            Change::Replace(new) => {
                check_uid(served, &new, &old, context.dry_run)?;
                (new, false)
            }
            Change::Patched(new) => (new, false),
            Change::Applied(new) => (new, true),
            Change::Apply { wanted, force, complete } => {
                let mut new = served.apply(Some(&old), wanted, force, context).await?;
                complete(&mut new)?;
                (new, true)
            }
        };
        check_size(&new)?;
        dedup_owner_references(&mut new, context);
        if !applied {
            served.track(Some(&old), &mut new, context).await;
        }
        note_scaling(&old, &new, context);
        let attributes = Attributes::new(served, context, Operation::Update).named(name);
        self.admission.mutate(self, &attributes, Some(&mut new), Some(&old)).await?;
        escalation::check(&self.authorization, served, context, name, &new, Some(&old)).await?;
        check_revision(served, name, &new, entry.revision)?;
        let reservation = self.reserve(served, &mut new, Some(&old), context).await?;
        let outcome = self.update_reserved(served, name, strategy, context, entry, Draft { new, old }).await;
        let stored = matches!(outcome, Ok(Attempt::Done(_)));
        self.settle(reservation, WriteOutcome::of(stored, context)).await;
        outcome
    }

    /// The part of an update that needs the complete new object.
    async fn update_reserved(
        &self,
        served: &Served,
        name: &str,
        strategy: UpdateStrategy<'_>,
        context: &WriteContext<'_>,
        entry: &Arc<Entry>,
        Draft { mut new, mut old }: Draft,
    ) -> Result<Attempt> {
        let rules = served.governing();
        let attributes = Attributes::new(served, context, Operation::Update).named(name);
        meta::metadata_mut(&mut new).insert("resourceVersion".to_owned(), entry.revision.to_string().into());
        ensure_namespace(&mut new, served, context.namespace)?;
        if let Some(conversion) = served.early_conversion() {
            new = (conversion.to_stored)(new);
            old = entry.value();
        }
        keep_generation(&mut new, &old);
        strategy.prepare(&mut new, &old);
        if strategy.counts_generation {
            count_generation(&mut new, &old);
        }
        keep_system_fields(&mut new, &old);
        let budget = ErrorBudget::begin();
        let mut errors = validate_metadata_update(&new, &old, served, strategy.metadata);
        let (found, tolerated) = strategy.validate(&new, &old);
        errors.extend(found);
        drop(budget);
        errors.extend(self.validate_claim_status(served, name, &new, &old, context).await);
        if errors.is_empty() {
            errors.extend(signers::pod_certificate_problem(self, &attributes, &new, &old).await?);
        }
        refuse(served, name, errors, context)?;
        let warnings = match context.subresource {
            "status" => rules.status_warnings(&new),
            _ if strategy.warns => rules.warnings(&new, Some(&old)),
            _ => Vec::new(),
        };
        for warning in tolerated.into_iter().chain(warnings) {
            context.record.warn(warning);
        }
        rules.canonicalize(&mut new);
        rules.set_defaults(&mut new);
        served.normalize(&mut new)?;
        apply::restore_times(&mut new, &old);
        self.admission.validate(self, &attributes, Some(&new), Some(&old)).await?;

        let stored = served.stored_form(new).await?;
        if finished_deleting(&stored) && !served.storage.rules.held(&stored) {
            return self.remove_emptied(served, name, stored, entry, context).await;
        }
        let bytes = served.storage.cache.layout.prefix.encode(&stored);
        let same = bytes == entry.bytes && !entry.outdated;
        if same && (context.dry_run || !self.is_outdated(served, entry).await?) {
            return Ok(Attempt::Done(Written::Stored(entry.clone())));
        }
        if context.dry_run {
            let mut shown = stored;
            meta::metadata_mut(&mut shown)
                .insert("resourceVersion".to_owned(), entry.revision.to_string().into());
            return Ok(Attempt::Done(Written::Value(shown)));
        }
        // Drop now, while the values are in the CPU cache. After the await it would be a cold free.
        drop((stored, old));
        self.swap(served, entry, bytes, context).await
    }

    /// Compare-and-swap of an object's bytes.
    pub(super) async fn swap(
        &self,
        served: &Served,
        entry: &Entry,
        bytes: Bytes,
        context: &WriteContext<'_>,
    ) -> Result<Attempt> {
        let expect = Expect::Revision(entry.revision);
        let _writing = base::trace::writing();
        match self.put(served, &entry.key, expect, &bytes, context.record).await? {
            Outcome::Committed { revision, .. } => {
                context.record.committed(&entry.key, revision);
                let entry = Entry::new(entry.key.clone(), bytes, revision);
                Ok(Attempt::Done(Written::Stored(Arc::new(entry))))
            }
            Outcome::Conflict { current, .. } => {
                Ok(Attempt::Raced(current.map(|kv| served.storage.entry(kv))))
            }
        }
    }

    /// Reports whether an unchanged object must be rewritten in another stored form.
    async fn is_outdated(&self, served: &Served, entry: &Entry) -> Result<bool> {
        served.storage.store.outdated(&entry.key).await.or_status()
    }

    /// Deletes an object whose last finalizer the update removed.
    async fn remove_emptied(
        &self,
        served: &Served,
        name: &str,
        stored: Value,
        entry: &Arc<Entry>,
        context: &WriteContext<'_>,
    ) -> Result<Attempt> {
        let mut shown = stored;
        if !context.dry_run {
            let txn =
                Txn { key: entry.key.clone(), expect: Expect::Revision(entry.revision), op: Op::Delete };
            let _writing = base::trace::writing();
            match served.storage.store.txn(txn).await.map_err(|e| write_error(&e, context.record))? {
                Outcome::Committed { revision, .. } => context.record.committed(&entry.key, revision),
                Outcome::Conflict { current, .. } => {
                    let latest = current.map(|kv| served.storage.entry(kv));
                    return Ok(Attempt::Raced(latest));
                }
            }
        }
        tracing::debug!(resource = served.kind.resource(), name, "deleted with its last finalizer");
        if !context.dry_run {
            self.release(served, &shown).await;
        }
        meta::metadata_mut(&mut shown)
            .insert("resourceVersion".to_owned(), entry.revision.to_string().into());
        Ok(Attempt::Done(Written::Value(shown)))
    }
}

/// Validates the metadata of an updated object: the general rules, then the checks of its kind.
fn validate_metadata_update(
    new: &Value,
    old: &Value,
    served: &Served,
    checks: &[MetadataCheck],
) -> ErrorList {
    let rules = served.governing();
    let path = Path::new("metadata");
    let (metadata, old_metadata) = (&new["metadata"], &old["metadata"]);
    let mut errors =
        names::validate_generic_object_meta(metadata, served.namespaced(), names::path_segment_name, &path);
    let of_update = names::validate_generic_object_meta_update(metadata, old_metadata, &path);
    // Kinds repeat this validation and its errors.
    let sound = of_update.is_empty();
    errors.extend(of_update);
    if !rules.metadata_last() {
        for check in checks {
            errors.extend(match check {
                MetadataCheck::New => rules.metadata_errors(new),
                MetadataCheck::Update if sound && rules.any_finalizer() => Vec::new(),
                MetadataCheck::Update if sound => names::validate_finalizers_are_standard(metadata, &path),
                MetadataCheck::Update => rules.metadata_update_errors(new, old),
            });
        }
    }
    errors
}

/// New and old state of an object.
struct Draft {
    new: Value,
    old: Value,
}

pub(super) enum Attempt {
    Done(Written),
    /// Conflict with another write; the current state.
    Raced(Option<Arc<Entry>>),
}

/// Reports whether a deletion can complete: requested, no finalizers, no grace period left.
pub(super) fn finished_deleting(object: &Value) -> bool {
    let metadata = meta::metadata(object);
    let grace = metadata.and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
    meta::deletion_timestamp(object).is_some()
        && meta::finalizers(object).is_empty()
        && grace.unwrap_or(0) == 0
}

fn check_uid(served: &Served, new: &Value, old: &Value, dry_run: bool) -> Result<()> {
    let (submitted, real) = (meta::uid(new), meta::uid(old));
    if submitted.is_empty() || submitted == real {
        return Ok(());
    }
    Err(uid_conflict(served, submitted, old, dry_run))
}

/// Error for a mismatching uid.
pub(super) fn uid_conflict(served: &Served, submitted: &str, old: &Value, dry_run: bool) -> Status {
    let (name, real) = (meta::name(old), meta::uid(old));
    let key = shown_key(&*served.storage.rules, meta::namespace(old), name);
    let root = if dry_run { "" } else { "/registry" };
    served.conflict(
        name,
        format!(
            "StorageError: invalid object, Code: 4, Key: {root}{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {submitted}, UID in object meta: {real}"
        ),
    )
}

/// Kubernetes' storage key of an object, for messages.
fn shown_key(rules: &dyn Rules, namespace: &str, name: &str) -> String {
    let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
    format!("/{}{namespace}/{name}", rules.storage_path())
}

/// Checks that the client's resource version is the current one.
fn check_revision(served: &Served, name: &str, new: &Value, revision: u64) -> Result<()> {
    let submitted = meta::resource_version(new);
    if submitted.is_empty() || submitted == "0" {
        if served.rules.unconditional_update() {
            return Ok(());
        }
        let metadata = Path::new("metadata");
        let path = metadata.child("resourceVersion");
        let errors = vec![FieldError::invalid_shown(&path, "0", "must be specified for an update")];
        return Err(Status::invalid(served.kind.group(), served.kind.resource(), name, &errors));
    }
    match crate::wire::query::parse_uint(submitted) {
        Ok(submitted) if submitted == revision => Ok(()),
        Ok(_) => Err(served.conflict(name, MODIFIED)),
        Err(why) => Err(Status::new(500, "", why)),
    }
}

/// Records a changed number of replicas in the audit event.
fn note_scaling(old: &Value, new: &Value, context: &WriteContext<'_>) {
    let replicas =
        |object: &Value| object.get("spec").and_then(|spec| spec.get("replicas")).and_then(Value::as_i64);
    if let (from, Some(to)) = (replicas(old), replicas(new))
        && from != Some(to)
    {
        let from = from.map_or_else(|| "1".to_owned(), |from| from.to_string());
        context.record.annotate("ferry.dev/replicas", format!("{from} -> {to}"));
    }
}
