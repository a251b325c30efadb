//! Secret.

use crate::value::Fields;
use crate::{Kind, Scope};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_update: |new, old| {
        let kind = old.text("type").to_owned();
        new.default_if_zero("type", kind);
    },
    ..Kind::new("", "v1", "Secret", "secrets", Scope::Namespaced)
};

fn default(secret: &mut Value) {
    secret.default_if_zero("type", "Opaque");
    fold_string_data(secret);
}

/// `stringData` is write-only: its texts take their keys' places in `data`.
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
}
