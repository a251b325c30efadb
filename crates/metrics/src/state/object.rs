//! Fields of decoded objects. A field that is absent, null or of another type counts as absent.

use machinery::quantity::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Contents of Secrets and ConfigMaps. They are not decoded: no series has them.
const CONTENTS: [&str; 3] = ["data", "binaryData", "stringData"];

/// Decodes an object without contents and without `managedFields`.
pub fn decode(json: &[u8]) -> Result<Value, serde_json::Error> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(json)?;
    let mut object = serde_json::Map::new();
    for (name, raw) in fields {
        let value = if name == "metadata" {
            let mut metadata = serde_json::Map::new();
            for (name, raw) in serde_json::from_str::<BTreeMap<String, &RawValue>>(raw.get())? {
                if name != "managedFields" {
                    metadata.insert(name, serde_json::from_str(raw.get())?);
                }
            }
            metadata.into()
        } else if CONTENTS.contains(&name.as_str()) {
            continue;
        } else {
            serde_json::from_str(raw.get())?
        };
        object.insert(name, value);
    }
    Ok(object.into())
}

/// The field at a path of names, separated by dots.
pub fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let found = path.split('.').try_fold(value, |value, name| value.get(name))?;
    (!found.is_null()).then_some(found)
}

/// A text; empty if absent.
pub fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

pub fn number(value: &Value, path: &str) -> Option<f64> {
    at(value, path)?.as_f64()
}

pub fn flag(value: &Value, path: &str) -> Option<bool> {
    at(value, path)?.as_bool()
}

/// Elements of a list; none if absent.
pub fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Entries of a map; none if absent.
pub fn entries<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let map = at(value, path).and_then(Value::as_object);
    map.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// Time of a field.
pub fn time(value: &Value, path: &str) -> Option<jiff::Timestamp> {
    text(value, path).parse().ok()
}

/// Unix seconds of a timestamp.
pub fn seconds(value: &Value, path: &str) -> Option<f64> {
    Some(time(value, path)?.as_second() as f64)
}

/// Largest value that has thousandths.
const MAX_MILLI: i64 = i64::MAX / 1000;

/// A quantity with thousandths, as far as they fit.
pub fn amount(value: &Value) -> Option<f64> {
    let quantity = quantity(value)?;
    let whole = quantity.value();
    Some(if whole > MAX_MILLI { whole as f64 } else { quantity.milli_value() as f64 / 1000.0 })
}

/// A quantity, rounded up.
pub fn whole(value: &Value) -> Option<f64> {
    Some(quantity(value)?.value() as f64)
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// Unit of a resource of nodes and containers; `None` if it has no series.
pub fn unit(resource: &str) -> Option<&'static str> {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    match resource {
        "cpu" => Some("core"),
        "storage" | "ephemeral-storage" | "memory" => Some("byte"),
        _ if resource.starts_with("hugepages-") || resource.starts_with("attachable-volumes-") => {
            Some("byte")
        }
        _ if !is_native && !resource.starts_with("requests.") => Some("integer"),
        _ => None,
    }
}
