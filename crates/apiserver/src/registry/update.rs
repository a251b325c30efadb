//! Update: the read-modify-write loop behind PUT, PATCH and every subresource that changes its object.

use super::allocate::WriteOutcome;
use super::metadata::{
    check_size, count_generation, dedup_owner_references, ensure_namespace, keep_generation,
    keep_system_fields, refuse,
};
use super::{MODIFIED, Registry, Served, WriteContext, Written, store_error, write_error};
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

/// How often a patch starts over when somebody else was faster.
pub(super) const ATTEMPTS: usize = 5;

/// Which part of the object a request may change: the main resource or one of its subresources.
#[derive(Clone, Copy)]
pub struct Door<'a> {
    pub steps: Steps<'a>,
    /// How the door's own rules look at metadata.
    pub metadata: &'static [MetadataCheck],
    /// Changes through this door count as changes of the spec.
    pub counts_generation: bool,
    /// What is written through this door may be worth a warning.
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

impl<'a> Door<'a> {
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

    /// Errors, and warnings about what stays invalid.
    fn validate(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        match self.steps {
            Steps::Main(rules) => rules.check_update(new, old),
            Steps::Status(rules) => rules.check_status_update(new, old),
            Steps::Own { validate, .. } => (validate(new, old), Vec::new()),
        }
    }
}

/// What the caller makes of the present object: the new one, in the served version.
pub enum Change<'a> {
    /// Replace the object. managedFields are still to be computed; a uid says which object is meant.
    Replace(Value),
    /// The same for what a patch made: a uid is a change like any other.
    Patched(Value),
    /// Replace the object; managedFields are already what they should be.
    Applied(Value),
    /// Merge into the object what an apply wants.
    Apply { wanted: &'a Value, force: bool, complete: Complete<'a> },
}

/// Completes an object that an apply has merged.
pub type Complete<'a> = &'a (dyn Fn(&mut Value) -> Result<()> + Send + Sync);

impl Registry {
    /// Changes an object until it is stored or refused. `make` is called with the present object in the served
    /// version, again for each attempt.
    pub async fn update<'a>(
        &self,
        served: &Served,
        name: &str,
        door: Door<'_>,
        retry: bool,
        context: &WriteContext<'_>,
        mut make: impl FnMut(&Value) -> Result<Change<'a>>,
    ) -> Result<Written> {
        let mut current = self.current(served, name, context).await?;
        let mut attempts = 0;
        loop {
            let Some(entry) = current else { return Err(served.not_found(name)) };
            match self.update_once(served, name, door, context, &entry, &mut make).await? {
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

    /// The object as it is now.
    pub(super) async fn current(
        &self,
        served: &Served,
        name: &str,
        context: &WriteContext<'_>,
    ) -> Result<Option<Arc<Entry>>> {
        let key = served.key(context.namespace, name);
        let cache = &served.storage.cache;
        // The cache of a remote store may lag behind what the client has seen elsewhere.
        cache.fresh(&key).await.map_err(|e| store_error(&e))?;
        Ok(cache.get(&key))
    }

    async fn update_once<'a>(
        &self,
        served: &Served,
        name: &str,
        door: Door<'_>,
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
        let outcome = self.update_reserved(served, name, door, context, entry, Draft { new, old }).await;
        let stored = matches!(outcome, Ok(Attempt::Done(_)));
        self.settle(reservation, WriteOutcome::of(stored, context)).await;
        outcome
    }

    /// The part of an update that needs the new object to be complete.
    async fn update_reserved(
        &self,
        served: &Served,
        name: &str,
        door: Door<'_>,
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
        door.prepare(&mut new, &old);
        if door.counts_generation {
            count_generation(&mut new, &old);
        }
        keep_system_fields(&mut new, &old);
        let budget = ErrorBudget::begin();
        let path = Path::new("metadata");
        let namespaced = served.namespaced();
        let (metadata, old_metadata) = (&new["metadata"], &old["metadata"]);
        let mut errors =
            names::validate_generic_object_meta(metadata, namespaced, names::path_segment_name, &path);
        let of_update = names::validate_generic_object_meta_update(metadata, old_metadata, &path);
        // Kinds ask the same again and repeat what they find.
        let sound = of_update.is_empty();
        errors.extend(of_update);
        if !rules.metadata_last() {
            for check in door.metadata {
                errors.extend(match check {
                    MetadataCheck::New => rules.metadata_errors(&new),
                    MetadataCheck::Update if sound && rules.any_finalizer() => Vec::new(),
                    MetadataCheck::Update if sound => {
                        names::validate_finalizers_are_standard(metadata, &path)
                    }
                    MetadataCheck::Update => rules.metadata_update_errors(&new, &old),
                });
            }
        }
        let (found, tolerated) = door.validate(&new, &old);
        errors.extend(found);
        drop(budget);
        if errors.is_empty() {
            errors.extend(signers::pod_certificate_problem(self, &attributes, &new, &old).await?);
        }
        refuse(served, name, errors, context)?;
        let warnings = match context.subresource {
            "status" => rules.status_warnings(&new),
            _ if door.warns => rules.warnings(&new, Some(&old)),
            _ => Vec::new(),
        };
        for warning in tolerated.into_iter().chain(warnings) {
            context.warnings.add(warning);
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
        // Now they are still at hand; once the store has answered, they would have to be fetched to be let go.
        drop((stored, old));
        self.swap(served, entry, bytes, context).await
    }

    /// Stores other bytes for an object, provided that nobody else has.
    pub(super) async fn swap(
        &self,
        served: &Served,
        entry: &Entry,
        bytes: Bytes,
        context: &WriteContext<'_>,
    ) -> Result<Attempt> {
        let expect = Expect::Revision(entry.revision);
        match self.put(served, &entry.key, expect, &bytes, context.warnings).await? {
            Outcome::Committed { revision, .. } => {
                context.warnings.committed(&entry.key, revision);
                let entry = Entry::new(entry.key.clone(), bytes, revision);
                Ok(Attempt::Done(Written::Stored(Arc::new(entry))))
            }
            Outcome::Conflict { current, .. } => {
                Ok(Attempt::Raced(current.map(|kv| served.storage.entry(kv))))
            }
        }
    }

    /// Nothing changes, but the store should have it in another form.
    async fn is_outdated(&self, served: &Served, entry: &Entry) -> Result<bool> {
        served.storage.store.outdated(&entry.key).await.map_err(|e| store_error(&e))
    }

    /// The update took the last finalizer of an object that was waiting to go: it goes now.
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
            match served.storage.store.txn(txn).await.map_err(|e| write_error(&e, context.warnings))? {
                Outcome::Committed { revision, .. } => context.warnings.committed(&entry.key, revision),
                Outcome::Conflict { current, .. } => {
                    let latest = current.map(|kv| served.storage.entry(kv));
                    return Ok(Attempt::Raced(latest));
                }
            }
        }
        tracing::debug!(resource = served.kind.resource(), name, "gone with its last finalizer");
        if !context.dry_run {
            self.release(served, &shown).await;
        }
        meta::metadata_mut(&mut shown)
            .insert("resourceVersion".to_owned(), entry.revision.to_string().into());
        Ok(Attempt::Done(Written::Value(shown)))
    }
}

