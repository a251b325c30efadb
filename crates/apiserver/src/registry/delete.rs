//! Delete: preconditions, grace period, finalizers and propagation to dependents.

use super::update::finished_deleting;
use super::{MODIFIED, OrStatus, Registry, Served, WriteContext, WriteRecord, Written, metadata};
use crate::admission::{Attributes, Operation};
use crate::cache::Entry;
use crate::wire::options::{DeleteOptions, Propagation};
use api::kind::Graceful;
use base::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use std::sync::Arc;
use store::{Expect, Op, Outcome, Txn};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Result of a deletion.
pub enum Deleted {
    /// The object is deleted; its last state and uid.
    Gone { last: Written, uid: String },
    /// A grace period or finalizers are pending.
    Pending(Written),
}

impl Registry {
    pub async fn delete(
        &self,
        served: &Served,
        name: &str,
        options: &DeleteOptions,
        context: &WriteContext<'_>,
    ) -> Result<Deleted> {
        let key: Arc<str> = served.key(context.namespace, name).into();
        let cache = &served.storage.cache;
        cache.fresh(&key).await.or_status()?;
        let mut current = cache.get(&key);
        let mut first = true;
        let mut marked = None;
        loop {
            let Some(entry) = current else {
                // Another writer may have removed the marked object.
                let gone = |(entry, uid)| Deleted::Gone { last: Written::Stored(entry), uid };
                return marked.map(gone).ok_or_else(|| served.not_found(name));
            };
            match self.delete_once(served, name, options, context, &entry, &mut marked).await? {
                Ok(deleted) => return Ok(deleted),
                Err(latest) => {
                    // A precondition on the version does not hold for a later version.
                    if options.resource_version.is_some() && !first {
                        return Err(served.conflict(name, MODIFIED));
                    }
                    first = false;
                    current = latest;
                }
            }
        }
    }

    /// One attempt; the inner error is the current state after a conflict. `marked` is the object after it was marked
    /// for immediate deletion, and its uid.
    async fn delete_once(
        &self,
        served: &Served,
        name: &str,
        options: &DeleteOptions,
        context: &WriteContext<'_>,
        entry: &Arc<Entry>,
        marked: &mut Option<(Arc<Entry>, String)>,
    ) -> Result<Result<Deleted, Option<Arc<Entry>>>> {
        let rules = &*served.storage.rules;
        let old = entry.value();
        check_preconditions(served, name, options, &old)?;
        let attributes = Attributes::new(served, context, Operation::Delete).named(name);
        let presented = match served.conversion {
            None => None,
            Some(_) => Some(served.presented(old.clone()).await?),
        };
        let shown = presented.as_ref().unwrap_or(&old);
        self.admission.validate(self, &attributes, None, Some(shown)).await?;

        // An object that is still being emptied, such as a namespace, stays pending.
        if meta::deletion_timestamp(&old).is_some() && rules.held(&old) {
            return Ok(Ok(Deleted::Pending(Written::Stored(entry.clone()))));
        }
        let mut new = old.clone();
        let grace = grace(&mut new, rules.graceful(&old, options.grace_period_seconds), options);
        if grace == Grace::AlreadyPending {
            return Ok(Ok(Deleted::Pending(Written::Stored(entry.clone()))));
        }
        if rules.collects_dependents() {
            set_dependents_finalizers(&mut new, rules.orphan_dependents(), options);
        }
        let held = rules.held(&new);
        let waits = held || !meta::finalizers(&new).is_empty();
        if grace == Grace::No && waits {
            mark_deleting(&mut new);
            rules.mark_deleting(&mut new);
        }
        let dry_run = options.dry_run || context.dry_run;
        if grace == Grace::No && !waits {
            return self.remove(served, entry, old, dry_run, context.record).await;
        }
        let finished = finished_deleting(&new) && !held;
        let pending = self.store_pending(served, entry, new, dry_run, context.record).await?;
        match pending {
            // Without a grace period, watchers see the deletion timestamp, then the deletion.
            Ok(Deleted::Pending(Written::Stored(entry))) if finished => {
                *marked = Some((Arc::clone(&entry), meta::uid(&old).to_owned()));
                self.remove(served, &entry, old, dry_run, context.record).await
            }
            Ok(Deleted::Pending(last @ Written::Value(_))) if finished => {
                Ok(Ok(Deleted::Gone { last, uid: meta::uid(&old).to_owned() }))
            }
            pending => Ok(pending),
        }
    }

