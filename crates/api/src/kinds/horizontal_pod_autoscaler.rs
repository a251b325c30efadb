//! HorizontalPodAutoscaler: v2 is the stored form, v1 a view of it.

pub use crate::autoscaling::conversion::{from_v1, to_v1};

use crate::autoscaling::conversion::drop_round_trip_annotations;
use crate::autoscaling::validation;
use crate::kind::{StoredAs, keep_status};
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::Value;
use machinery::field::{ErrorList, Path};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create: |autoscaler| {
        autoscaler.set("status", json!({"currentMetrics": null, "desiredReplicas": 0}))
    },
    prepare_update: keep_status,
    prepare_status_update: workload::keep_spec,
    validate: |autoscaler| validation::validate_spec(autoscaler, None),
    validate_update: |new, old| validation::validate_spec(new, Some(old)),
    validate_status_update,
    table: &crate::tables::autoscaling::HORIZONTAL_POD_AUTOSCALER,
    ..Kind::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Scope::Namespaced)
};

/// Has only defaults of its own: objects are converted by [`from_v1`] before any other rule runs.
pub static KIND_V1: Kind = Kind {
    default: default_v1,
    prepare_create: KIND.prepare_create,
    prepare_update: KIND.prepare_update,
    prepare_status_update: KIND.prepare_status_update,
    stored_as: Some(&StoredAs {
        kind: &KIND,
        to_stored: |autoscaler| from_v1(&autoscaler),
        from_stored: |autoscaler| to_v1(&autoscaler),
        rules_of_stored: true,
    }),
    table: &crate::tables::autoscaling::HORIZONTAL_POD_AUTOSCALER,
    ..Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Scope::Namespaced)
};

/// Defaults to a CPU target if there are no metrics; other metrics are visible only in the v2 form.
fn default_v1(autoscaler: &mut Value) {
    let spec = autoscaler.child_mut("spec");
    spec.default_to("minReplicas", 1);
    if spec.has(TARGET_CPU) {
        return;
    }
    if let Some(target) = to_v1(&from_v1(autoscaler)).field("spec").opt_int(TARGET_CPU) {
        autoscaler.child_mut("spec").set(TARGET_CPU, target);
    }
}

const TARGET_CPU: &str = "targetCPUUtilizationPercentage";

fn default(autoscaler: &mut Value) {
    drop_round_trip_annotations(autoscaler);
    let spec = autoscaler.child_mut("spec");
    spec.default_to("minReplicas", 1);
    if spec.items("metrics").is_empty() {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.set("metrics", json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    if let Some(behavior) = spec.field_mut("behavior") {
        let up = behavior.child_mut("scaleUp");
        up.default_to("stabilizationWindowSeconds", 0);
        up.default_to("selectPolicy", "Max");
        if !up.has("policies") {
            up.set(
                "policies",
                json!([
                    {"type": "Pods", "value": 4, "periodSeconds": 15},
                    {"type": "Percent", "value": 100, "periodSeconds": 15},
                ]),
            );
        }
        let down = behavior.child_mut("scaleDown");
        down.default_to("selectPolicy", "Max");
        if !down.has("policies") {
            down.set("policies", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
        }
    }
}

fn validate_status_update(new: &Value, _old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let counters = ["currentReplicas", "desiredReplicas"];
    workload::status::validate_counters(new.field("status"), &counters, &Path::new("status"), &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_without_metrics_defaults_cpu_target() {
        let mut plain = json!({"spec": {"maxReplicas": 3}});
        default_v1(&mut plain);
        assert_eq!(plain["spec"], json!({"maxReplicas": 3, "minReplicas": 1, TARGET_CPU: 80}));
        let metrics = r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}}]"#;
        let annotations = json!({"autoscaling.alpha.kubernetes.io/metrics": metrics});
        let mut other = json!({"metadata": {"annotations": annotations}, "spec": {"maxReplicas": 3}});
        default_v1(&mut other);
        assert_eq!(other["spec"], json!({"maxReplicas": 3, "minReplicas": 1}));
    }
}
