//! Event: one stored form, two groups. `v1` and `events.k8s.io/v1` are the same objects under other field names.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, StoredAs};
use crate::validation::checks::{dns_subdomain, immutable, qualified_name};
use crate::value::{Fields, is_zero};
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;
use std::borrow::Cow;

pub static KIND: Kind = Kind {
    collects_dependents: false,
    // Events of this group accept nearly any name.
    metadata_last: true,
    validate: |event| legacy_rules(event, "reportingComponent"),
    validate_update: |new, _| legacy_rules(new, "reportingComponent"),
    create_on_update: true,
    ttl_seconds: Some(TTL_SECONDS),
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::event::EVENT,
    ..Kind::new("", "v1", "Event", "events", Scope::Namespaced)
};

pub static EVENTS_KIND: Kind = Kind {
    collects_dependents: false,
    validate: |event| validate_new(&to_core_v1(event.clone())),
    validate_update: |new, old| validate_change(&to_core_v1(new.clone()), &to_core_v1(old.clone())),
    create_on_update: true,
    ttl_seconds: Some(TTL_SECONDS),
    stored_as: Some(&StoredAs {
        kind: &KIND,
        to_stored: to_core_v1,
        from_stored: to_events_v1,
        rules_of_stored: false,
    }),
    selectable: Selectable::new(EVENTS_SELECTABLE, LabelError::Label),
    stored_field,
    table: &crate::tables::event::EVENT,
    ..Kind::new("events.k8s.io", "v1", "Event", "events", Scope::Namespaced)
};

/// Fields of events; values are read in the form of either group, whichever is stored.
const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, either, field, text};
    &[
        NAME,
        NAMESPACE,
        field("involvedObject.kind", |event| either(event, "/involvedObject/kind", "/regarding/kind")),
        field("involvedObject.namespace", |event| {
            either(event, "/involvedObject/namespace", "/regarding/namespace")
        }),
        field("involvedObject.name", |event| either(event, "/involvedObject/name", "/regarding/name")),
        field("involvedObject.uid", |event| either(event, "/involvedObject/uid", "/regarding/uid")),
        field("involvedObject.apiVersion", |event| {
            either(event, "/involvedObject/apiVersion", "/regarding/apiVersion")
        }),
        field("involvedObject.resourceVersion", |event| {
            either(event, "/involvedObject/resourceVersion", "/regarding/resourceVersion")
        }),
        field("involvedObject.fieldPath", |event| {
            either(event, "/involvedObject/fieldPath", "/regarding/fieldPath")
        }),
        field("reason", |event| text(event, "/reason")),
        field("reportingComponent", |event| either(event, "/reportingComponent", "/reportingController")),
        field("source", |event| match either(event, "/source/component", "/deprecatedSource/component") {
            source if source.is_empty() => either(event, "/reportingComponent", "/reportingController"),
            source => source,
        }),
        field("type", |event| text(event, "/type")),
    ]
};

const EVENTS_SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, either, field, text};
    &[
        NAME,
        NAMESPACE,
        field("regarding.kind", |event| either(event, "/regarding/kind", "/involvedObject/kind")),
        field("regarding.namespace", |event| {
            either(event, "/regarding/namespace", "/involvedObject/namespace")
        }),
        field("regarding.name", |event| either(event, "/regarding/name", "/involvedObject/name")),
        field("regarding.uid", |event| either(event, "/regarding/uid", "/involvedObject/uid")),
        field("regarding.apiVersion", |event| {
            either(event, "/regarding/apiVersion", "/involvedObject/apiVersion")
        }),
        field("regarding.resourceVersion", |event| {
            either(event, "/regarding/resourceVersion", "/involvedObject/resourceVersion")
        }),
        field("regarding.fieldPath", |event| {
            either(event, "/regarding/fieldPath", "/involvedObject/fieldPath")
        }),
        field("reason", |event| text(event, "/reason")),
        field("reportingController", |event| either(event, "/reportingController", "/reportingComponent")),
        field("type", |event| text(event, "/type")),
    ]
};

/// Name of a selectable field in the stored form: events have two names for most fields.
fn stored_field(label: &str) -> Cow<'_, str> {
    match label.strip_prefix("regarding.") {
        Some(field) => format!("involvedObject.{field}").into(),
        None if label == "reportingController" => "reportingComponent".into(),
        None => label.into(),
    }
}

