//! Validation of HorizontalPodAutoscalers in their stored form.

use crate::pod_spec::checks::{NEGATIVE, dns_label, invalid_texts, one_of};
use crate::pod_spec::resources::{quantity, validate_container_resource_name};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, gvk, names};

const SOURCES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const MAX_WINDOW_SECONDS: i64 = 3600;
const MAX_PERIOD_SECONDS: i64 = 1800;

/// Validates `spec`; errors of `old`, the stored object, are tolerated.
pub fn validate_spec(autoscaler: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = autoscaler.field("spec");
    let path = Path::new("spec");
    let old_spec = old.map_or(&Value::Null, |old| old.field("spec"));
    let least = if old_spec.opt_int("minReplicas") == Some(0) { 0 } else { 1 };
    let (min, max) = (spec.opt_int("minReplicas"), spec.int("maxReplicas"));
    if let Some(min) = min.filter(|min| *min < least) {
        let detail = format!("must be greater than or equal to {least}");
        errors.push(FieldError::invalid(&path.child("minReplicas"), &Value::from(min), detail));
    }
    let max_path = path.child("maxReplicas");
    if max == 0 {
        errors.push(FieldError::required(&max_path, "must be set and greater than 0"));
    } else if max < 0 {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(&max_path, &Value::from(max), detail));
    }
    if min.is_some_and(|min| max < min) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&max_path, &Value::from(max), detail));
    }
    let target = spec.field("scaleTargetRef");
    let old_target = old_spec.field("scaleTargetRef");
    let same_target =
        old.is_some() && ["apiVersion", "kind"].iter().all(|name| target.text(name) == old_target.text(name));
    let api_version = if same_target {
        ApiVersion::Any
    } else if target.text("kind") == "ReplicationController" {
        ApiVersion::Valid
    } else {
        ApiVersion::WithGroup
    };
    validate_reference(target, api_version, &path.child("scaleTargetRef"), &mut errors);
    validate_metrics(spec, old_spec, &path.child("metrics"), &mut errors);
    let behavior_path = path.child("behavior");
    for name in ["scaleUp", "scaleDown"] {
        let rules = spec.field("behavior").field(name);
        if !rules.is_null() {
            validate_rules(rules, &behavior_path.child(name), &mut errors);
        }
    }
    errors
}

/// Required form of an `apiVersion`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiVersion {
    Any,
    Valid,
    WithGroup,
}

fn validate_reference(reference: &Value, version: ApiVersion, path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["kind", "name"] {
        let text = reference.text(name);
        if text.is_empty() {
            errors.push(FieldError::required(&path.child(name), ""));
        } else {
            invalid_texts(names::path_segment_name(text, false), text, &path.child(name), errors);
        }
    }
    let text = reference.text("apiVersion");
    let problem = match version {
        ApiVersion::Any => None,
        _ if text.matches('/').count() > 1 => Some(format!("unexpected GroupVersion string: {text}")),
        ApiVersion::WithGroup if gvk::split_api_version(text).0.is_empty() => {
            Some("apiVersion must specify API group".to_owned())
        }
        _ => None,
    };
    if let Some(problem) = problem {
        errors.push(FieldError::invalid_str(&path.child("apiVersion"), text, problem));
    }
}

fn validate_metrics(spec: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let bad_version = |metric: &Value| {
        let version = metric.at("object.describedObject").text("apiVersion");
        metric.text("type") == "Object" && metric.has("object") && version.matches('/').count() > 1
    };
    let version =
        if old.items("metrics").iter().any(bad_version) { ApiVersion::Any } else { ApiVersion::Valid };
    let metrics = spec.items("metrics");
    for (index, metric) in metrics.iter().enumerate() {
        validate_metric(metric, version, &path.index(index), errors);
    }
    let outside = |metric: &Value| matches!(metric.text("type"), "Object" | "External");
    if spec.opt_int("minReplicas") == Some(0) && !metrics.iter().any(outside) {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(path, detail));
    }
}

fn validate_metric(metric: &Value, version: ApiVersion, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = metric.text("type");
    let type_path = path.child("type");
    if kind.is_empty() {
        errors.push(FieldError::required(&type_path, "must specify a metric source type"));
    }
    one_of(kind, &SOURCES, &type_path, errors);
    let fields = ["object", "external", "pods", "resource", "containerResource"];
    let present: Vec<&str> = fields.into_iter().filter(|name| metric.has(name)).collect();
    if let Some(name) = present.first() {
        validate_source(name, metric.field(name), version, &path.child(name), errors);
    }
    let expected = match kind {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "External" => "external",
        "ContainerResource" => "containerResource",
        _ => {
            one_of(kind, &SOURCES, &type_path, errors);
            ""
        }
    };
    if !expected.is_empty() && !metric.has(expected) {
        let detail = "must populate information for the given metric source";
        errors.push(FieldError::required(&path.child(expected), detail));
    }
    if present.len() != 1 {
        for name in present.into_iter().filter(|name| *name != expected) {
            let detail = "must populate the given metric source only";
            errors.push(FieldError::forbidden(&path.child(name), detail));
        }
    }
}

