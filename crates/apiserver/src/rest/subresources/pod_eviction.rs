//! `pods/eviction`: deletes a pod if its disruption budget allows it.

use super::pod_binding::{set_condition, success};
use crate::admission::{Attributes, Operation};
use crate::registry::metadata::ensure_namespace;
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{WriteContext, WriteRecord};
use crate::rest::{Rest, Route};
use crate::serve::RequestBody;
use crate::user::UserInfo;
use crate::wire::decode::Expected;
use crate::wire::negotiate::Accepted;
use crate::wire::options::{DeleteOptions, WriteKind};
use crate::wire::query::Query;
use crate::wire::reply::{self, Reply};
use api::value::{Fields, texts};
use machinery::selector::label::LabelSelector;
use machinery::status::{Cause, Result, Status};
use machinery::{Map, Value, meta};
use serde_json::json;

const BUDGETS: (&str, &str, &str) = ("policy", "v1", "poddisruptionbudgets");
const VIOLATION: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const SEVERAL: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
/// Retries for a pod that changes concurrently.
const ATTEMPTS: usize = 20;
/// Unconfirmed evictions (`disruptedPods`) of a budget, at most.
const MAX_UNCONFIRMED: usize = 2000;

impl Rest {
    pub(in crate::rest) async fn evict(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        // Evictions of policy/v1beta1 are still accepted, as in Kubernetes.
        let expected = Expected { also: &["v1beta1"], ..Expected::unstored("policy", "v1", "Eviction")? };
        let (options, mut eviction) = self.read_unstored(context, body, WriteKind::Create, expected).await?;
        let admitted = self.write_context(route, &options.field_manager, options.dry_run);
        ensure_namespace(&mut eviction, &route.served, admitted.namespace)?;
        let attributes =
            Attributes::new(&route.served, &admitted, Operation::Create).named(&context.info.name);
        self.registry.admission.mutate(&self.registry, &attributes, Some(&mut eviction), None).await?;
        if meta::name(&eviction) != context.info.name {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        self.registry.admission.validate(&self.registry, &attributes, Some(&eviction), None).await?;
        let specified = Some(eviction.field("deleteOptions")).filter(|options| options.is_object());
        let dry_runs: Vec<&str> = texts(eviction.at("deleteOptions").items("dryRun")).collect();
        if options.dry_run && !dry_runs.is_empty() && dry_runs != ["All"] {
            let shown = dry_runs.join(" ");
            let why = format!("Non-matching dry-run options in request and content: [All] and [{shown}]");
            return Err(Status::new(500, "", why));
        }
        let mut deletion = DeleteOptions::read(&Query::parse(None), specified)?;
        deletion.dry_run |= options.dry_run;
        let write = self.write_context(route, &options.field_manager, deletion.dry_run);
        self.evict_pod(route, deletion, &write).await?;
        reply::value(201, &success(), &Accepted { form: None, ..*accepted }, context)
    }

    async fn evict_pod(
        &self,
        route: &Route<'_>,
        options: DeleteOptions,
        write: &WriteContext<'_>,
    ) -> Result<()> {
        let any_version = options.resource_version.is_none();
        for _ in 0..ATTEMPTS {
            let entry =
                self.registry.get(&route.served, write.namespace, &route.context.info.name, "").await?;
            let pod = entry.value();
            let ended = has_ended(&pod);
            if !ended && pod.field("status").text("phase") != "Pending" {
                return self.evict_guarded(route, &pod, options, write).await;
            }
            // No disruption. A pod that may become ready meanwhile is deleted at this resource version or not at all.
            let mut exact = options.clone();
            if !ended && any_version {
                exact.resource_version = Some(meta::resource_version(&pod).to_owned());
            }
            match self.mark_and_delete(route, &pod, exact, write).await {
                Err(status) if status.code == 409 && any_version => {
                    if options.uid.as_deref().is_some_and(|uid| uid != meta::uid(&pod)) {
                        return Err(status);
                    }
                }
                outcome => return outcome,
            }
        }
        let name = &route.context.info.name;
        Err(route.served.conflict(name, crate::registry::MODIFIED))
    }

    /// Evicts a running pod if its budget allows it.
    async fn evict_guarded(
        &self,
        route: &Route<'_>,
        pod: &Value,
        mut options: DeleteOptions,
        write: &WriteContext<'_>,
    ) -> Result<()> {
        let budgets = self.registry.find_all(BUDGETS, write.namespace, "").await?;
        let empty = Map::new();
        let labels = meta::labels(pod).unwrap_or(&empty);
        let covers = |budget: &&Value| {
            let selector = budget.field("spec").field("selector");
            let selector = LabelSelector::from_object(Some(selector).filter(|selector| selector.is_object()));
            selector.is_ok_and(|selector| selector.matches(labels))
        };
        let covering: Vec<&Value> = budgets.iter().filter(covers).collect();
        let budget = match covering.as_slice() {
            [] => return self.mark_and_delete(route, pod, options, write).await,
            [one] => *one,
            _ => return Err(Status::new(500, "", SEVERAL)),
        };
        let name = meta::name(budget).to_owned();
        if !is_ready(pod) && allows_unready_eviction(budget) {
            let pinned = options.resource_version.is_none();
            if pinned {
                options.resource_version = Some(meta::resource_version(pod).to_owned());
            }
            return match self.mark_and_delete(route, pod, options, write).await {
                Err(status) if status.code == 409 && pinned => Err(being_processed(&name)),
                outcome => outcome,
            };
        }
        self.spend(&name, meta::name(pod), write).await?;
        self.mark_and_delete(route, pod, options, write).await
    }

    /// Takes one disruption from the budget, if one is allowed.
    async fn spend(&self, budget: &str, pod: &str, write: &WriteContext<'_>) -> Result<()> {
        let served = self.registry.builtin(BUDGETS.0, BUDGETS.1, BUDGETS.2)?;
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext {
            subresource: "status",
            dry_run: write.dry_run,
            ..WriteContext::server(&user, &record, write.namespace)
        };
        let strategy = UpdateStrategy::status(served.governing());
        self.registry
            .update(served, budget, strategy, true, &context, |budget| {
                spent(budget, pod).map(Change::Replace)
            })
            .await
            .map(drop)
    }

    /// Sets the `DisruptionTarget` condition and deletes the pod.
    async fn mark_and_delete(
        &self,
        route: &Route<'_>,
        pod: &Value,
        mut options: DeleteOptions,
        write: &WriteContext<'_>,
    ) -> Result<()> {
        let name = meta::name(pod);
        if !options.dry_run {
            let context = WriteContext {
                user: write.user,
                verb: write.verb,
                manager: String::new(),
                dry_run: false,
                subresource: "status",
                namespace: write.namespace,
                record: write.record,
                is_server: false,
            };
            let strategy = UpdateStrategy::status(route.served.governing());
            let marked = self
                .registry
                .update(&route.served, name, strategy, true, &context, |pod| {
                    check_preconditions(&options, pod)?;
                    let mut new = pod.clone();
                    set_condition(
                        &mut new,
                        json!({
                            "type": "DisruptionTarget", "status": "True",
                            "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
                        }),
                    );
                    Ok(Change::Applied(new))
                })
                .await?;
            if options.resource_version.is_some() {
                options.resource_version = Some(meta::resource_version(&marked.value()).to_owned());
            }
        }
        let context = WriteContext {
            user: write.user,
            verb: write.verb,
            manager: String::new(),
            dry_run: options.dry_run,
            subresource: "",
            namespace: write.namespace,
            record: write.record,
            is_server: false,
        };
        self.registry.delete(&route.served, name, &options, &context).await.map(drop)
    }
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod.field("status").text("phase"), "Succeeded" | "Failed")
        || meta::deletion_timestamp(pod).is_some()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.field("status").items("conditions");
    conditions.iter().any(|c| c.text("type") == "Ready" && c.text("status") == "True")
}

