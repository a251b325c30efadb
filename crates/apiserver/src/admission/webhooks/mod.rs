//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: other servers change and refuse writes.
//!
//! Which hooks there are is read from the watch caches and kept until they change; a cluster without hooks pays one
//! comparison per write.

pub mod annotations;
pub mod call;
mod hook;
#[cfg(test)]
mod tests;

use super::matching::{GROUP, HOOKS, POLICIES, is_concerned};
use super::policies::{self, Subject};
use super::{Attributes, Operation, Plugin};
use crate::cache::{Cache, Cursor};
use crate::chain::offload;
use crate::registry::{Registry, store_error};
use annotations::Annotator;
use call::Outcome;
use futures_util::future::{BoxFuture, join_all};
use hook::Hook;
pub use hook::request;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use parking_lot::Mutex;
use std::sync::Arc;

const MUTATING: &str = HOOKS[0];
const VALIDATING: &str = HOOKS[1];

pub struct MutatingAdmissionWebhook;
pub struct ValidatingAdmissionWebhook;

/// The hooks in use.
#[derive(Default)]
pub struct Hooks {
    mutating: Mutex<Option<Known>>,
    validating: Mutex<Option<Known>>,
}

/// Hooks as they were when their configurations had last changed.
struct Known {
    at: Cursor,
    hooks: Arc<[Hook]>,
}

impl Hooks {
    fn of(&self, resource: &str) -> &Mutex<Option<Known>> {
        if resource == MUTATING { &self.mutating } else { &self.validating }
    }

    /// The hooks, if they can be told without waiting and without reading their configurations again.
    fn known(&self, cache: &Cache, resource: &str) -> Option<Arc<[Hook]>> {
        let known = self.of(resource).lock();
        let known = known.as_ref().filter(|known| cache.is_ready() && known.at == cache.watch_from_now())?;
        Some(known.hooks.clone())
    }

    /// Whether there is certainly none.
    fn is_empty(&self, registry: &Registry, resource: &str) -> bool {
        let cache = registry.builtin(GROUP, "v1", resource).map(|served| &served.storage.cache);
        cache.is_ok_and(|cache| self.known(cache, resource).is_some_and(|hooks| hooks.is_empty()))
    }

    async fn current(&self, registry: &Registry, resource: &str) -> Result<Arc<[Hook]>> {
        let cache = &registry.builtin(GROUP, "v1", resource)?.storage.cache;
        if let Some(hooks) = self.known(cache, resource) {
            return Ok(hooks);
        }
        cache.ready().await.map_err(|e| store_error(&e))?;
        // Compiling their conditions takes long.
        offload::heavy().await;
        // Before they are read: what changes meanwhile is read again.
        let at = cache.watch_from_now();
        let view = cache.list(&cache.root, None, 0, 0, |_| true);
        let mut configurations: Vec<Value> = view.entries.iter().map(|entry| entry.value()).collect();
        configurations.sort_by(|a, b| meta::name(a).cmp(meta::name(b)));
        let hooks: Arc<[Hook]> = configurations.iter().flat_map(Hook::all).collect();
        *self.of(resource).lock() = Some(Known { at, hooks: hooks.clone() });
        Ok(hooks)
    }
}

fn concerned(attributes: &Attributes<'_>) -> bool {
    is_concerned(attributes, &[&HOOKS, &POLICIES])
}

/// The hooks that want to see this write, with the version they want to see it in; those that cannot tell refuse it.
async fn wanted<'h, 'a>(
    hooks: &'h [Hook],
    registry: &'a Registry,
    attributes: &Attributes<'a>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Vec<(&'h Hook, Attributes<'a>)>> {
    let mut found = Vec::new();
    let mut namespace = None;
    for hook in hooks {
        let Some(seen) = hook.matches.wanted(attributes) else { continue };
        if namespace.is_none() {
            namespace = Some(namespace_labels(registry, attributes, object.or(old)).await?);
        }
        let labels = namespace.as_ref().and_then(Option::as_ref);
        if !hook.matches.selects(labels, object, old) {
            continue;
        }
        if hook.conditions.is_empty() {
            found.push((hook, seen));
            continue;
        }
        let object = seen.optional_in_version(object).await?;
        let old = seen.optional_in_version(old).await?;
        let subject = Subject {
            registry,
            attributes: &seen,
            object: object.as_deref(),
            old: old.as_deref(),
            namespace: None,
            params: None,
        };
        match policies::conditions_hold(&hook.conditions, &subject).await? {
            Ok(true) => found.push((hook, seen)),
            Ok(false) => {}
            Err(why) if hook.ignores_failure => tracing::warn!(hook = hook.name, why, "webhook skipped"),
            Err(why) => return Err(attributes.forbidden(why)),
        }
    }
    Ok(found)
}

