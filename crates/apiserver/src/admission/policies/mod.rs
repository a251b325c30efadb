//! MutatingAdmissionPolicy and ValidatingAdmissionPolicy: user-defined expressions mutate and reject writes.
//!
//! Policies and bindings are read from the watch caches and compiled on change; a cluster without bindings pays two
//! comparisons per write.

mod evaluation;
mod mutating;
mod params;
mod policy;
#[cfg(test)]
mod tests;
mod validating;

pub use evaluation::{Condition, OUT_OF_BUDGET, Subject, conditions_hold};
pub use mutating::{MutatingAdmissionPolicy, mutate_again};
pub use validating::ValidatingAdmissionPolicy;

use super::Attributes;
use super::matching::{GROUP, POLICIES, is_subject_to_rules};
use crate::cache::Cursor;
use crate::chain::offload;
use crate::registry::{OrStatus, Registry, Served};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use parking_lot::Mutex;
use policy::Policy;
use std::sync::{Arc, OnceLock};

/// Compiled policies.
#[derive(Default)]
pub struct Policies {
    mutating: PolicyCache,
    validating: PolicyCache,
}

/// Policies of one kind that have bindings, as of their last change.
#[derive(Default)]
struct PolicyCache {
    /// Resources of policies and bindings.
    storages: OnceLock<[Arc<Served>; 2]>,
    known: Mutex<Option<CompiledPolicies>>,
}

/// Policies, and the cursors of both caches when they were read.
type CompiledPolicies = ([Cursor; 2], Arc<[Policy]>);

impl PolicyCache {
    /// Returns true if there is certainly no policy, without waiting.
    fn is_empty(&self) -> bool {
        let Some(storages) = self.storages.get() else { return false };
        let at = storages.each_ref().map(|served| served.storage.cache.watch_from_now());
        storages.iter().all(|served| served.storage.cache.is_ready())
            && self.known.lock().as_ref().is_some_and(|(known, policies)| *known == at && policies.is_empty())
    }

    async fn current(&self, registry: &Registry, resources: [&str; 2]) -> Result<Arc<[Policy]>> {
        let storages = match self.storages.get() {
            Some(storages) => storages,
            None => {
                let of = |resource| registry.builtin(GROUP, "v1", resource).cloned();
                let found = [of(resources[0])?, of(resources[1])?];
                self.storages.get_or_init(|| found)
            }
        };
        let [policies, bindings] = storages;
        for served in storages {
            served.storage.cache.ready().await.or_status()?;
        }
        // Compiling changed policies is expensive.
        if self.known.lock().as_ref().is_none_or(|(known_at, _)| {
            *known_at != [policies.storage.cache.watch_from_now(), bindings.storage.cache.watch_from_now()]
        }) {
            offload::heavy().await;
        }
        // Cursors of these caches: the store's revision changes with every write of any resource.
        let at = [policies.storage.cache.watch_from_now(), bindings.storage.cache.watch_from_now()];
        let before = match &*self.known.lock() {
            Some((known_at, known)) if *known_at == at => return Ok(known.clone()),
            Some((_, known)) => known.clone(),
            None => Arc::new([]),
        };
        let made = Policy::all(registry, policies, bindings, &before);
        *self.known.lock() = Some((at, made.clone()));
        Ok(made)
    }
}

fn is_subject(attributes: &Attributes<'_>) -> bool {
    is_subject_to_rules(attributes, &[&POLICIES])
}

/// Namespace of a write; `None` for cluster-scoped objects and for namespaces themselves.
pub async fn namespace_of(registry: &Registry, attributes: &Attributes<'_>) -> Result<Option<Value>> {
    let name = attributes.context.namespace;
    if name.is_empty() || attributes.is("", "namespaces") {
        return Ok(None);
    }
    let found = registry.find(("", "v1", "namespaces"), "", name).await?;
    found.map(Some).ok_or_else(|| Status::not_found("", "namespaces", name))
}

/// Labels for namespace selectors; `None` if they do not apply.
pub fn namespace_labels(
    attributes: &Attributes<'_>,
    namespace: Option<&Value>,
    object: Option<&Value>,
) -> Option<Value> {
    let labels = |of: &Value| meta::labels(of).cloned().map_or(Value::Null, Value::Object);
    if attributes.is("", "namespaces") {
        return Some(object.map(labels).unwrap_or_default());
    }
    namespace.map(labels)
}

/// Normalizes a patched object and sets its defaults.
pub fn complete(attributes: &Attributes<'_>, object: &mut Value) -> Result<()> {
    if attributes.is_whole() {
        let served = attributes.served;
        served.rules.normalize(object, served.schema()).map_err(Status::internal)?;
        served.rules.set_defaults(object);
    }
    Ok(())
}
