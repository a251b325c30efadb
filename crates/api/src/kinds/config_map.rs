//! ConfigMap.

use super::secret::{MAX_SIZE, decoded_length, frozen};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    validate,
    validate_update,
    table: &crate::tables::config::CONFIG_MAP,
    ..Kind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
};

fn validate(map: &Value) -> ErrorList {
    let binary = map.field("binaryData");
    let mut errors = Vec::new();
    let mut size = 0;
    for field in ["data", "binaryData"] {
        let path = Path::new(field);
        for (key, value) in map.entries(field).into_iter().flatten() {
            let path = path.key(key);
            let text = value.as_str().unwrap_or("");
            errors.extend(
                names::config_map_key(key).into_iter().map(|m| FieldError::invalid_str(&path, key, m)),
            );
            if field == "binaryData" {
                size += decoded_length(text);
            } else {
                size += text.len();
                if binary.get(key).is_some() {
                    let detail = "duplicate of key present in binaryData";
                    errors.push(FieldError::invalid_str(&path, key, detail));
                }
            }
        }
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&Path::new(""), MAX_SIZE));
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = frozen(new, old, &["data", "binaryData"]);
    errors.extend(KIND.metadata_errors(new));
    errors.extend(validate(new));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_checked_and_unique() {
        let map = json!({"data": {"a": "1", "b c": ""}, "binaryData": {"a": ""}});
        let fields: Vec<String> = validate(&map).iter().map(|error| error.field.clone()).collect();
        assert_eq!(fields, ["data[a]", "data[b c]"]);
    }
}