/// The hook's answer about the objects in the version it wants to see.
async fn ask(
    hook: &Hook,
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Outcome> {
    let object = attributes.optional_in_version(object).await?;
    let old = attributes.optional_in_version(old).await?;
    call::ask(hook, registry, attributes, object.as_deref(), old.as_deref()).await
}

/// The labels of the namespace a write goes to; `None`: it is about the cluster.
async fn namespace_labels(
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<Value>> {
    let namespace = policies::namespace_of(registry, attributes).await?;
    Ok(policies::namespace_labels(attributes, namespace.as_ref(), object))
}

impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        concerned(attributes)
    }

    fn admits_connections(&self) -> bool {
        true
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        mut object: Option<&'a mut Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        if registry.admission.hooks.is_empty(registry, MUTATING) {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
            let hooks = registry.admission.hooks.current(registry, MUTATING).await?;
            if hooks.is_empty() {
                return Ok(());
            }
            let deleted = match (attributes.operation, old) {
                (Operation::Delete, None) => present(registry, attributes).await?,
                _ => None,
            };
            let old = old.or(deleted.as_ref());
            // Hooks that want to are asked again if others have changed the object after them.
            let mut again: Vec<&str> = Vec::new();
            for round in 0..2 {
                let mut changed_any = false;
                let mut changed_since: Vec<&str> = Vec::new();
                let mut asked: Vec<&str> = Vec::new();
                let names = wanted(&hooks, registry, attributes, object.as_deref(), old).await?;
                for (hook, attributes) in &names {
                    if round == 1 && !again.contains(&hook.name.as_str()) {
                        continue;
                    }
                    let annotator = Annotator::new(&hooks, hook, round, attributes.context.warnings);
                    let outcome = ask(hook, registry, attributes, object.as_deref(), old).await;
                    let changed = match (&mut object, outcome) {
                        (Some(object), Ok(Outcome::Patched(patch))) => {
                            let changed = apply(hook, attributes, object, &patch).await;
                            if changed.is_ok() {
                                annotator.patch(&patch);
                            }
                            changed
                        }
                        (_, Ok(Outcome::FailedOpen)) => {
                            annotator.failed_open();
                            Ok(false)
                        }
                        (None, Ok(Outcome::Patched(patch))) if patch != Value::Array(Vec::new()) => {
                            Err(Status::internal(format!(
                                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                                hook.name
                            )))
                        }
                        (_, outcome) => outcome.map(|_| false),
                    };
                    annotator.mutation(matches!(changed, Ok(true)));
                    let changed = changed?;
                    if changed {
                        changed_any = true;
                        changed_since.extend(asked.iter().copied());
                    }
                    if hook.reinvoked {
                        asked.push(&hook.name);
                    }
                }
                again = changed_since;
                // Policies come before hooks, and see again what hooks have changed.
                if round == 0
                    && changed_any
                    && let Some(object) = object.as_deref_mut()
                    && policies::mutate_again(registry, attributes, object, old).await?
                {
                    again = asked;
                }
                if again.is_empty() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// The object that is to be deleted, as clients see it.
async fn present(registry: &Registry, attributes: &Attributes<'_>) -> Result<Option<Value>> {
    let served = attributes.served;
    match registry.get(served, attributes.context.namespace, attributes.name, "").await {
        Ok(entry) => served.presented(entry.value()).await.map(Some),
        Err(status) if status.code == 404 => Ok(None),
        Err(status) => Err(status),
    }
}

/// Applies a hook's patch; whether that changed anything.
async fn apply(hook: &Hook, attributes: &Attributes<'_>, object: &mut Value, patch: &Value) -> Result<bool> {
    let seen = attributes.in_version(object).await?;
    let mut patched = seen.clone().into_owned();
    machinery::patch::json_patch::apply(&mut patched, patch).map_err(|error| {
        Status::internal(format!("jsonpatch {} operation does not apply: {error}", hook.name))
    })?;
    policies::complete(attributes, &mut patched)?;
    let changed = patched != *seen;
    drop(seen);
    attributes.give_back(patched, object).await?;
    Ok(changed)
}

impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        concerned(attributes)
    }

    fn admits_connections(&self) -> bool {
        true
    }

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        if registry.admission.hooks.is_empty(registry, VALIDATING) {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
            let hooks = registry.admission.hooks.current(registry, VALIDATING).await?;
            if hooks.is_empty() {
                return Ok(());
            }
            let wanted = wanted(&hooks, registry, attributes, object, old).await?;
            // All at once; the first refusal in their order is the one that is told.
            let answers =
                wanted.iter().map(|(hook, attributes)| ask(hook, registry, attributes, object, old));
            let answers = join_all(answers).await;
            for (index, answer) in answers.iter().enumerate() {
                if let Ok(Outcome::FailedOpen) = answer {
                    annotations::validating_failed_open(
                        index,
                        &wanted[index].0.name,
                        attributes.context.warnings,
                    );
                }
            }
            answers.into_iter().collect::<Result<Vec<_>>>().map(drop)
        })
    }
}
