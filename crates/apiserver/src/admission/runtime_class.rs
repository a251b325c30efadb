//! RuntimeClass: sets overhead and scheduling constraints of a pod from its runtime class.

use super::reading::invalid_name_reason;
use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::{Result, Status};

const DIFFERS: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
const UNFOUNDED: &str = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

pub struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is("", "pods")
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object else { return Ok(()) };
        let Some(class) = class_of(registry, attributes, pod).await? else { return Ok(()) };
        complete(pod, &class).map_err(|why| attributes.forbidden(why))
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object else { return Ok(()) };
        let overhead = pod.at("spec.overhead");
        let class = class_of(registry, attributes, pod).await?;
        match class.as_ref().map(|class| class.at("overhead.podFixed")).filter(|fixed| !fixed.is_null()) {
            Some(fixed) if fixed != overhead => Err(attributes.forbidden(DIFFERS)),
            None if !overhead.is_null() => Err(attributes.forbidden(UNFOUNDED)),
            _ => Ok(()),
        }
    }
}

async fn class_of(registry: &Registry, attributes: &Attributes<'_>, pod: &Value) -> Result<Option<Value>> {
    let Some(name) = pod.field("spec").opt_text("runtimeClassName") else { return Ok(None) };
    if let Some(why) = invalid_name_reason(name) {
        return Err(Status::new(500, "", why));
    }
    let class = registry.find(("node.k8s.io", "v1", "runtimeclasses"), "", name).await?;
    match class {
        None => Err(attributes.forbidden(format!("pod rejected: RuntimeClass {name:?} not found"))),
        found => Ok(found),
    }
}

fn complete(pod: &mut Value, class: &Value) -> Result<(), String> {
    let fixed = class.at("overhead.podFixed");
    if !fixed.is_null() {
        let submitted = pod.at("spec.overhead");
        if !api::value::is_zero(submitted) && submitted != fixed {
            return Err(DIFFERS.to_owned());
        }
        pod.child_mut("spec").set("overhead", fixed.clone());
    }
    if !class.has("scheduling") {
        return Ok(());
    }
    let scheduling = class.field("scheduling");
    for (key, wanted) in scheduling.entries("nodeSelector").into_iter().flatten() {
        let selector = pod.child_mut("spec").child_mut("nodeSelector");
        if let Some(submitted) = selector.opt_text(key).filter(|submitted| wanted != submitted) {
            let wanted = wanted.as_str().unwrap_or("");
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {submitted}"
            ));
        }
        selector.set(key, wanted.clone());
    }
    let merged = merge_tolerations(pod.at("spec").items("tolerations"), scheduling.items("tolerations"));
    if !merged.is_empty() {
        pod.child_mut("spec").set("tolerations", merged);
    }
    Ok(())
}

/// Merges both lists without entries that another one covers.
fn merge_tolerations(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = Vec::new();
    for (i, toleration) in all.iter().enumerate() {
        let covered = merged.iter().any(|existing| covers(existing, toleration))
            || all[i + 1..].iter().any(|later| later != toleration && covers(later, toleration));
        if !covered {
            merged.push((*toleration).clone());
        }
    }
    merged
}

fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let operator = wide.text("operator");
    let any_key = wide.text("key").is_empty() && operator == "Exists";
    if narrow.text("key") != wide.text("key") && !any_key {
        return false;
    }
    let effect = wide.text("effect");
    if !effect.is_empty() && effect != narrow.text("effect") {
        return false;
    }
    if effect == "NoExecute"
        && let Some(limit) = wide.opt_int("tolerationSeconds")
        && narrow.opt_int("tolerationSeconds").is_none_or(|seconds| seconds > limit)
    {
        return false;
    }
    match operator {
        "" | "Equal" => narrow.text("operator") == "Equal" && narrow.text("value") == wide.text("value"),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn runtime_class_sets_overhead_and_scheduling() {
        let class = json!({
            "overhead": {"podFixed": {"cpu": "1"}},
            "scheduling": {
                "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
            },
        });
        let mut pod = json!({"spec": {"tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]}});
        assert_eq!(complete(&mut pod, &class), Ok(()));
        assert_eq!(
            pod["spec"],
            json!({
                "overhead": {"cpu": "1"}, "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
            })
        );
        let mut pod = json!({"spec": {"nodeSelector": {"a": "c"}, "overhead": {"cpu": "1"}}});
        assert_eq!(
            complete(&mut pod, &class),
            Err("conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"
                .to_owned())
        );
        let mut pod = json!({"spec": {"overhead": {"cpu": "2"}}});
        assert_eq!(complete(&mut pod, &class), Err(DIFFERS.to_owned()));
    }
}
