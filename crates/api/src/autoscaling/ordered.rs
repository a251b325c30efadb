//! JSON text with fields in insertion order: annotations must equal those of Kubernetes byte for byte, but dynamic
//! maps sort their keys.

use machinery::Value;

/// A JSON object under construction.
pub struct ObjectText {
    text: String,
}

impl ObjectText {
    pub fn new() -> Self {
        Self { text: "{".to_owned() }
    }

    /// Adds a field whose value is already JSON text.
    pub fn raw(mut self, name: &str, json: &str) -> Self {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text.push_str(&Value::from(name).to_string());
        self.text.push(':');
        self.text.push_str(json);
        self
    }

    /// Adds a field, `null` included.
    pub fn value(self, name: &str, value: &Value) -> Self {
        let json = escape_html(value.to_string());
        self.raw(name, &json)
    }

    /// Adds a string field, also an empty one.
    pub fn text(self, name: &str, value: &str) -> Self {
        self.value(name, &Value::from(value))
    }

    /// Adds a field unless it is missing.
    pub fn optional(self, name: &str, value: &Value) -> Self {
        if value.is_null() { self } else { self.value(name, value) }
    }

    /// Adds JSON text, if any.
    pub fn optional_raw(self, name: &str, json: Option<String>) -> Self {
        match json {
            Some(json) => self.raw(name, &json),
            None => self,
        }
    }

    pub fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// A JSON list of texts.
pub fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// Escapes `<`, `>` and `&` as Go does; in JSON they occur only inside strings.
fn escape_html(json: String) -> String {
    if !json.contains(['<', '>', '&']) {
        return json;
    }
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
