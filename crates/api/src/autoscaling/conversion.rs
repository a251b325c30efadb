//! Conversion of autoscaling/v1 from and to v2, the stored form. Annotations carry fields that v1 lacks.

use super::ordered::{ObjectText, list};
use super::v1_metrics;
use crate::value::Fields;
use machinery::{Map, Value};
use serde_json::json;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const ROUND_TRIP: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// Removes the annotations that carry fields between versions.
pub fn drop_round_trip_annotations(object: &mut Value) {
    let Some(Value::Object(annotations)) = object.at_mut("metadata.annotations") else { return };
    let before = annotations.len();
    for key in ROUND_TRIP {
        annotations.remove(key);
    }
    if before > 0
        && annotations.is_empty()
        && let Some(metadata) = object.field_mut("metadata")
    {
        metadata.unset("annotations");
    }
}

/// Converts a v2 object to autoscaling/v1.
pub fn to_v1(object: &Value) -> Value {
    let mut metadata = json!({"metadata": object.field("metadata")});
    drop_round_trip_annotations(&mut metadata);
    let mut metadata = metadata.unset("metadata").unwrap_or_default();
    let (spec, status) = (object.field("spec"), object.field("status"));

    let others: Vec<&Value> = spec.items("metrics").iter().filter(|m| cpu_utilization(m).is_none()).collect();
    let mut annotate = |key: &str, text: String| metadata.child_mut("annotations").set(key, text);
    if !others.is_empty() {
        annotate(METRICS, list(others.into_iter().map(v1_metrics::spec_text)));
    }
    let current = status.items("currentMetrics");
    if !current.is_empty() {
        annotate(CURRENT_METRICS, list(current.iter().map(v1_metrics::status_text)));
    }
    if spec.has("behavior") {
        annotate(BEHAVIOR, behavior_text(spec.field("behavior")));
    }
    let conditions = status.items("conditions");
    if !conditions.is_empty() {
        annotate(CONDITIONS, list(conditions.iter().map(v1_metrics::condition_text)));
    }

    let mut v1_spec = json!({"maxReplicas": spec.int("maxReplicas")});
    copy(&mut v1_spec, spec, &["scaleTargetRef", "minReplicas"]);
    if let Some(percent) = spec.items("metrics").iter().find_map(cpu_utilization) {
        v1_spec.set("targetCPUUtilizationPercentage", percent);
    }
    let mut v1_status = json!({
        "currentReplicas": status.int("currentReplicas"),
        "desiredReplicas": status.int("desiredReplicas"),
    });
    copy(&mut v1_status, status, &["observedGeneration", "lastScaleTime"]);
    let cpu = |m: &Value| m.text("type") == "Resource" && m.field("resource").text("name") == "cpu";
    let percents = current.iter().filter(|m| cpu(m));
    if let Some(percent) =
        percents.filter_map(|m| m.at("resource.current").opt_int("averageUtilization")).next_back()
    {
        v1_status.set("currentCPUUtilizationPercentage", percent);
    }
    json!({
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": v1_spec,
        "status": v1_status,
    })
}

/// Converts an autoscaling/v1 object to the stored form.
pub fn from_v1(object: &Value) -> Value {
    let (v1_spec, v1_status) = (object.field("spec"), object.field("status"));
    let annotation = |key: &str| -> Option<Value> {
        serde_json::from_str(object.at("metadata.annotations").opt_text(key)?).ok()
    };

    let mut metrics: Vec<Value> = match annotation(METRICS) {
        Some(Value::Array(items)) => items.iter().map(v1_metrics::spec_from).collect(),
        _ => Vec::new(),
    };
    if let Some(percent) = v1_spec.opt_int("targetCPUUtilizationPercentage") {
        metrics.push(cpu_metric(percent));
    }
    if metrics.is_empty() {
        metrics.push(cpu_metric(80));
    }
    let mut spec = json!({"maxReplicas": v1_spec.int("maxReplicas"), "metrics": metrics});
    copy(&mut spec, v1_spec, &["scaleTargetRef", "minReplicas"]);
    if let Some(behavior) = annotation(BEHAVIOR).as_ref().and_then(behavior_from) {
        spec.set("behavior", behavior);
    }

    let mut status = json!({"currentMetrics": null, "desiredReplicas": v1_status.int("desiredReplicas")});
    if v1_status.int("currentReplicas") != 0 {
        status.set("currentReplicas", v1_status.int("currentReplicas"));
    }
    copy(&mut status, v1_status, &["observedGeneration", "lastScaleTime"]);
    if let Some(percent) = v1_status.opt_int("currentCPUUtilizationPercentage") {
        let current = json!({"averageUtilization": percent});
        status.set(
            "currentMetrics",
            json!([{"type": "Resource", "resource": {"name": "cpu", "current": current}}]),
        );
    }
    if let Some(Value::Array(items)) = annotation(CURRENT_METRICS) {
        status.set("currentMetrics", items.iter().map(v1_metrics::status_from).collect::<Vec<_>>());
    }
    if let Some(Value::Array(items)) = annotation(CONDITIONS)
        && !items.is_empty()
    {
        status.set("conditions", items.iter().map(condition_from).collect::<Vec<_>>());
    }

    let mut out = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": object.field("metadata"),
        "spec": spec,
        "status": status,
    });
    drop_round_trip_annotations(&mut out);
    out
}

/// Percentage of the metric that has a field in v1.
fn cpu_utilization(metric: &Value) -> Option<i64> {
    let resource = metric.field("resource");
    let is_cpu = metric.text("type") == "Resource" && resource.text("name") == "cpu";
    resource.field("target").opt_int("averageUtilization").filter(|_| is_cpu)
}

fn cpu_metric(percent: i64) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

