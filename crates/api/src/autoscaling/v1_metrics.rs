//! Conversion of metrics between the stored form and the annotations of autoscaling/v1.

use super::ordered::{ObjectText, list};
use crate::value::Fields;
use machinery::{Map, Value};
use serde_json::json;

/// A `spec.metrics` item in its annotation form.
pub fn spec_text(metric: &Value) -> String {
    let source = |name: &str| metric.has(name).then(|| source_text(name, metric.field(name)));
    typed(metric, source)
}

/// A `status.currentMetrics` item in its annotation form.
pub fn status_text(metric: &Value) -> String {
    let source = |name: &str| metric.has(name).then(|| status_source_text(name, metric.field(name)));
    typed(metric, source)
}

/// A condition in its annotation form.
pub fn condition_text(condition: &Value) -> String {
    let omit_empty = |name: &str| {
        let text = condition.text(name);
        (!text.is_empty()).then(|| Value::from(text).to_string())
    };
    ObjectText::new()
        .text("type", condition.text("type"))
        .text("status", condition.text("status"))
        .value("lastTransitionTime", condition.field("lastTransitionTime"))
        .optional_raw("reason", omit_empty("reason"))
        .optional_raw("message", omit_empty("message"))
        .end()
}

fn typed(metric: &Value, source: impl Fn(&str) -> Option<String>) -> String {
    let mut text = ObjectText::new().text("type", metric.text("type"));
    for name in ["object", "pods", "resource", "containerResource", "external"] {
        text = text.optional_raw(name, source(name));
    }
    text.end()
}

fn source_text(name: &str, source: &Value) -> String {
    let (target, metric) = (source.field("target"), source.field("metric"));
    match name {
        "object" => ObjectText::new()
            .raw("target", &reference_text(source.field("describedObject")))
            .text("metricName", metric.text("name"))
            .text("targetValue", target.opt_text("value").unwrap_or("0"))
            .optional_raw("selector", selector_text(metric.field("selector")))
            .optional("averageValue", target.field("averageValue"))
            .end(),
        "pods" => ObjectText::new()
            .text("metricName", metric.text("name"))
            .text("targetAverageValue", target.opt_text("averageValue").unwrap_or("0"))
            .optional_raw("selector", selector_text(metric.field("selector")))
            .end(),
        "external" => ObjectText::new()
            .text("metricName", metric.text("name"))
            .optional_raw("metricSelector", selector_text(metric.field("selector")))
            .optional("targetValue", target.field("value"))
            .optional("targetAverageValue", target.field("averageValue"))
            .end(),
        _ => {
            let text = ObjectText::new()
                .text("name", source.text("name"))
                .optional("targetAverageUtilization", target.field("averageUtilization"))
                .optional("targetAverageValue", target.field("averageValue"));
            with_container(text, name, source).end()
        }
    }
}

fn status_source_text(name: &str, source: &Value) -> String {
    let (current, metric) = (source.field("current"), source.field("metric"));
    match name {
        "object" => ObjectText::new()
            .raw("target", &reference_text(source.field("describedObject")))
            .text("metricName", metric.text("name"))
            .text("currentValue", current.opt_text("value").unwrap_or("0"))
            .optional_raw("selector", selector_text(metric.field("selector")))
            .optional("averageValue", current.field("averageValue"))
            .end(),
        "pods" => ObjectText::new()
            .text("metricName", metric.text("name"))
            .text("currentAverageValue", current.opt_text("averageValue").unwrap_or("0"))
            .optional_raw("selector", selector_text(metric.field("selector")))
            .end(),
        "external" => ObjectText::new()
            .text("metricName", metric.text("name"))
            .optional_raw("metricSelector", selector_text(metric.field("selector")))
            .text("currentValue", current.opt_text("value").unwrap_or("0"))
            .optional("currentAverageValue", current.field("averageValue"))
            .end(),
        _ => {
            let text = ObjectText::new()
                .text("name", source.text("name"))
                .optional("currentAverageUtilization", current.field("averageUtilization"))
                .text("currentAverageValue", current.opt_text("averageValue").unwrap_or("0"));
            with_container(text, name, source).end()
        }
    }
}

fn with_container(text: ObjectText, name: &str, source: &Value) -> ObjectText {
    if name == "containerResource" { text.text("container", source.text("container")) } else { text }
}

