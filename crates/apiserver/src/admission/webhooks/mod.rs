//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: remote servers mutate and reject writes.
//!
//! Webhook configurations are read from the watch caches and retained until they change; a cluster without webhooks
//! pays one comparison per write.

pub mod annotations;
pub mod call;
mod hook;
#[cfg(test)]
mod tests;

use super::matching::{GROUP, HOOKS, POLICIES, is_subject_to_rules};
use super::metrics::Step;
use super::policies::{self, Subject};
use super::{Attributes, Operation, Plugin};
use crate::cache::{Cache, Cursor};
use crate::chain::offload;
use crate::registry::{OrStatus, Registry};
use annotations::Annotator;
use async_trait::async_trait;
use call::WebhookOutcome;
use futures_util::future::join_all;
use hook::Hook;
pub use hook::request;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

const MUTATING: &str = HOOKS[0];
const VALIDATING: &str = HOOKS[1];

pub struct MutatingAdmissionWebhook;
pub struct ValidatingAdmissionWebhook;

/// Configured webhooks.
#[derive(Default)]
pub struct Hooks {
    mutating: Mutex<Option<CachedHooks>>,
    validating: Mutex<Option<CachedHooks>>,
}

/// Webhooks as of the last change of their configurations.
struct CachedHooks {
    at: Cursor,
    hooks: Arc<[Hook]>,
}

impl Hooks {
    fn of(&self, resource: &str) -> &Mutex<Option<CachedHooks>> {
        if resource == MUTATING { &self.mutating } else { &self.validating }
    }

    /// Webhooks, if they are current without waiting and without reading their configurations again.
    fn known(&self, cache: &Cache, resource: &str) -> Option<Arc<[Hook]>> {
        let known = self.of(resource).lock();
        let known = known.as_ref().filter(|known| cache.is_ready() && known.at == cache.watch_from_now())?;
        Some(known.hooks.clone())
    }

    /// Returns true if there is certainly no webhook.
    fn is_empty(&self, registry: &Registry, resource: &str) -> bool {
        let cache = registry.builtin(GROUP, "v1", resource).map(|served| &served.storage.cache);
        cache.is_ok_and(|cache| self.known(cache, resource).is_some_and(|hooks| hooks.is_empty()))
    }

    async fn current(&self, registry: &Registry, resource: &str) -> Result<Arc<[Hook]>> {
        let cache = &registry.builtin(GROUP, "v1", resource)?.storage.cache;
        if let Some(hooks) = self.known(cache, resource) {
            return Ok(hooks);
        }
        cache.ready().await.or_status()?;
        // Compiling match conditions is expensive.
        offload::heavy().await;
        // Taken before the read, so that concurrent changes are read again.
        let at = cache.watch_from_now();
        let view = cache.list(&cache.root, None, 0, 0, |_| true);
        let mut configurations: Vec<Value> = view.entries.iter().map(|entry| entry.value()).collect();
        configurations.sort_by(|a, b| meta::name(a).cmp(meta::name(b)));
        let hooks: Arc<[Hook]> = configurations.iter().flat_map(Hook::all).collect();
        *self.of(resource).lock() = Some(CachedHooks { at, hooks: hooks.clone() });
        Ok(hooks)
    }
}

fn is_subject(attributes: &Attributes<'_>) -> bool {
    is_subject_to_rules(attributes, &[&HOOKS, &POLICIES])
}

/// Matching webhooks, each with the version it expects; a webhook whose conditions fail to evaluate rejects the
/// write.
async fn wanted<'h, 'a>(
    hooks: &'h [Hook],
    registry: &'a Registry,
    step: Step,
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
        let begin = Instant::now();
        let outcome = policies::conditions_hold(&hook.conditions, &subject).await?;
        if let Some(metrics) = &registry.admission.metrics {
            let result = outcome.as_ref().map(|holds| *holds).map_err(String::as_str);
            metrics.webhook_conditions(&hook.name, (step, attributes.operation), result, begin.elapsed());
        }
        match outcome {
            Ok(true) => found.push((hook, seen)),
            Ok(false) => {}
            Err(why) if hook.ignores_failure => tracing::warn!(hook = hook.name, why, "webhook skipped"),
            Err(why) => return Err(attributes.forbidden(why)),
        }
    }
    Ok(found)
}

