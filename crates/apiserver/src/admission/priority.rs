//! Priority: sets a pod's priority from its class, allows a single default class, and protects the system classes.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::status::Result;
use machinery::{Value, meta};
use serde_json::json;

const CLASSES: (&str, &str, &str) = ("scheduling.k8s.io", "v1", "priorityclasses");

/// Name prefix of system classes.
const SYSTEM: &str = "system-";

pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("scheduling.k8s.io", "priorityclasses")
            || attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(pod) = object.filter(|_| attributes.is("", "pods")) else { return Ok(()) };
        if attributes.operation == Operation::Update {
            if let Some(old) = old {
                keep(pod, old);
            }
            return Ok(());
        }
        let name = pod.field("spec").text("priorityClassName");
        let class = if name.is_empty() {
            default_class(registry).await?
        } else {
            let class = registry.find(CLASSES, "", name).await?;
            let none = || attributes.forbidden(format!("no PriorityClass with name {name} was found"));
            Some(class.ok_or_else(none)?)
        };
        resolve(pod, class.as_ref()).map_err(|why| attributes.forbidden(why))
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        if attributes.operation == Operation::Delete {
            let name = old.map_or("", meta::name);
            return match name.starts_with(SYSTEM) {
                true => Err(attributes.forbidden("this is a system priority class and cannot be deleted")),
                false => Ok(()),
            };
        }
        let Some(class) = object.filter(|_| !attributes.is("", "pods")) else { return Ok(()) };
        if !class.flag("globalDefault") {
            return Ok(());
        }
        let Some(present) = default_class(registry).await? else { return Ok(()) };
        let present = meta::name(&present);
        if attributes.operation == Operation::Update && present == meta::name(class) {
            return Ok(());
        }
        Err(attributes.forbidden(format!(
            "PriorityClass {present} is already marked as default. Only one default can exist"
        )))
    }
}

/// Default class; if there are several, the one with the lowest value.
async fn default_class(registry: &Registry) -> Result<Option<Value>> {
    let classes = registry.find_all(CLASSES, "", "\"globalDefault\":true").await?;
    let defaults = classes.into_iter().filter(|class| class.flag("globalDefault"));
    Ok(defaults.min_by_key(|class| class.int("value")))
}

/// Restores fields that older clients omit in updates.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        let value = old.field("spec").field(field);
        if !value.is_null() {
            pod.child_mut("spec").default_to(field, value.clone());
        }
    }
}

/// Sets the class's values on a new pod; values in the pod must agree.
fn resolve(pod: &mut Value, class: Option<&Value>) -> Result<(), String> {
    let spec = pod.child_mut("spec");
    let value = class.map_or(0, |class| class.int("value"));
    let policy = match class {
        None => "PreemptLowerPriority",
        Some(class) => class.text("preemptionPolicy"),
    };
    if let Some(class) = class {
        spec.set("priorityClassName", meta::name(class));
    }
    if let Some(submitted) = spec.opt_int("priority").filter(|submitted| *submitted != value) {
        return Err(format!(
            "the integer value of priority ({submitted}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    spec.set("priority", json!(value));
    if policy.is_empty() {
        return Ok(());
    }
    if let Some(submitted) = spec.opt_text("preemptionPolicy").filter(|submitted| *submitted != policy) {
        return Err(format!(
            "the string value of PreemptionPolicy ({submitted}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec.set("preemptionPolicy", policy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_class_sets_values_and_rejects_mismatch() {
        let class = json!({"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"});
        for (spec, class, want) in [
            (json!({}), None, Ok(json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}))),
            (
                json!({"priority": 7}),
                Some(&class),
                Ok(json!({"priority": 7, "preemptionPolicy": "Never", "priorityClassName": "high"})),
            ),
            (json!({"priority": 5}), Some(&class), Err("the integer value of priority (5)")),
            (json!({"preemptionPolicy": "X"}), Some(&class), Err("the string value of PreemptionPolicy (X)")),
        ] {
            let mut pod = json!({"spec": spec});
            match (resolve(&mut pod, class), want) {
                (Ok(()), Ok(want)) => assert_eq!(pod["spec"], want),
                (Err(got), Err(want)) => assert!(got.starts_with(want), "{got}"),
                (got, want) => panic!("{got:?} instead of {want:?}"),
            }
        }
    }
}