    async fn remove(
        &self,
        served: &Served,
        entry: &Arc<Entry>,
        old: Value,
        dry_run: bool,
        record: &WriteRecord,
    ) -> Result<Result<Deleted, Option<Arc<Entry>>>> {
        let uid = meta::uid(&old).to_owned();
        if dry_run {
            return Ok(Ok(Deleted::Gone { last: Written::Value(old), uid }));
        }
        let txn = Txn { key: entry.key.clone(), expect: Expect::Revision(entry.revision), op: Op::Delete };
        let _writing = base::trace::writing();
        match served.storage.store.txn(txn).await.or_status()? {
            Outcome::Committed { revision, .. } => {
                record.committed(&entry.key, revision);
                self.release(served, &old).await;
                let last = Written::Stored(Arc::new(entry.at(revision)));
                Ok(Ok(Deleted::Gone { last, uid }))
            }
            Outcome::Conflict { current, .. } => Ok(Err(current.map(|kv| served.storage.entry(kv)))),
        }
    }

    async fn store_pending(
        &self,
        served: &Served,
        entry: &Arc<Entry>,
        new: Value,
        dry_run: bool,
        record: &WriteRecord,
    ) -> Result<Result<Deleted, Option<Arc<Entry>>>> {
        let bytes = served.storage.cache.layout.prefix.encode(&new);
        if bytes == entry.bytes {
            return Ok(Ok(Deleted::Pending(Written::Stored(entry.clone()))));
        }
        if dry_run {
            return Ok(Ok(Deleted::Pending(Written::Value(new))));
        }
        let expect = Expect::Revision(entry.revision);
        let _writing = base::trace::writing();
        match self.put(served, &entry.key, expect, &bytes, record).await? {
            Outcome::Committed { revision, .. } => {
                record.committed(&entry.key, revision);
                let entry = Entry::new(entry.key.clone(), bytes, revision);
                Ok(Ok(Deleted::Pending(Written::Stored(Arc::new(entry)))))
            }
            Outcome::Conflict { current, .. } => Ok(Err(current.map(|kv| served.storage.entry(kv)))),
        }
    }
}

fn check_preconditions(served: &Served, name: &str, options: &DeleteOptions, old: &Value) -> Result<()> {
    // As in Kubernetes, these messages name the kind instead of the resource. Namespaces have their own texts.
    let kind = &served.storage.kind;
    let is_namespace = (kind.group(), kind.resource()) == ("", "namespaces");
    let subject = if is_namespace { kind.resource() } else { kind.kind() };
    let conflict = |why: String| Err(Status::conflict(kind.group(), subject, name, why));
    let differs = |what: &str, requested: &str, found: &str| {
        conflict(format!(
            "Precondition failed: {what} in precondition: {requested}, {what} in object meta: {found}"
        ))
    };
    if let Some(uid) = &options.uid
        && uid != meta::uid(old)
    {
        if is_namespace {
            return differs("UID", uid, meta::uid(old));
        }
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            meta::uid(old)
        ));
    }
    if let Some(version) = &options.resource_version
        && version != meta::resource_version(old)
    {
        if is_namespace {
            return differs("ResourceVersion", version, meta::resource_version(old));
        }
        return conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            meta::resource_version(old)
        ));
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    /// Deletion is pending; its metadata is set.
    Waits,
    /// Deletion is already pending, and not longer than requested.
    AlreadyPending,
    No,
}

