//! Deletion of a definition: its objects first, then its finalizer.

use super::conditions::{ESTABLISHED, TERMINATING};
use super::known::KnownDefinition;
use super::write_status;
use crate::registry::conditions::{Condition, find, is_true, set};
use crate::registry::{OrStatus, Registry, Served, WriteContext, WriteRecord, metadata};
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use api::value::Fields;
use base::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use machinery::status::{Result, Status};
use machinery::{Value, meta};

/// Finalizer that blocks the deletion of a definition until its objects are deleted.
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Duration of a deletion after which its condition reports remaining objects. As in Kubernetes.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Built-in resources whose objects a definition of the same name would share.
const OVERLAPPING: [(&str, &str); 2] =
    [("apiregistration.k8s.io", "apiservices"), ("apiextensions.k8s.io", "customresourcedefinitions")];

/// Reports whether a definition waits for its objects to be deleted.
pub fn is_held(definition: &Value) -> bool {
    meta::finalizers(definition).iter().any(|name| name == FINALIZER)
}

/// Advances the deletion of a definition. `stored` is its resource in the stored version, if this server has it.
pub async fn clean_up(registry: &Registry, known: &KnownDefinition, stored: Option<&Served>) -> Result<()> {
    let definition = &known.head;
    let name = meta::name(definition);
    let mut wanted = definition.clone();
    let waits = |reason, message: String| Condition::new(TERMINATING, "True", reason, message);
    let in_progress =
        || waits("InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned());
    if !is_true(definition, TERMINATING) {
        // Creation must be disabled before the objects are counted: the catalogue follows this write.
        set(&mut wanted, &in_progress(), &metadata::now());
        write_status(registry, name, known.with_status_of(&wanted)).await?;
        return Ok(());
    }
    let spec = definition.field("spec");
    let resource = (spec.text("group"), spec.field("names").text("plural"));
    let ended = if OVERLAPPING.contains(&resource) {
        ("OverlappingBuiltInResource", "instances overlap with built-in resources in storage")
    } else if let Some(stored) = stored {
        let outcome = delete_all(registry, stored).await;
        let waiting = match &outcome {
            Ok(0) => None,
            Ok(left) if is_late(definition) => {
                tracing::debug!(definition = name, left, "custom resources are not deleted in time");
                let why = "could not confirm zero CustomResources remaining: context deadline exceeded";
                Some(waits("InstanceDeletionCheck", why.to_owned()))
            }
            Ok(left) => {
                tracing::debug!(definition = name, left, "waiting for custom resources to be deleted");
                Some(in_progress())
            }
            Err((step, status)) => {
                Some(waits("InstanceDeletionFailed", format!("could not {step}: {status}")))
            }
        };
        if let Some(waiting) = waiting {
            if set(&mut wanted, &waiting, &metadata::now()) {
                write_status(registry, name, known.with_status_of(&wanted)).await?;
            }
            return outcome.map(drop).map_err(|(_, status)| status);
        }
        ("InstanceDeletionCompleted", "removed all instances")
    } else if is_true(definition, ESTABLISHED) {
        // Not served by this server yet.
        return Ok(());
    } else {
        ("NeverEstablished", "resource was never established")
    };
    set(&mut wanted, &Condition::new(TERMINATING, "False", ended.0, ended.1), &metadata::now());
    let finalizers = meta::finalizers(&wanted).iter().filter(|name| *name != FINALIZER).cloned().collect();
    meta::metadata_mut(&mut wanted).insert("finalizers".to_owned(), Value::Array(finalizers));
    write_status(registry, name, known.with_status_of(&wanted)).await?;
    Ok(())
}

/// Reports whether the deletion of a definition has lasted longer than Kubernetes waits for objects.
fn is_late(definition: &Value) -> bool {
    let begun = find(definition, TERMINATING).map_or("", |condition| condition.text("lastTransitionTime"));
    let Ok(begun) = begun.parse::<Timestamp>() else { return false };
    Clock::system().now().duration_since(begun) > LATE
}

/// Deletes the objects of a resource; returns the number of remaining ones, or the failed step.
async fn delete_all(
    registry: &Registry,
    served: &Served,
) -> std::result::Result<usize, (&'static str, Status)> {
    let cache = &served.storage.cache;
    let listing = |status: Status| ("list instances", status);
    cache.fresh(&cache.root).await.or_status().map_err(listing)?;
    let entries = cache.list(&cache.root, None, 0, 0, |_| true).entries;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    for entry in &entries {
        let object = entry.value();
        if meta::deletion_timestamp(&object).is_some() {
            continue;
        }
        let context = WriteContext::server(&user, &record, meta::namespace(&object));
        // Another server may have finished the deletion, and an object of a new definition may have this name.
        let options = DeleteOptions { uid: Some(meta::uid(&object).to_owned()), ..DeleteOptions::default() };
        match registry.delete(served, meta::name(&object), &options, &context).await {
            Err(status) if matches!(status.code, 404 | 409) => {}
            outcome => drop(outcome.map_err(|status| ("issue all deletes", status))?),
        }
    }
    cache.fresh(&cache.root).await.or_status().map_err(listing)?;
    Ok(cache.list(&cache.root, None, 0, 0, |_| true).entries.len())
}
