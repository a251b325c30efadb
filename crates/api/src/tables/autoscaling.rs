//! Horizontal pod autoscalers (in the form of v2 or v1) and the scale subresource.

use super::cell::{NONE, UNKNOWN, UNSET, age, get, int, list, name, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::{Value, meta};
use serde_json::json;

pub(crate) static SCALE: Table = plain(
    &[
        column("Name", "string", doc::OBJECT_META_NAME),
        column("Desired", "integer", doc::SCALE_SPEC_REPLICAS),
        column("Available", "integer", doc::SCALE_STATUS_REPLICAS),
        AGE,
    ],
    |scale, context| {
        vec![
            name(scale),
            int(scale, &["spec", "replicas"]).into(),
            int(scale, &["status", "replicas"]).into(),
            age(scale, context),
        ]
    },
);

pub(crate) static HORIZONTAL_POD_AUTOSCALER: Table = plain(
    &[
        NAME,
        column("Reference", "string", doc::HORIZONTAL_POD_AUTOSCALER_SPEC_SCALE_TARGET_REF),
        column("Targets", "string", doc::HORIZONTAL_POD_AUTOSCALER_SPEC_METRICS),
        column("MinPods", "string", doc::HORIZONTAL_POD_AUTOSCALER_SPEC_MIN_REPLICAS),
        column("MaxPods", "string", doc::HORIZONTAL_POD_AUTOSCALER_SPEC_MAX_REPLICAS),
        column("Replicas", "string", doc::HORIZONTAL_POD_AUTOSCALER_STATUS_CURRENT_REPLICAS),
        AGE,
    ],
    |object, context| {
        let target = get(object, &["spec", "scaleTargetRef"]).unwrap_or(&Value::Null);
        let min = get(object, &["spec", "minReplicas"]).map_or(UNSET.to_owned(), Value::to_string);
        vec![
            name(object),
            format!("{}/{}", text(target, &["kind"]), text(target, &["name"])).into(),
            metrics(object).into(),
            min.into(),
            int(object, &["spec", "maxReplicas"]).into(),
            int(object, &["status", "currentReplicas"]).into(),
            age(object, context),
        ]
    },
);

/// Maximum number of metrics in a cell.
const SHOWN: usize = 2;

fn metrics(object: &Value) -> String {
    let v1 = v1_metrics(object);
    let (specs, statuses) = match &v1 {
        Some((specs, statuses)) => (specs.as_slice(), statuses.as_slice()),
        None => (list(object, &["spec", "metrics"]), list(object, &["status", "currentMetrics"])),
    };
    if specs.is_empty() {
        return NONE.to_owned();
    }
    let shown: Vec<String> =
        specs.iter().take(SHOWN).enumerate().map(|(index, spec)| metric(spec, statuses.get(index))).collect();
    let shown = shown.join(", ");
    match specs.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} + {more} more..."),
        _ => shown,
    }
}

/// Metrics of a v1 object: CPU has a field of its own, the others are in annotations.
fn v1_metrics(object: &Value) -> Option<(Vec<Value>, Vec<Value>)> {
    if text(object, &["apiVersion"]) != "autoscaling/v1" {
        return None;
    }
    let annotated = |key| -> Vec<Value> {
        let text = meta::annotation(object, key).unwrap_or("[]");
        serde_json::from_str(text).unwrap_or_default()
    };
    let mut specs: Vec<Value> = annotated("autoscaling.alpha.kubernetes.io/metrics")
        .iter()
        .map(|metric| v1_metric(metric, true))
        .collect();
    let mut statuses: Vec<Value> = annotated("autoscaling.alpha.kubernetes.io/current-metrics")
        .iter()
        .map(|metric| v1_metric(metric, false))
        .collect();
    if let Some(target) = get(object, &["spec", "targetCPUUtilizationPercentage"]) {
        let target = json!({"averageUtilization": target});
        specs.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    if let Some(current) = get(object, &["status", "currentCPUUtilizationPercentage"]) {
        let current = json!({"averageUtilization": current});
        statuses.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": current}}));
    }
    Some((specs, statuses))
}

/// A metric of the older form, where targets and current values are fields of the source itself.
fn v1_metric(metric: &Value, spec: bool) -> Value {
    let kind = text(metric, &["type"]);
    let field = source_field(kind);
    let source = get(metric, &[field]).unwrap_or(&Value::Null);
    let prefix = if spec { "target" } else { "current" };
    let mut values = serde_json::Map::new();
    for (old, new) in
        [("Value", "value"), ("AverageValue", "averageValue"), ("AverageUtilization", "averageUtilization")]
    {
        // The average of object metrics has no prefix in its name.
        let value = get(source, &[&format!("{prefix}{old}")]).or_else(|| get(source, &[new]));
        if let Some(value) = value {
            values.insert(new.to_owned(), value.clone());
        }
    }
    json!({"type": kind, field: {"name": get(source, &["name"]), prefix: values}})
}

fn source_field(kind: &str) -> &'static str {
    match kind {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => "",
    }
}

/// `current/target` of one metric.
fn metric(spec: &Value, status: Option<&Value>) -> String {
    let kind = text(spec, &["type"]);
    let field = source_field(kind);
    let source = get(spec, &[field]).unwrap_or(&Value::Null);
    let current = status.and_then(|status| get(status, &[field, "current"]));
    let target = |name| get(source, &["target", name]).and_then(Value::as_str);
    // A status without the value for the spec's target is shown as Go shows a missing value.
    let known = |name| match current {
        None => UNKNOWN,
        Some(current) => get(current, &[name]).and_then(Value::as_str).unwrap_or("<nil>"),
    };
    match kind {
        "External" | "Object" => match target("averageValue") {
            Some(target) => {
                let current = current.and_then(|current| get(current, &["averageValue"])?.as_str());
                format!("{}/{target} (avg)", current.unwrap_or(UNKNOWN))
            }
            None => format!("{}/{}", known("value"), target("value").unwrap_or("<nil>")),
        },
        "Pods" => format!("{}/{}", known("averageValue"), target("averageValue").unwrap_or("<nil>")),
        "Resource" | "ContainerResource" => {
            let resource = text(source, &["name"]);
            if let Some(target) = target("averageValue") {
                return format!("{resource}: {}/{target}", known("averageValue"));
            }
            let percent = |value: Option<&Value>| Some(format!("{}%", value?.as_i64()?));
            let current = current.and_then(|current| percent(get(current, &["averageUtilization"])));
            let target = percent(get(source, &["target", "averageUtilization"]));
            format!(
                "{resource}: {}/{}",
                current.as_deref().unwrap_or(UNKNOWN),
                target.as_deref().unwrap_or("<auto>")
            )
        }
        _ => "<unknown type>".to_owned(),
    }
}