/// Sets the grace period of the object, if any.
fn grace(object: &mut Value, graceful: Graceful, options: &DeleteOptions) -> Grace {
    let Graceful::After(period) = graceful else { return Grace::No };
    let now = Clock::system().now();
    if let Some(since) = meta::deletion_timestamp(object).and_then(|t| t.parse::<Timestamp>().ok()) {
        let present = meta::metadata(object)
            .and_then(|m| m.get("deletionGracePeriodSeconds"))
            .and_then(Value::as_i64)
            .unwrap_or(0);
        if present == 0 {
            return Grace::No;
        }
        // A second deletion may only shorten the grace period.
        let Some(requested) = options.grace_period_seconds else { return Grace::AlreadyPending };
        if requested >= present {
            return Grace::AlreadyPending;
        }
        let mut period = requested;
        let mut at = since.checked_add(SignedDuration::from_secs(requested - present)).unwrap_or(now);
        if at < now {
            at = now;
            if period != 0 {
                period = 1;
            }
        }
        set_deletion(object, at, period);
        return Grace::Waits;
    }
    let at = now.checked_add(SignedDuration::from_secs(period)).unwrap_or(now);
    set_deletion(object, at, period);
    bump_generation(object);
    Grace::Waits
}

fn set_deletion(object: &mut Value, at: Timestamp, period: i64) {
    let metadata = meta::metadata_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), period.into());
}

fn bump_generation(object: &mut Value) {
    let generation = meta::generation(object);
    if generation > 0 {
        meta::metadata_mut(object).insert("generation".to_owned(), (generation + 1).into());
    }
}

/// Sets the deletion timestamp of an object without a grace period that finalizers retain.
fn mark_deleting(object: &mut Value) {
    let existing = meta::deletion_timestamp(object).and_then(|t| t.parse::<Timestamp>().ok());
    if existing.is_none() {
        bump_generation(object);
    }
    let metadata = meta::metadata_mut(object);
    if existing.is_none_or(|at| at > Clock::system().now()) {
        metadata.insert("deletionTimestamp".to_owned(), metadata::now().into());
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
}

/// Adds or removes the finalizers that select the garbage collector's handling of dependents.
fn set_dependents_finalizers(object: &mut Value, orphan_by_default: bool, options: &DeleteOptions) {
    let has = |wanted: &str| meta::finalizers(object).iter().any(|f| f.as_str() == Some(wanted));
    let (orphan, foreground) = match (options.orphan_dependents, options.propagation) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(policy)) => (policy == Propagation::Orphan, policy == Propagation::Foreground),
        (None, None) if has(ORPHAN) => (true, false),
        (None, None) if has(FOREGROUND) => (false, true),
        (None, None) => (orphan_by_default, false),
    };
    let mut finalizers: Vec<Value> = meta::finalizers(object)
        .iter()
        .filter(|f| !matches!(f.as_str(), Some(ORPHAN | FOREGROUND)))
        .cloned()
        .collect();
    if orphan {
        finalizers.push(ORPHAN.into());
    }
    if foreground {
        finalizers.push(FOREGROUND.into());
    }
    let same = finalizers.len() == meta::finalizers(object).len()
        && meta::finalizers(object).iter().all(|f| finalizers.contains(f));
    if same {
        return;
    }
    let metadata = meta::metadata_mut(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), Value::Array(finalizers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dependents_finalizers_follow_the_options() {
        let object = || json!({"metadata": {"finalizers": ["a", "orphan"]}});
        for (propagation, expected) in [
            (Some(Propagation::Foreground), json!(["a", "foregroundDeletion"])),
            (Some(Propagation::Background), json!(["a"])),
            (Some(Propagation::Orphan), json!(["a", "orphan"])),
            (None, json!(["a", "orphan"])),
        ] {
            let mut subject = object();
            let options = DeleteOptions { propagation, ..DeleteOptions::default() };
            set_dependents_finalizers(&mut subject, false, &options);
            assert_eq!(subject["metadata"]["finalizers"], expected, "{propagation:?}");
        }
    }

    #[test]
    fn second_deletion_only_shortens_grace_period() {
        let mut pod = json!({"metadata": {"generation": 1}});
        let requested = |s| DeleteOptions { grace_period_seconds: Some(s), ..DeleteOptions::default() };
        assert_eq!(grace(&mut pod, Graceful::After(30), &requested(30)), Grace::Waits);
        assert_eq!(pod["metadata"]["generation"], 2);
        assert_eq!(grace(&mut pod, Graceful::After(60), &requested(60)), Grace::AlreadyPending);
        assert_eq!(grace(&mut pod, Graceful::After(5), &requested(5)), Grace::Waits);
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 5);
        assert_eq!(pod["metadata"]["generation"], 2);
    }
}
