//! Reads what the API server sent, also where it says `null` for a field that a type takes to be always there: objects may
//! hold such, for instance a condition without a time. One of them must not make all others unreadable.

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) fn decode<R: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<R> {
    serde_json::from_slice(bytes).or_else(|error| {
        if !error.is_data() {
            return Err(error);
        }
        let mut value: Value = serde_json::from_slice(bytes)?;
        forget_nulls(&mut value);
        serde_json::from_value(value).map_err(|_| error)
    })
}

/// The one time that types want always, and what it is when it was never set.
const REQUIRED_TIME: &str = "lastTransitionTime";
const NEVER: &str = "0001-01-01T00:00:00Z";

/// A field that is null is as good as one that is not there. The depth is bounded by the parser's.
fn forget_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(time) = fields.get_mut(REQUIRED_TIME).filter(|time| time.is_null()) {
                *time = NEVER.into();
            }
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(forget_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Service;

    #[test]
    fn conditions_without_a_time() {
        let text = r#"{"metadata": {"name": "s"}, "status": {"conditions": [
            {"type": "A", "status": "True", "reason": "", "message": "", "lastTransitionTime": null}]}}"#;
        let service: Service = decode(text.as_bytes()).expect("readable");
        assert_eq!(service.status.and_then(|status| status.conditions).map(|all| all.len()), Some(1));
        assert!(decode::<Service>(br#"{"metadata": {"name": 5}}"#).is_err());
        assert!(decode::<Service>(b"{").is_err());
    }
}