/// Time to live of events: one hour.
const TTL_SECONDS: u64 = 3600;

/// Field names of the two groups: `v1`, `events.k8s.io/v1`.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Fields that each group writes even if empty.
const CORE_ALWAYS: &[&str] = &[
    "involvedObject",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "eventTime",
    "reportingComponent",
    "reportingInstance",
];
const EVENTS_ALWAYS: &[&str] =
    &["regarding", "deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime"];

/// Converts a `v1` event to `events.k8s.io/v1`.
pub fn to_events_v1(event: Value) -> Value {
    convert(event, "events.k8s.io/v1", |(core, events)| (core, events), EVENTS_ALWAYS)
}

/// Converts an `events.k8s.io/v1` event to `v1`.
pub fn to_core_v1(event: Value) -> Value {
    convert(event, "v1", |(core, events)| (events, core), CORE_ALWAYS)
}

fn convert(
    mut event: Value,
    api_version: &str,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
    always: &[&str],
) -> Value {
    event.set("apiVersion", api_version);
    for pair in RENAMED {
        let (from, to) = direction(*pair);
        if let Some(value) = event.unset(from) {
            event.set(to, value);
        }
    }
    for name in always {
        if !event.has(name) {
            event.set(name, empty(name));
        }
    }
    if let Some(map) = event.as_object_mut() {
        map.retain(|name, value| value.is_object() || !is_zero(value) || always.contains(&name.as_str()));
    }
    event
}

fn empty(field: &str) -> Value {
    match field {
        "involvedObject" | "regarding" | "source" | "deprecatedSource" => json!({}),
        "reportingComponent" | "reportingInstance" => json!(""),
        _ => Value::Null,
    }
}

const MAX_TEXT: usize = 128;
const MAX_NOTE: usize = 1024;

/// Rules of both groups, for an event in its `v1` form.
fn legacy_rules(event: &Value, controller_field: &str) -> ErrorList {
    let namespace = meta::namespace(event);
    let involved = event.field("involvedObject").text("namespace");
    let is_new = event.has("eventTime");
    let misplaced = match (is_new, involved) {
        (false, "") => !matches!(namespace, "" | "default"),
        (false, involved) => involved != namespace,
        (true, "") => !matches!(namespace, "default" | "kube-system"),
        (true, _) => false,
    };
    let mut errors = Vec::new();
    if misplaced {
        let path = Path::new("involvedObject");
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid_str(&path.child("namespace"), involved, detail));
    }
    if is_new {
        let controller = event.text("reportingComponent");
        let path = Path::new(controller_field);
        if controller.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        errors.extend(qualified_name(&path, controller));
        let limits = [
            ("reportingInstance", MAX_TEXT),
            ("action", MAX_TEXT),
            ("reason", MAX_TEXT),
            ("message", MAX_NOTE),
        ];
        for (field, limit) in limits {
            let path = Path::new(field);
            let text = event.text(field);
            if text.is_empty() && field != "message" {
                errors.push(FieldError::required(&path, ""));
            }
            if text.len() > limit {
                let detail = format!("can have at most {limit} characters");
                errors.push(FieldError::invalid_str(&path, "", detail));
            }
        }
    }
    errors.extend(dns_subdomain(&Path::new("namespace"), namespace));
    errors
}

/// Stricter rules of `events.k8s.io` for new events.
fn validate_new(event: &Value) -> ErrorList {
    let mut errors = legacy_rules(event, "reportingController");
    errors.extend(validate_series(event));
    if !event.has("eventTime") {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let kind = event.text("type");
    let reject = |field: &str, detail: String| FieldError::invalid_str(&Path::new(field), "", detail);
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(reject("type", format!("has invalid value: {kind}")));
    }
    let source = event.field("source");
    let unwanted = [
        (event.has("firstTimestamp"), "firstTimestamp"),
        (event.has("lastTimestamp"), "lastTimestamp"),
        (event.int("count") != 0, "count"),
        (!source.text("component").is_empty() || !source.text("host").is_empty(), "source"),
    ];
    let unwanted = unwanted.iter().filter(|(set, _)| *set);
    errors.extend(unwanted.map(|(_, field)| reject(field, "needs to be unset".to_owned())));
    errors
}

