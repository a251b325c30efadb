//! Results as text.

use super::Found;
use crate::field;
use serde_json::{Serializer, Value};

/// Results as kubectl prints them: separated by spaces, lists and maps as JSON.
pub fn text(results: &[Found<'_>]) -> String {
    let texts: Vec<String> = results.iter().map(|value| plain(value)).collect();
    texts.join(" ")
}

/// Results as one indented JSON list (`-o jsonpath-as-json`).
pub fn json(results: &[Found<'_>]) -> String {
    use serde::Serialize;
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    let values: Vec<&Value> = results.iter().map(AsRef::as_ref).collect();
    if values.serialize(&mut serializer).is_err() {
        return String::new();
    }
    let mut text = String::from_utf8(out).unwrap_or_default();
    text.push('\n');
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map(field::show_float).unwrap_or_default()
        }
        Value::Array(_) | Value::Object(_) => field::json(value),
        scalar => scalar.to_string(),
    }
}