fn copy(to: &mut Value, from: &Value, names: &[&str]) {
    for name in names {
        if from.has(name) {
            to.set(name, from.field(name).clone());
        }
    }
}

/// The annotation has the field names of Kubernetes' internal type, and every field.
fn behavior_text(behavior: &Value) -> String {
    let rules = |name: &str| {
        let rules = behavior.field(name);
        if rules.is_null() {
            return "null".to_owned();
        }
        let policies = list(rules.items("policies").iter().map(|policy| {
            ObjectText::new()
                .text("Type", policy.text("type"))
                .value("Value", &Value::from(policy.int("value")))
                .value("PeriodSeconds", &Value::from(policy.int("periodSeconds")))
                .end()
        }));
        let policies = if rules.has("policies") { policies } else { "null".to_owned() };
        ObjectText::new()
            .value("StabilizationWindowSeconds", rules.field("stabilizationWindowSeconds"))
            .value("SelectPolicy", rules.field("selectPolicy"))
            .raw("Policies", &policies)
            .value("Tolerance", rules.field("tolerance"))
            .end()
    };
    ObjectText::new().raw("ScaleUp", &rules("scaleUp")).raw("ScaleDown", &rules("scaleDown")).end()
}

fn behavior_from(behavior: &Value) -> Option<Value> {
    let rules = |name: &str| {
        let from = behavior.as_object().and_then(|map| get_folded(map, name))?.as_object()?;
        let mut out = Map::new();
        for (name, internal) in [
            ("stabilizationWindowSeconds", "StabilizationWindowSeconds"),
            ("selectPolicy", "SelectPolicy"),
            ("tolerance", "Tolerance"),
        ] {
            if let Some(value) = get_folded(from, internal).filter(|value| !value.is_null()) {
                out.insert(name.to_owned(), value.clone());
            }
        }
        if let Some(Value::Array(policies)) = get_folded(from, "Policies") {
            let policies = policies.iter().filter_map(Value::as_object).map(|policy| {
                let field = |name: &str| get_folded(policy, name).cloned().unwrap_or_default();
                json!({
                    "type": field("Type").as_str().unwrap_or(""),
                    "value": field("Value").as_i64().unwrap_or(0),
                    "periodSeconds": field("PeriodSeconds").as_i64().unwrap_or(0),
                })
            });
            out.insert("policies".to_owned(), policies.collect());
        }
        Some(Value::Object(out))
    };
    let mut out = Map::new();
    for (name, internal) in [("scaleUp", "ScaleUp"), ("scaleDown", "ScaleDown")] {
        if let Some(rules) = rules(internal) {
            out.insert(name.to_owned(), rules);
        }
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

/// Field names of annotations are matched case-insensitively, as by Go's JSON decoder.
fn get_folded<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).or_else(|| map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v))
}

fn condition_from(condition: &Value) -> Value {
    let mut out = json!({
        "type": condition.text("type"),
        "status": condition.text("status"),
        "lastTransitionTime": condition.field("lastTransitionTime"),
    });
    for name in ["reason", "message"] {
        if !condition.text(name).is_empty() {
            out.set(name, condition.text(name));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_missing_in_v1_round_trip_in_annotations() {
        let v2 = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "x"},
            "spec": {
                "maxReplicas": 3, "minReplicas": 1,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
                "behavior": {"scaleDown": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
                    "selectPolicy": "Max", "stabilizationWindowSeconds": 5}},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "memory",
                        "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                    {"type": "Pods", "pods": {"metric": {"name": "rps", "selector": {"matchLabels": {"a": "b"}}},
                        "target": {"type": "AverageValue", "averageValue": "10"}}},
                    {"type": "Object", "object": {"describedObject": {"kind": "I", "name": "i"},
                        "metric": {"name": "rps"}, "target": {"type": "Value", "value": "10k"}}},
                    {"type": "External", "external": {"metric": {"name": "q"},
                        "target": {"type": "AverageValue", "averageValue": "30"}}},
                    {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                        "target": {"type": "Utilization", "averageUtilization": 10}}},
                    {"type": "Resource", "resource": {"name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 70}}},
                ],
            },
            "status": {
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 40, "averageValue": "40m"}}}],
                "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": null,
                    "reason": "R"}],
                "currentReplicas": 1, "desiredReplicas": 2,
            },
        });
        let v1 = to_v1(&v2);
        let annotations = &v1["metadata"]["annotations"];
        assert_eq!(
            annotations[BEHAVIOR],
            "{\"ScaleUp\":null,\"ScaleDown\":{\"StabilizationWindowSeconds\":5,\"SelectPolicy\":\"Max\",\
             \"Policies\":[{\"Type\":\"Percent\",\"Value\":100,\"PeriodSeconds\":15}],\"Tolerance\":null}}"
        );
        assert_eq!(
            annotations[CURRENT_METRICS],
            "[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"currentAverageUtilization\":40,\
             \"currentAverageValue\":\"40m\"}}]"
        );
        assert_eq!(
            annotations[CONDITIONS],
            "[{\"type\":\"AbleToScale\",\"status\":\"True\",\"lastTransitionTime\":null,\"reason\":\"R\"}]"
        );
        assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 70);
        assert_eq!(v1["status"]["currentCPUUtilizationPercentage"], 40);
        assert_eq!(from_v1(&v1), v2);
    }

    #[test]
    fn v1_without_metrics_gets_cpu_metric() {
        let v1 = json!({"metadata": {"name": "x"}, "spec": {"maxReplicas": 3}});
        let v2 = from_v1(&v1);
        assert_eq!(v2["spec"]["metrics"], json!([cpu_metric(80)]));
        assert_eq!(v2["status"], json!({"currentMetrics": null, "desiredReplicas": 0}));
    }
}