fn validate_source(name: &str, source: &Value, version: ApiVersion, path: &Path<'_>, errors: &mut ErrorList) {
    let target = source.field("target");
    let target_path = path.child("target");
    let average = target_path.child("averageValue");
    let (value, average_value) = (target.has("value"), target.has("averageValue"));
    match name {
        "object" => {
            validate_reference(
                source.field("describedObject"),
                version,
                &path.child("describedObject"),
                errors,
            );
            validate_identifier(source, path, errors);
            validate_target(target, &target_path, errors);
            if !value && !average_value {
                errors.push(FieldError::required(&average, "must set either a target value or averageValue"));
            }
        }
        "external" => {
            validate_identifier(source, path, errors);
            validate_target(target, &target_path, errors);
            if !value && !average_value {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.push(FieldError::required(&average, detail));
            }
            if value && average_value {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.push(FieldError::forbidden(&target_path.child("value"), detail));
            }
        }
        "pods" => {
            validate_identifier(source, path, errors);
            validate_target(target, &target_path, errors);
            if !average_value {
                let detail = "must specify a positive target averageValue";
                errors.push(FieldError::required(&average, detail));
            }
        }
        _ => validate_resource(name, source, path, errors),
    }
}

fn validate_resource(name: &str, source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let resource = source.text("name");
    if resource.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "must specify a resource name"));
    }
    if name == "containerResource" {
        if !resource.is_empty() {
            validate_container_resource_name(resource, &path.child("name"), errors);
        }
        let container = source.text("container");
        if container.is_empty() {
            errors.push(FieldError::required(&path.child("container"), "must specify a container"));
        } else {
            dns_label(container, &path.child("container"), errors);
        }
    }
    let target = source.field("target");
    let path = path.child("target");
    validate_target(target, &path, errors);
    match (target.has("averageUtilization"), target.has("averageValue")) {
        (false, false) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.push(FieldError::required(&path.child("averageUtilization"), detail));
        }
        (true, true) => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.push(FieldError::forbidden(&path.child("averageValue"), detail));
        }
        _ => {}
    }
}

fn validate_target(target: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = target.text("type");
    let type_path = path.child("type");
    if kind.is_empty() {
        errors.push(FieldError::required(&type_path, "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid_named(&type_path, kind, detail));
    }
    for name in ["value", "averageValue"] {
        let value = target.field(name);
        if !value.is_null() && quantity(value).sign() != 1 {
            errors.push(FieldError::invalid(&path.child(name), value, "must be positive"));
        }
    }
    if let Some(percent) = target.opt_int("averageUtilization").filter(|percent| *percent < 1) {
        let path = path.child("averageUtilization");
        errors.push(FieldError::invalid(&path, &Value::from(percent), "must be greater than 0"));
    }
}

fn validate_identifier(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let name = source.field("metric").text("name");
    let path = path.child("metric");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "must specify a metric name"));
    } else {
        invalid_texts(names::path_segment_name(name, false), name, &path.child("name"), errors);
    }
}

fn validate_rules(rules: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(window) = rules.opt_int("stabilizationWindowSeconds") {
        let path = path.child("stabilizationWindowSeconds");
        if window < 0 {
            let detail = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(&path, &Value::from(window), detail));
        }
        if window > MAX_WINDOW_SECONDS {
            let detail = format!("must be less than or equal to {MAX_WINDOW_SECONDS}");
            errors.push(FieldError::invalid(&path, &Value::from(window), detail));
        }
    }
    if let Some(policy) = rules.opt_text("selectPolicy") {
        one_of(policy, &["Disabled", "Max", "Min"], &path.child("selectPolicy"), errors);
    }
    let policies = rules.items("policies");
    let policies_path = path.child("policies");
    if policies.is_empty() {
        errors.push(FieldError::required(&policies_path, "must specify at least one Policy"));
    }
    for (index, policy) in policies.iter().enumerate() {
        let path = policies_path.index(index);
        one_of(policy.text("type"), &["Percent", "Pods"], &path.child("type"), errors);
        let (value, period) = (policy.int("value"), policy.int("periodSeconds"));
        if value <= 0 {
            let path = path.child("value");
            errors.push(FieldError::invalid(&path, &Value::from(value), "must be greater than zero"));
        }
        let path = path.child("periodSeconds");
        if period <= 0 {
            errors.push(FieldError::invalid(&path, &Value::from(period), "must be greater than zero"));
        }
        if period > MAX_PERIOD_SECONDS {
            let detail = format!("must be less than or equal to {MAX_PERIOD_SECONDS}");
            errors.push(FieldError::invalid(&path, &Value::from(period), detail));
        }
    }
    let tolerance = rules.field("tolerance");
    if !tolerance.is_null() && quantity(tolerance).sign() < 0 {
        let shown = quantity(tolerance).to_string();
        errors.push(FieldError::invalid_str(&path.child("tolerance"), &shown, NEGATIVE));
    }
}
