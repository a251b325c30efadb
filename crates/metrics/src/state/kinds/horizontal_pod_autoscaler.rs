//! HorizontalPodAutoscalers.

use super::*;
use crate::state::family::{CREATED, DELETED, GENERATION, Kind, Source, alpha, stable};
use crate::state::object::{amount, at, list, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "horizontalpodautoscalers",
    kind: "HorizontalPodAutoscaler",
    path: "/apis/autoscaling/v2",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("horizontalpodautoscaler", NAME)],
    families: &[
        alpha("kube_horizontalpodautoscaler_info", "The scaled object.", Source::Each(info)),
        stable("kube_horizontalpodautoscaler_metadata_generation", GENERATION_HELP, GENERATION),
        stable(
            "kube_horizontalpodautoscaler_spec_max_replicas",
            "Largest number of pods that the autoscaler sets.",
            Source::Number("spec.maxReplicas"),
        ),
        stable(
            "kube_horizontalpodautoscaler_spec_min_replicas",
            "Smallest number of pods that the autoscaler sets.",
            Source::Given("spec.minReplicas"),
        ),
        alpha(
            "kube_horizontalpodautoscaler_spec_target_metric",
            "Targets of the metrics that determine the number of pods.",
            Source::Each(targets),
        ),
        stable(
            "kube_horizontalpodautoscaler_status_target_metric",
            "Present values of the metrics that determine the number of pods.",
            Source::Each(present),
        ),
        stable(
            "kube_horizontalpodautoscaler_status_current_replicas",
            "Present number of pods.",
            Source::Number("status.currentReplicas"),
        ),
        stable(
            "kube_horizontalpodautoscaler_status_desired_replicas",
            "Desired number of pods.",
            Source::Number("status.desiredReplicas"),
        ),
        alpha("kube_horizontalpodautoscaler_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_horizontalpodautoscaler_labels", LABELS_HELP, Source::Labels),
        stable(
            "kube_horizontalpodautoscaler_status_condition",
            "Conditions of the autoscaler.",
            Source::Conditions,
        ),
        alpha("kube_horizontalpodautoscaler_created", CREATED_HELP, CREATED),
        alpha("kube_horizontalpodautoscaler_deletion_timestamp", DELETED_HELP, DELETED),
    ],
};

fn info(autoscaler: &Value, series: &mut Series<'_>) {
    let labels = [
        ("scaletargetref_api_version", text(autoscaler, "spec.scaleTargetRef.apiVersion")),
        ("scaletargetref_kind", text(autoscaler, "spec.scaleTargetRef.kind")),
        ("scaletargetref_name", text(autoscaler, "spec.scaleTargetRef.name")),
    ];
    series.add(if labels[0].1.is_empty() { &labels[1..] } else { &labels }, 1.0);
}

fn targets(autoscaler: &Value, series: &mut Series<'_>) {
    metrics(autoscaler, "spec.metrics", "target", series);
}

fn present(autoscaler: &Value, series: &mut Series<'_>) {
    metrics(autoscaler, "status.currentMetrics", "current", series);
}

/// Field, and path of the name, by type of metric.
const SOURCES: [(&str, &str, &str); 5] = [
    ("Object", "object", "metric.name"),
    ("Pods", "pods", "metric.name"),
    ("Resource", "resource", "name"),
    ("ContainerResource", "containerResource", "name"),
    ("External", "external", "metric.name"),
];

fn metrics(autoscaler: &Value, path: &str, value: &str, series: &mut Series<'_>) {
    for metric in list(autoscaler, path) {
        let kind = text(metric, "type");
        let source = SOURCES.iter().find(|(name, ..)| *name == kind);
        let Some((source, name)) = source.and_then(|(_, field, name)| Some((at(metric, field)?, name)))
        else {
            continue;
        };
        let Some(values) = at(source, value) else { continue };
        let mut add = |label: &str, value: Option<f64>| {
            if let Some(value) = value {
                let labels = [
                    ("metric_name", text(source, name)),
                    ("metric_target_type", label),
                    ("container", text(source, "container")),
                ];
                series.add(&labels, value);
            }
        };
        add("value", at(values, "value").and_then(amount));
        add("average", at(values, "averageValue").and_then(amount));
        add("utilization", at(values, "averageUtilization").and_then(Value::as_f64));
    }
}