/// Calls the webhook with the objects in the version it expects.
async fn ask(
    hook: &Hook,
    resource: &str,
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<WebhookOutcome> {
    let object = attributes.optional_in_version(object).await?;
    let old = attributes.optional_in_version(old).await?;
    let begin = Instant::now();
    let mut is_denied = false;
    let outcome =
        call::ask(hook, registry, attributes, (object.as_deref(), old.as_deref()), &mut is_denied).await;
    if let Some(metrics) = &registry.admission.metrics {
        let step = if resource == MUTATING { Step::Admit } else { Step::Validate };
        metrics.webhook(&hook.name, (step, attributes.operation), &outcome, is_denied, begin.elapsed());
    }
    outcome
}

/// Labels of the namespace of a write; `None` if it is cluster-scoped.
async fn namespace_labels(
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<Value>> {
    let namespace = policies::namespace_of(registry, attributes).await?;
    Ok(policies::namespace_labels(attributes, namespace.as_ref(), object))
}

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_subject(attributes)
    }

    fn is_configured(&self, registry: &Registry) -> bool {
        !registry.admission.hooks.is_empty(registry, MUTATING)
    }

    fn admits_connections(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let hooks = registry.admission.hooks.current(registry, MUTATING).await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let deleted = match (attributes.operation, old) {
            (Operation::Delete, None) => present(registry, attributes).await?,
            _ => None,
        };
        let old = old.or(deleted.as_ref());
        // Webhooks with `reinvocationPolicy: IfNeeded` are called again if a later one changed the object.
        let mut again: Vec<&str> = Vec::new();
        for round in 0..2 {
            let mut changed_any = false;
            let mut changed_since: Vec<&str> = Vec::new();
            let mut called: Vec<&str> = Vec::new();
            let names = wanted(&hooks, registry, Step::Admit, attributes, object.as_deref(), old).await?;
            for (hook, attributes) in &names {
                if round == 1 && !again.contains(&hook.name.as_str()) {
                    continue;
                }
                let annotator = Annotator::new(&hooks, hook, round, attributes.context.record);
                let outcome = ask(hook, MUTATING, registry, attributes, object.as_deref(), old).await;
                let changed = match (&mut object, outcome) {
                    (Some(object), Ok(WebhookOutcome::Patched(patch))) => {
                        let changed = apply(hook, attributes, object, &patch).await;
                        if changed.is_ok() {
                            annotator.patch(&patch);
                        }
                        changed
                    }
                    (_, Ok(WebhookOutcome::FailedOpen)) => {
                        annotator.failed_open();
                        Ok(false)
                    }
                    (None, Ok(WebhookOutcome::Patched(patch))) if patch != Value::Array(Vec::new()) => {
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
                    changed_since.extend(called.iter().copied());
                }
                if hook.reinvoked {
                    called.push(&hook.name);
                }
            }
            again = changed_since;
            // Policies run before webhooks, and are reinvoked after changes by webhooks.
            if round == 0
                && changed_any
                && let Some(object) = object.as_deref_mut()
                && policies::mutate_again(registry, attributes, object, old).await?
            {
                again = called;
            }
            if again.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// The object of a deletion, as clients see it.
async fn present(registry: &Registry, attributes: &Attributes<'_>) -> Result<Option<Value>> {
    let served = attributes.served;
    match registry.get(served, attributes.context.namespace, attributes.name, "").await {
        Ok(entry) => served.presented(entry.value()).await.map(Some),
        Err(status) if status.code == 404 => Ok(None),
        Err(status) => Err(status),
    }
}

/// Applies a webhook's patch; returns true if the object changed.
async fn apply(hook: &Hook, attributes: &Attributes<'_>, object: &mut Value, patch: &Value) -> Result<bool> {
    let seen = attributes.in_version(object).await?;
    let mut patched = seen.clone().into_owned();
    machinery::patch::json_patch::apply(&mut patched, patch).map_err(|error| {
        Status::internal(format!("jsonpatch {} operation does not apply: {error}", hook.name))
    })?;
    policies::complete(attributes, &mut patched)?;
    let changed = patched != *seen;
    drop(seen);
    attributes.convert_back(patched, object).await?;
    Ok(changed)
}

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_subject(attributes)
    }

    fn is_configured(&self, registry: &Registry) -> bool {
        !registry.admission.hooks.is_empty(registry, VALIDATING)
    }

    fn admits_connections(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let hooks = registry.admission.hooks.current(registry, VALIDATING).await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let wanted = wanted(&hooks, registry, Step::Validate, attributes, object, old).await?;
        // Called concurrently; the first rejection in configuration order is returned.
        let answers =
            wanted.iter().map(|(hook, attributes)| ask(hook, VALIDATING, registry, attributes, object, old));
        let answers = join_all(answers).await;
        for (index, answer) in answers.iter().enumerate() {
            if let Ok(WebhookOutcome::FailedOpen) = answer {
                annotations::validating_failed_open(index, &wanted[index].0.name, attributes.context.record);
            }
        }
        answers.into_iter().collect::<Result<Vec<_>>>().map(drop)
    }
}