fn reference_text(reference: &Value) -> String {
    ObjectText::new()
        .text("kind", reference.text("kind"))
        .text("name", reference.text("name"))
        .optional("apiVersion", reference.field("apiVersion"))
        .end()
}

fn selector_text(selector: &Value) -> Option<String> {
    if selector.is_null() {
        return None;
    }
    let expressions = selector.items("matchExpressions");
    let expressions = (!expressions.is_empty()).then(|| {
        list(expressions.iter().map(|expression| {
            ObjectText::new()
                .text("key", expression.text("key"))
                .text("operator", expression.text("operator"))
                .optional("values", expression.field("values"))
                .end()
        }))
    });
    let text = ObjectText::new().optional("matchLabels", selector.field("matchLabels"));
    Some(text.optional_raw("matchExpressions", expressions).end())
}

/// A `spec.metrics` item from its annotation form.
pub fn spec_from(metric: &Value) -> Value {
    from_typed(metric, |name, source| {
        let mut target = Map::new();
        let mut put = |key: &str, value: &Value| {
            if !value.is_null() {
                target.insert(key.to_owned(), value.clone());
            }
        };
        match name {
            "object" => {
                let average = source.field("averageValue");
                let value = source.opt_text("targetValue").unwrap_or("0");
                if average.is_null() || value != "0" {
                    put("value", &Value::from(value));
                }
                put("averageValue", average);
                put("type", &Value::from(if average.is_null() { "Value" } else { "AverageValue" }));
                json!({"describedObject": source.field("target"), "metric": identifier(source, "selector"),
                    "target": target})
            }
            "pods" => {
                put("type", &Value::from("AverageValue"));
                put("averageValue", &Value::from(source.opt_text("targetAverageValue").unwrap_or("0")));
                json!({"metric": identifier(source, "selector"), "target": target})
            }
            "external" => {
                let kind = if source.has("targetValue") { "Value" } else { "AverageValue" };
                put("type", &Value::from(kind));
                put("value", source.field("targetValue"));
                put("averageValue", source.field("targetAverageValue"));
                json!({"metric": identifier(source, "metricSelector"), "target": target})
            }
            _ => {
                let kind =
                    if source.has("targetAverageUtilization") { "Utilization" } else { "AverageValue" };
                put("type", &Value::from(kind));
                put("averageValue", source.field("targetAverageValue"));
                put("averageUtilization", source.field("targetAverageUtilization"));
                named(name, source, "target", Value::Object(target))
            }
        }
    })
}

/// A `status.currentMetrics` item from its annotation form.
pub fn status_from(metric: &Value) -> Value {
    from_typed(metric, |name, source| {
        let quantity = |field: &str| Value::from(source.opt_text(field).unwrap_or("0"));
        let mut current = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                current.insert(key.to_owned(), value);
            }
        };
        match name {
            "object" => {
                put("value", quantity("currentValue"));
                put("averageValue", source.field("averageValue").clone());
                json!({"describedObject": source.field("target"), "metric": identifier(source, "selector"),
                    "current": current})
            }
            "pods" => {
                put("averageValue", quantity("currentAverageValue"));
                json!({"metric": identifier(source, "selector"), "current": current})
            }
            "external" => {
                put("value", quantity("currentValue"));
                put("averageValue", source.field("currentAverageValue").clone());
                json!({"metric": identifier(source, "metricSelector"), "current": current})
            }
            _ => {
                put("averageValue", quantity("currentAverageValue"));
                put("averageUtilization", source.field("currentAverageUtilization").clone());
                named(name, source, "current", Value::Object(current))
            }
        }
    })
}

fn from_typed(metric: &Value, convert: impl Fn(&str, &Value) -> Value) -> Value {
    let mut out = json!({"type": metric.text("type")});
    for name in ["object", "pods", "resource", "containerResource", "external"] {
        if metric.field(name).is_object() {
            out.set(name, convert(name, metric.field(name)));
        }
    }
    out
}

fn identifier(source: &Value, selector: &str) -> Value {
    let mut identifier = json!({"name": source.text("metricName")});
    if source.field(selector).is_object() {
        identifier.set("selector", source.field(selector).clone());
    }
    identifier
}

fn named(name: &str, source: &Value, numbers: &str, values: Value) -> Value {
    let mut out = json!({"name": source.text("name")});
    out.set(numbers, values);
    if name == "containerResource" {
        out.set("container", source.text("container"));
    }
    out
}
