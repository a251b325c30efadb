//! Secret.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::SelectableField;
use crate::validation::checks::immutable;
use crate::value::Fields;
use crate::{Kind, Scope};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    default,
    prepare_update: |new, old| {
        let kind = old.text("type").to_owned();
        new.default_if_zero("type", kind);
    },
    validate,
    validate_update,
    warnings: |new, _| warnings(new),
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::config::SECRET,
    ..Kind::new("", "v1", "Secret", "secrets", Scope::Namespaced)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, NAMESPACE, field, text};
    &[NAME, NAMESPACE, field("type", |secret| text(secret, "/type"))]
};

fn default(secret: &mut Value) {
    secret.default_if_zero("type", "Opaque");
    fold_string_data(secret);
}

/// `stringData` is write-only: its values replace those of the same keys in `data`.
fn fold_string_data(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret.unset("stringData") else {
        return;
    };
    if texts.is_empty() {
        return;
    }
    let data = secret.child_mut("data");
    for (key, text) in texts {
        data.set(&key, STANDARD.encode(text.as_str().unwrap_or("")));
    }
}

/// Size limit of secrets and config maps: 1 MiB.
pub const MAX_SIZE: usize = 1024 * 1024;
const REDACTED: &str = "<secret contents redacted>";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// Decoded length of base64 text, in bytes.
pub fn decoded_length(text: &str) -> usize {
    text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count().min(text.len() / 4 * 3)
}

fn validate(secret: &Value) -> ErrorList {
    let path = Path::new("data");
    let data = secret.field("data");
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in secret.entries("data").into_iter().flatten() {
        let messages = names::config_map_key(key);
        errors.extend(messages.into_iter().map(|m| FieldError::invalid_str(&path.key(key), key, m)));
        size += decoded_length(value.as_str().unwrap_or(""));
    }
    if size > MAX_SIZE {
        errors.push(FieldError::too_long(&path, MAX_SIZE));
    }
    let required = |key: &str| FieldError::required(&path.key(key), "");
    let has = |key: &str| data.get(key).is_some();
    match secret.text("type") {
        "kubernetes.io/service-account-token"
            if meta::annotation(secret, ACCOUNT_NAME).unwrap_or("").is_empty() =>
        {
            let metadata = Path::new("metadata");
            let annotations = metadata.child("annotations");
            errors.push(FieldError::required(&annotations.key(ACCOUNT_NAME), ""));
        }
        "kubernetes.io/dockercfg" => errors.extend(docker_config(data, ".dockercfg", &path)),
        "kubernetes.io/dockerconfigjson" => errors.extend(docker_config(data, ".dockerconfigjson", &path)),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errors.extend(["username", "password"].map(required));
        }
        "kubernetes.io/ssh-auth" if data.text("ssh-privatekey").is_empty() => {
            errors.push(required("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            errors.extend(["tls.crt", "tls.key"].into_iter().filter(|key| !has(key)).map(required));
        }
        _ => {}
    }
    errors
}

/// Credentials of registries: a JSON object.
fn docker_config(data: &Value, key: &str, path: &Path<'_>) -> Option<FieldError> {
    let Some(text) = data.opt_text(key) else {
        return Some(FieldError::required(&path.key(key), ""));
    };
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let problem = match machinery::codec::json::decode(&bytes).map(|decoded| decoded.value) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(other) => {
            let kind = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            };
            format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
        }
        Err(error) => error.to_string(),
    };
    Some(FieldError::invalid_str(&path.key(key), REDACTED, problem))
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = immutable(&Path::new("type"), new.field("type"), old.field("type"));
    errors.extend(frozen(new, old, &["data"]));
    errors.extend(KIND.metadata_errors(new));
    errors.extend(validate(new));
    errors
}

/// Rejects changes of immutable secrets and config maps.
pub fn frozen(new: &Value, old: &Value, fields: &[&str]) -> ErrorList {
    if !old.flag("immutable") {
        return Vec::new();
    }
    let mut errors = Vec::new();
    let mut reject = |field: &str| {
        let detail = "field is immutable when `immutable` is set";
        errors.push(FieldError::forbidden(&Path::new(field), detail));
    };
    if !new.flag("immutable") {
        reject("immutable");
    }
    let empty = serde_json::Map::new();
    for field in fields {
        if new.entries(field).unwrap_or(&empty) != old.entries(field).unwrap_or(&empty) {
            reject(field);
        }
    }
    errors
}