/// Reports whether an unready pod may be evicted: by the budget's policy, or if enough others are ready.
fn allows_unready_eviction(budget: &Value) -> bool {
    let status = budget.field("status");
    let (current, desired) = (status.int("currentHealthy"), status.int("desiredHealthy"));
    budget.field("spec").text("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (desired > 0 && current >= desired)
}

fn check_preconditions(options: &DeleteOptions, pod: &Value) -> Result<()> {
    let refuse = |why: String| Err(Status::conflict("", "Pod", meta::name(pod), why));
    if let Some(uid) = options.uid.as_deref().filter(|uid| !uid.is_empty() && *uid != meta::uid(pod)) {
        return refuse(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            meta::uid(pod)
        ));
    }
    let version = options.resource_version.as_deref();
    if let Some(version) = version.filter(|v| !v.is_empty() && *v != meta::resource_version(pod)) {
        return refuse(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            meta::resource_version(pod)
        ));
    }
    Ok(())
}

fn too_many(seconds: u32, message: String) -> Status {
    let mut status = Status::too_many_requests(VIOLATION, seconds);
    if let Some(details) = &mut status.details {
        details.causes.push(Cause { reason: "DisruptionBudget".to_owned(), message, field: String::new() });
    }
    status
}

fn being_processed(budget: &str) -> Status {
    too_many(10, format!("The disruption budget {budget} is still being processed by the server."))
}

