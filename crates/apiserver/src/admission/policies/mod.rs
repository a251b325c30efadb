//! MutatingAdmissionPolicy and ValidatingAdmissionPolicy: rules that users write change and refuse writes.
//!
//! Policies and bindings are read from the watch caches and compiled when they change; a cluster without bindings pays
//! two comparisons per write.

mod evaluation;
mod mutating;
mod params;
mod policy;
#[cfg(test)]
mod tests;
mod validating;

pub use evaluation::{Condition, Subject, conditions_hold};
pub use mutating::{MutatingAdmissionPolicy, mutate_again};
pub use validating::ValidatingAdmissionPolicy;

use super::Attributes;
use super::matching::{GROUP, POLICIES, is_concerned};
use crate::cache::Cursor;
use crate::chain::offload;
use crate::registry::{Registry, Served, store_error};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use parking_lot::Mutex;
use policy::Policy;
use std::sync::{Arc, OnceLock};

/// The policies in use.
#[derive(Default)]
pub struct Policies {
    mutating: Followed,
    validating: Followed,
}

/// Policies of one kind that have bindings, as they were when they or their bindings had last changed.
#[derive(Default)]
struct Followed {
    /// Where policies and bindings are kept.
    places: OnceLock<[Arc<Served>; 2]>,
    known: Mutex<Option<Known>>,
}

/// Policies, and where the caches of policies and bindings were when they were read.
type Known = ([Cursor; 2], Arc<[Policy]>);

impl Followed {
    /// Whether there is certainly none, as far as that can be told without waiting.
    fn is_empty(&self) -> bool {
        let Some(places) = self.places.get() else { return false };
        let at = places.each_ref().map(|served| served.storage.cache.watch_from_now());
        places.iter().all(|served| served.storage.cache.is_ready())
            && self.known.lock().as_ref().is_some_and(|(known, policies)| *known == at && policies.is_empty())
    }

    async fn current(&self, registry: &Registry, resources: [&str; 2]) -> Result<Arc<[Policy]>> {
        let places = match self.places.get() {
            Some(places) => places,
            None => {
                let of = |resource| registry.builtin(GROUP, "v1", resource).cloned();
                let found = [of(resources[0])?, of(resources[1])?];
                self.places.get_or_init(|| found)
            }
        };
        let [policies, bindings] = places;
        for served in places {
            served.storage.cache.ready().await.map_err(|e| store_error(&e))?;
        }
        // Compiling what has changed takes long.
        if self.known.lock().as_ref().is_none_or(|(known_at, _)| {
            *known_at != [policies.storage.cache.watch_from_now(), bindings.storage.cache.watch_from_now()]
        }) {
            offload::heavy().await;
        }
        // Their own places: the revision moves with every write of anything.
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

fn concerned(attributes: &Attributes<'_>) -> bool {
    is_concerned(attributes, &[&POLICIES])
}

/// The namespace a write goes to; `None`: it is about the cluster, or about the namespace itself.
pub async fn namespace_of(registry: &Registry, attributes: &Attributes<'_>) -> Result<Option<Value>> {
    let name = attributes.context.namespace;
    if name.is_empty() || attributes.is("", "namespaces") {
        return Ok(None);
    }
    let found = registry.find(("", "v1", "namespaces"), "", name).await?;
    found.map(Some).ok_or_else(|| Status::not_found("", "namespaces", name))
}

/// The labels that namespace selectors look at; `None`: they have no say.
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

/// What a patch has left unsaid.
pub fn complete(attributes: &Attributes<'_>, object: &mut Value) -> Result<()> {
    if attributes.is_whole() {
        let served = attributes.served;
        served.rules.normalize(object, served.schema()).map_err(Status::internal)?;
        served.rules.set_defaults(object);
    }
    Ok(())
}