/// What an object was, and what it is to become.
struct Draft {
    new: Value,
    old: Value,
}

pub(super) enum Attempt {
    Done(Written),
    /// Somebody else changed the object first; what it is now.
    Raced(Option<Arc<Entry>>),
}

/// Deletion was asked for, nothing holds the object any longer, and no grace is left.
pub(super) fn finished_deleting(object: &Value) -> bool {
    let metadata = meta::metadata(object);
    let grace = metadata.and_then(|m| m.get("deletionGracePeriodSeconds")).and_then(Value::as_i64);
    meta::deletion_timestamp(object).is_some()
        && meta::finalizers(object).is_empty()
        && grace.unwrap_or(0) == 0
}

fn check_uid(served: &Served, new: &Value, old: &Value, dry_run: bool) -> Result<()> {
    let (given, real) = (meta::uid(new), meta::uid(old));
    if given.is_empty() || given == real {
        return Ok(());
    }
    Err(uid_conflict(served, given, old, dry_run))
}

/// The object is not the one the client means.
pub(super) fn uid_conflict(served: &Served, given: &str, old: &Value, dry_run: bool) -> Status {
    let (name, real) = (meta::name(old), meta::uid(old));
    let key = shown_key(&*served.storage.rules, meta::namespace(old), name);
    let root = if dry_run { "" } else { "/registry" };
    served.conflict(
        name,
        format!(
            "StorageError: invalid object, Code: 4, Key: {root}{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {real}"
        ),
    )
}

/// Where Kubernetes would keep an object: messages speak of it.
fn shown_key(rules: &dyn Rules, namespace: &str, name: &str) -> String {
    let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
    format!("/{}{namespace}/{name}", rules.storage_path())
}

/// The revision a client says it has seen must be the present one.
fn check_revision(served: &Served, name: &str, new: &Value, revision: u64) -> Result<()> {
    let given = meta::resource_version(new);
    if given.is_empty() || given == "0" {
        if served.rules.unconditional_update() {
            return Ok(());
        }
        let metadata = Path::new("metadata");
        let path = metadata.child("resourceVersion");
        let errors = vec![FieldError::invalid_shown(&path, "0", "must be specified for an update")];
        return Err(Status::invalid(served.kind.group(), served.kind.resource(), name, &errors));
    }
    match crate::query::parse_uint(given) {
        Ok(given) if given == revision => Ok(()),
        Ok(_) => Err(served.conflict(name, MODIFIED)),
        Err(why) => Err(Status::new(500, "", why)),
    }
}

/// Says to those who audit that the number of replicas is another one.
fn note_scaling(old: &Value, new: &Value, context: &WriteContext<'_>) {
    let replicas =
        |object: &Value| object.get("spec").and_then(|spec| spec.get("replicas")).and_then(Value::as_i64);
    if let (from, Some(to)) = (replicas(old), replicas(new))
        && from != Some(to)
    {
        let from = from.map_or_else(|| "1".to_owned(), |from| from.to_string());
        context.warnings.annotate("ferry.dev/replicas", format!("{from} -> {to}"));
    }
}
