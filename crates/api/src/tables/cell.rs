//! Building blocks of cells: fields of the object, ages, label selectors as text.

use crate::kind::CellContext;
use machinery::{Value, meta};
use serde_json::Map;

pub(super) const NONE: &str = "<none>";
pub(super) const UNSET: &str = "<unset>";
pub(super) const UNKNOWN: &str = "<unknown>";

/// The value at a path of field names.
pub(super) fn get<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field)).filter(|value| !value.is_null())
}

/// The string at a path; empty when absent.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    get(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The number at a path; zero when absent.
pub(super) fn int(value: &Value, path: &[&str]) -> i64 {
    get(value, path).and_then(Value::as_i64).unwrap_or(0)
}

/// The flag at a path; false when absent.
pub(super) fn flag(value: &Value, path: &[&str]) -> bool {
    get(value, path).and_then(Value::as_bool).unwrap_or(false)
}

/// The list at a path; empty when absent.
pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    get(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Number of entries of the list or map at a path.
pub(super) fn count(value: &Value, path: &[&str]) -> i64 {
    let entries = match get(value, path) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(fields)) => fields.len(),
        _ => 0,
    };
    i64::try_from(entries).unwrap_or(i64::MAX)
}

/// `text`, or a replacement if it is empty.
pub(super) fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

/// A quantity at a path as text. Stored quantities are in canonical form already.
pub(super) fn quantity<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    or(text(value, path), "0")
}

/// An integer or a string, as text.
pub(super) fn int_or_string(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The strings of a list, joined.
pub(super) fn joined(items: &[Value], separator: &str) -> String {
    let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
    items.join(separator)
}

/// The condition of this type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, &["status", "conditions"]).iter().find(|condition| text(condition, &["type"]) == kind)
}

/// The object's name, as a cell.
pub(super) fn name(object: &Value) -> Value {
    meta::name(object).into()
}

/// Age of the object, as a cell.
pub(super) fn age(object: &Value, context: CellContext) -> Value {
    since(meta::text(object, "creationTimestamp"), context).into()
}

/// Creation time of the object, as a cell.
pub(super) fn created_at(object: &Value) -> Value {
    or(meta::text(object, "creationTimestamp"), "0001-01-01T00:00:00Z").into()
}

/// Time since a timestamp, as text.
pub(super) fn since(timestamp: &str, context: CellContext) -> String {
    match seconds(timestamp) {
        Some(moment) => human_duration(context.now.saturating_sub(moment)),
        None => UNKNOWN.to_owned(),
    }
}

/// A timestamp as seconds since the epoch; `None` if malformed or Go's zero time.
pub(super) fn seconds(timestamp: &str) -> Option<i64> {
    const ZERO_TIME: i64 = -62_135_596_800;
    let moment = timestamp.parse::<jiff::Timestamp>().ok()?.as_second();
    (moment != ZERO_TIME).then_some(moment)
}

/// A duration in two or three significant figures, in the form of `kubectl get`.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (seconds, minutes, hours) {
        // Tolerates clock skew of a second.
        (..-1, ..) => "<invalid>".to_owned(),
        (..0, ..) => "0s".to_owned(),
        (..120, ..) => format!("{seconds}s"),
        (_, ..10, _) => two_units(minutes, "m", seconds % 60, "s"),
        (_, ..180, _) => format!("{minutes}m"),
        (_, _, ..8) => two_units(hours, "h", minutes % 60, "m"),
        (_, _, ..48) => format!("{hours}h"),
        (_, _, ..192) => two_units(days, "d", hours % 24, "h"),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two_units(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn two_units(first: i64, first_unit: &str, second: i64, second_unit: &str) -> String {
    if second == 0 {
        format!("{first}{first_unit}")
    } else {
        format!("{first}{first_unit}{second}{second_unit}")
    }
}

/// A map of labels as `a=b,c=d`.
pub(super) fn labels_text(labels: Option<&Value>) -> String {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

/// A label selector object in the string form of selectors, requirements ordered by key; empty if it selects nothing
/// or everything. `None` if it is invalid.
pub fn label_selector_text(selector: Option<&Value>) -> Option<String> {
    let Some(selector) = selector else { return Some(String::new()) };
    let mut requirements: Vec<(&str, String)> = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        for (key, value) in labels {
            requirements.push((key, format!("{key}={}", value.as_str()?)));
        }
    }
    for expression in list(selector, &["matchExpressions"]) {
        let key = text(expression, &["key"]);
        let mut values: Vec<&str> = list(expression, &["values"]).iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let requirement = match (text(expression, &["operator"]), values.is_empty()) {
            ("In", false) => format!("{key} in ({})", values.join(",")),
            ("NotIn", false) => format!("{key} notin ({})", values.join(",")),
            ("Exists", true) => key.to_owned(),
            ("DoesNotExist", true) => format!("!{key}"),
            _ => return None,
        };
        requirements.push((key, requirement));
    }
    requirements.sort_by_key(|(key, _)| *key);
    let requirements: Vec<String> = requirements.into_iter().map(|(_, text)| text).collect();
    Some(requirements.join(","))
}

/// A label selector object as a cell of its own.
pub(super) fn label_selector_cell(selector: Option<&Value>) -> Value {
    match label_selector_text(selector) {
        None => "<error>".into(),
        Some(text) if text.is_empty() => NONE.into(),
        Some(text) => text.into(),
    }
}

/// Names and images of the containers at a path: two cells.
pub(super) fn container_cells(object: &Value, path: &[&str]) -> [Value; 2] {
    let containers = list(object, path);
    ["name", "image"].map(|field| {
        let texts: Vec<&str> = containers.iter().map(|container| text(container, &[field])).collect();
        texts.join(",").into()
    })
}

/// The first items of a list, and the number of the others.
pub(super) fn with_more(shown: &[String], total: usize, empty: &str) -> String {
    let text = shown.join(",");
    if total > shown.len() {
        format!("{text} + {} more...", total - shown.len())
    } else if text.is_empty() {
        empty.to_owned()
    } else {
        text
    }
}