/// Budget with one disruption less, or the reason why none is allowed.
fn spent(budget: &Value, pod: &str) -> Result<Value> {
    let (name, status) = (meta::name(budget), budget.field("status"));
    if status.int("observedGeneration") < meta::generation(budget) {
        return Err(being_processed(name));
    }
    let allowed = status.int("disruptionsAllowed");
    let forbidden = |why: &str| Status::forbidden("policy", "poddisruptionbudget", name, why);
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if status.entries("disruptedPods").is_some_and(|pods| pods.len() > MAX_UNCONFIRMED) {
        return Err(forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(too_many(0, why_not(name, status)));
    }
    let mut new = budget.clone();
    let status = new.child_mut("status");
    status.set("disruptionsAllowed", allowed - 1);
    status.child_mut("disruptedPods").set(pod, crate::registry::metadata::now());
    if allowed == 1 {
        exhaust(status);
    }
    Ok(new)
}

fn why_not(name: &str, status: &Value) -> String {
    let refusal = status.items("conditions").iter().find(|condition| {
        condition.text("type") == "DisruptionAllowed"
            && condition.text("status") == "False"
            && !condition.text("message").is_empty()
    });
    let (current, desired) = (status.int("currentHealthy"), status.int("desiredHealthy"));
    match refusal {
        Some(condition) if condition.text("reason") == "SyncFailed" => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
            condition.text("message")
        ),
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        Some(condition) => format!(
            "The disruption budget {name} does not allow evicting pods currently ({}): {}",
            condition.text("reason"),
            condition.text("message")
        ),
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

/// After the last disruption the condition is `False` until the controller updates it.
fn exhaust(status: &mut Value) {
    let observed = status.int("observedGeneration");
    let mut conditions = status.items("conditions").to_vec();
    conditions.retain(|condition| condition.text("type") != "DisruptionAllowed");
    conditions.push(json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": observed, "lastTransitionTime": crate::registry::metadata::now(),
    }));
    status.set("conditions", conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_phases_match_vectors() {
        for (phase, finished) in vectors::PHASES {
            assert_eq!(has_ended(&json!({"status": {"phase": phase}})), finished, "{phase}");
        }
    }

    #[test]
    fn disruption_budget_is_spent_to_zero() {
        let budget = |allowed: i64| {
            json!({
                "metadata": {"name": "b", "generation": 1},
                "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2},
            })
        };
        let after = spent(&budget(1), "p").expect("one is left");
        assert_eq!(after["status"]["disruptionsAllowed"], 0);
        assert!(after["status"]["disruptedPods"].has("p"));
        assert_eq!(after["status"]["conditions"][0]["reason"], "InsufficientPods");
        let refused = spent(&budget(0), "p").expect_err("none is left");
        assert_eq!((refused.code, refused.message.as_str()), (429, VIOLATION));
        let causes = refused.details.map(|details| details.causes).unwrap_or_default();
        assert_eq!(causes[0].message, "The disruption budget b needs 2 healthy pods and has 2 currently");
        let mut stale = budget(1);
        stale["metadata"]["generation"] = 2.into();
        assert_eq!(spent(&stale, "p").map_err(|status| status.code), Err(429));
    }
}