/// Only the series of an event of `events.k8s.io` may change.
fn validate_change(new: &Value, old: &Value) -> ErrorList {
    let mut errors = legacy_rules(new, "reportingController");
    if new.field("series") != old.field("series") {
        errors.extend(validate_series(new));
    }
    const FIELDS: &[&str] = &[
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "reason",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingController",
        "reportingInstance",
    ];
    for field in FIELDS {
        let stored = if *field == "reportingController" { "reportingComponent" } else { field };
        let (value, before) = (new.field(stored), old.field(stored));
        if is_zero(value) && is_zero(before) {
            continue;
        }
        let mut rejected = immutable(&Path::new(field), value, before);
        for error in &mut rejected {
            error.value = show(field, value).or(error.value.take());
        }
        errors.extend(rejected);
    }
    errors
}

/// Structs in messages have Go's field names, and all fields.
fn show(field: &str, value: &Value) -> Option<String> {
    const REFERENCE: &[(&str, &str)] = &[
        ("Kind", "kind"),
        ("Namespace", "namespace"),
        ("Name", "name"),
        ("UID", "uid"),
        ("APIVersion", "apiVersion"),
        ("ResourceVersion", "resourceVersion"),
        ("FieldPath", "fieldPath"),
    ];
    const SOURCE: &[(&str, &str)] = &[("Component", "component"), ("Host", "host")];
    let fields = match field {
        "involvedObject" => REFERENCE,
        "related" if !value.is_null() => REFERENCE,
        "source" => SOURCE,
        "reason" | "message" | "type" | "action" | "reportingController" | "reportingInstance" => {
            return Some(machinery::field::show_str(value.as_str().unwrap_or("")));
        }
        "count" => return Some(value.as_i64().unwrap_or(0).to_string()),
        _ => return None,
    };
    let shown: Vec<String> =
        fields.iter().map(|(name, key)| format!("{name:?}:{}", json!(value.text(key)))).collect();
    Some(format!("{{{}}}", shown.join(",")))
}

fn validate_series(event: &Value) -> ErrorList {
    let series = event.field("series");
    let mut errors = Vec::new();
    if series.is_null() {
        return errors;
    }
    if series.int("count") < 2 {
        errors.push(FieldError::invalid_str(&Path::new("series.count"), "", "should be at least 2"));
    }
    if !series.has("lastObservedTime") {
        errors.push(FieldError::required(&Path::new("series.lastObservedTime"), ""));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_converts_between_groups() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "count": 3, "eventTime": null,
            "firstTimestamp": "2020-01-01T00:00:00Z", "lastTimestamp": null, "message": "m", "reason": "R",
            "involvedObject": {"kind": "Pod"}, "source": {}, "reportingComponent": "", "reportingInstance": "",
        });
        let events = to_events_v1(core.clone());
        assert_eq!(
            events,
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
                "deprecatedCount": 3, "deprecatedFirstTimestamp": "2020-01-01T00:00:00Z",
                "deprecatedLastTimestamp": null, "deprecatedSource": {}, "eventTime": null, "note": "m",
                "reason": "R", "regarding": {"kind": "Pod"},
            })
        );
        assert_eq!(to_core_v1(events), core);
    }

    #[test]
    fn event_rules_depend_on_group() {
        let old = json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "n"}});
        assert!(legacy_rules(&old, "reportingComponent").is_empty());
        let elsewhere = json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "m"}});
        assert_eq!(legacy_rules(&elsewhere, "reportingComponent").len(), 1);
        let new = json!({
            "metadata": {"namespace": "n"}, "eventTime": "2020-01-02T03:04:05.000006Z", "type": "Normal",
            "regarding": {"namespace": "n"}, "reportingController": "a.b/c", "reportingInstance": "i",
            "action": "A", "reason": "R", "note": "x",
        });
        assert!((EVENTS_KIND.validate)(&new).is_empty());
        let mut changed = new.clone();
        changed["note"] = "y".into();
        let got: Vec<String> =
            (EVENTS_KIND.validate_update)(&changed, &new).iter().map(ToString::to_string).collect();
        assert_eq!(got, [r#"message: Invalid value: "y": field is immutable"#]);
    }
}