/// Warns about a certificate or key that no server could load; it is accepted.
fn warnings(secret: &Value) -> Vec<String> {
    if secret.text("type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let pem = |key: &str| STANDARD.decode(secret.field("data").text(key)).unwrap_or_default();
    let problem = missing_block(&pem("tls.crt"), "certificate", |kind| kind == "CERTIFICATE").or_else(|| {
        missing_block(&pem("tls.key"), "key", |kind| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY"))
    });
    problem.into_iter().collect()
}

/// Error of an input without a PEM block of an expected type.
fn missing_block(input: &[u8], what: &str, wanted: fn(&str) -> bool) -> Option<String> {
    let text = String::from_utf8_lossy(input);
    let mut skipped = Vec::new();
    for line in text.lines() {
        let kind = line.trim().strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"));
        match kind {
            Some(kind) if wanted(kind) => return None,
            Some(kind) => skipped.push(kind),
            None => {}
        }
    }
    if skipped.is_empty() {
        return Some(format!("tls: failed to find any PEM data in {what} input"));
    }
    if what == "certificate" && skipped.len() == 1 && skipped[0].ends_with("PRIVATE KEY") {
        return Some(
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; \
             PEM inputs may have been switched"
                .to_owned(),
        );
    }
    if what == "key" && skipped.len() == 1 && skipped[0] == "CERTIFICATE" {
        return Some("tls: found a certificate rather than a key in the PEM for the private key".to_owned());
    }
    let block = match what {
        "certificate" => r#""CERTIFICATE" PEM block"#,
        _ => r#"PEM block with type ending in "PRIVATE KEY""#,
    };
    let kinds = skipped.join(" ");
    Some(format!(
        "tls: failed to find {block} in {what} input after skipping PEM blocks of the following types: [{kinds}]"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn string_data_overrides_data() {
        let mut secret = json!({"data": {"a": "eA==", "b": "eQ=="}, "stringData": {"a": "hi", "c": ""}});
        default(&mut secret);
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "aGk=", "b": "eQ==", "c": ""}}));
    }

    #[test]
    fn types_require_their_data() {
        let cases = [
            (
                json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
                vec!["data[tls.key]: Required value"],
            ),
            (
                json!({"type": "kubernetes.io/basic-auth"}),
                vec!["data[username]: Required value", "data[password]: Required value"],
            ),
            (
                json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}}),
                vec![],
            ),
            (
                json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": ""}}),
                vec![
                    r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": unexpected end of JSON input"#,
                ],
            ),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
        ];
        for (secret, want) in cases {
            let got: Vec<String> = validate(&secret).iter().map(ToString::to_string).collect();
            assert_eq!(got, want);
        }
    }

    #[test]
    fn immutable_secret_rejects_changes() {
        let metadata = json!({"name": "s", "namespace": "n"});
        let old = json!({"metadata": metadata, "type": "Opaque", "immutable": true, "data": {"a": ""}});
        let new = json!({"metadata": metadata, "type": "Opaque", "data": {"b": ""}});
        let got: Vec<String> = validate_update(&new, &old).iter().map(|error| error.field.clone()).collect();
        assert_eq!(got, ["immutable", "data"]);
        assert!(validate_update(&old, &old).is_empty());
    }

    #[test]
    fn base64_decoded_length_is_computed() {
        for (text, length) in [("", 0), ("eA==", 1), ("eHk=", 2), ("eHl6", 3), ("=", 0)] {
            assert_eq!(decoded_length(text), length);
        }
    }

    #[test]
    fn unusable_certificate_returns_warning() {
        let secret = |certificate: &str, key: &str| {
            let data = json!({"tls.crt": STANDARD.encode(certificate), "tls.key": STANDARD.encode(key)});
            json!({"type": "kubernetes.io/tls", "data": data})
        };
        let (certificate, key) = ("-----BEGIN CERTIFICATE-----\n", "-----BEGIN EC PRIVATE KEY-----\n");
        let cases = [
            (secret(certificate, key), vec![]),
            (secret("x", key), vec!["tls: failed to find any PEM data in certificate input"]),
            (secret(certificate, ""), vec!["tls: failed to find any PEM data in key input"]),
        ];
        for (secret, want) in cases {
            assert_eq!(warnings(&secret), want);
        }
        assert!(warnings(&json!({"type": "Opaque"})).is_empty());
    }
}
