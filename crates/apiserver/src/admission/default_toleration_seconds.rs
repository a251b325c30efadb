//! DefaultTolerationSeconds: pods tolerate not-ready and unreachable nodes for five minutes, unless they have
//! tolerations of their own.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;
use serde_json::json;

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

pub struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Delete && attributes.is("", "pods")
    }

    async fn mutate(
        &self,
        registry: &Registry,
        _attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        if let Some(pod) = object {
            let tuning = &registry.tuning;
            tolerate(pod, [tuning.not_ready_toleration, tuning.unreachable_toleration]);
        }
        Ok(())
    }
}

/// Adds tolerations of the taints with these seconds.
fn tolerate(pod: &mut Value, seconds: [i64; 2]) {
    let tolerations = pod.field("spec").items("tolerations");
    let missing: Vec<Value> = TAINTS
        .into_iter()
        .zip(seconds)
        .filter(|(taint, _)| {
            !tolerations.iter().any(|toleration| {
                let (key, effect) = (toleration.text("key"), toleration.text("effect"));
                (key.is_empty() || key == *taint) && (effect.is_empty() || effect == "NoExecute")
            })
        })
        .map(|(taint, seconds)| {
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
        })
        .collect();
    if !missing.is_empty() {
        let mut all = tolerations.to_vec();
        all.extend(missing);
        pod.child_mut("spec").set("tolerations", all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tolerations_are_added() {
        for (tolerations, added) in [
            (json!([]), 2),
            (json!([{"operator": "Exists"}]), 0),
            (json!([{"operator": "Exists", "effect": "NoSchedule"}]), 2),
            (json!([{"key": TAINTS[0], "effect": "NoExecute", "tolerationSeconds": 1}]), 1),
        ] {
            let before = tolerations.as_array().map_or(0, Vec::len);
            let mut pod = json!({"spec": {"tolerations": tolerations}});
            tolerate(&mut pod, [300, 20]);
            assert_eq!(pod["spec"]["tolerations"].as_array().map(Vec::len), Some(before + added), "{pod}");
        }
        let mut pod = json!({});
        tolerate(&mut pod, [300, 20]);
        let seconds = |index: usize| pod["spec"]["tolerations"][index]["tolerationSeconds"].as_i64();
        assert_eq!((seconds(0), seconds(1)), (Some(300), Some(20)));
    }
}
