//! Event: one stored form, two faces. `v1` and `events.k8s.io/v1` are the same objects under other field names.

use crate::value::{Fields, is_zero};
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    collects_dependents: false,
    create_on_update: true,
    ttl_seconds: Some(TTL_SECONDS),
    ..Kind::new("", "v1", "Event", "events", Scope::Namespaced)
};

pub static EVENTS_KIND: Kind = Kind {
    collects_dependents: false,
    create_on_update: true,
    ttl_seconds: Some(TTL_SECONDS),
    ..Kind::new("events.k8s.io", "v1", "Event", "events", Scope::Namespaced)
};

/// Events are kept for an hour.
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

/// What each group writes although it is empty.
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

/// A `v1` event as `events.k8s.io/v1` shows it.
pub fn to_events_v1(event: Value) -> Value {
    convert(event, "events.k8s.io/v1", |(core, events)| (core, events), EVENTS_ALWAYS)
}

/// An `events.k8s.io/v1` event as `v1` shows it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_faces_of_an_event() {
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
}
