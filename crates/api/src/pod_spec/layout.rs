//! Pod specs in Kubernetes' messages: with every field, in the order and under the names of its internal types.
//!
//! `layout.txt` has a line per type and, indented, one per field: shown name, JSON name, and its form if missing: `s`
//! an empty string, `i` 0, `b` false, `q` the quantity `"0"`, `n` null, `o` omitted, a type's name a struct, `*Type`
//! a null or struct, `[]Type` a null or list of structs.

use crate::value::{Fields, is_zero};
use machinery::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

const TABLE: &str = include_str!("layout.txt");

struct Field {
    shown: &'static str,
    json: &'static str,
    kind: &'static str,
}

static TYPES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in TABLE.lines() {
        let mut columns = line.split_whitespace();
        match (columns.next(), columns.next(), columns.next()) {
            (Some(shown), Some(json), Some(kind)) => {
                types.entry(current).or_default().push(Field { shown, json, kind });
            }
            (Some(name), ..) => current = name,
            _ => {}
        }
    }
    types
});

/// The value of a type as one line of JSON.
pub fn internal_json(kind: &str, value: &Value) -> String {
    let mut out = String::new();
    Writer { out: &mut out, pretty: false }.object(kind, value, 0);
    out
}

/// The value of a type as JSON on many lines, indented by one space per level.
pub fn internal_json_lines(kind: &str, value: &Value) -> String {
    let mut out = String::new();
    Writer { out: &mut out, pretty: true }.object(kind, value, 0);
    out
}

struct Writer<'a> {
    out: &'a mut String,
    pretty: bool,
}

impl Writer<'_> {
    fn object(&mut self, kind: &str, value: &Value, depth: usize) {
        let moved;
        let value = if kind == "PodSpec" {
            moved = with_host_namespaces(value);
            &moved
        } else {
            value
        };
        let fields = TYPES.get(kind).map_or(&[][..], Vec::as_slice);
        let mut first = true;
        self.out.push('{');
        for field in fields {
            let child = field.json.split('/').fold(value, |value, name| value.field(name));
            if field.kind.starts_with('o') && is_zero(child) {
                continue;
            }
            self.separate(&mut first, depth + 1);
            self.out.push('"');
            self.out.push_str(field.shown);
            self.out.push_str(if self.pretty { "\": " } else { "\":" });
            self.field(field.kind.strip_prefix('o').unwrap_or(field.kind), child, depth + 1);
        }
        self.close(first, depth, '}');
    }

    fn field(&mut self, kind: &str, value: &Value, depth: usize) {
        match kind {
            "s" if value.is_null() => self.out.push_str("\"\""),
            "i" if value.is_null() => self.out.push('0'),
            "b" if value.is_null() => self.out.push_str("false"),
            "q" if value.is_null() => self.out.push_str("\"0\""),
            "s" | "i" | "b" | "q" | "n" | "" => self.plain(value, depth),
            _ => match kind.strip_prefix("[]") {
                Some(item) => self.list(value, depth, |writer, value| writer.object(item, value, depth + 1)),
                None => match kind.strip_prefix('*') {
                    Some(_) if value.is_null() => self.out.push_str("null"),
                    Some(pointed) => self.object(pointed, value, depth),
                    None => self.object(kind, value, depth),
                },
            },
        }
    }

    fn list(&mut self, value: &Value, depth: usize, mut write: impl FnMut(&mut Self, &Value)) {
        let Some(items) = value.as_array() else {
            self.out.push_str("null");
            return;
        };
        let mut first = true;
        self.out.push('[');
        for item in items {
            self.separate(&mut first, depth + 1);
            write(self, item);
        }
        self.close(first, depth, ']');
    }

    /// A value with the same JSON in the internal and the external type: scalars, and maps and lists of them.
    fn plain(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Array(_) => self.list(value, depth, |writer, item| writer.plain(item, depth + 1)),
            Value::Object(map) => {
                let mut first = true;
                self.out.push('{');
                for (name, value) in map {
                    self.separate(&mut first, depth + 1);
                    self.plain(&Value::from(name.as_str()), depth);
                    self.out.push_str(if self.pretty { ": " } else { ":" });
                    self.plain(value, depth + 1);
                }
                self.close(first, depth, '}');
            }
            scalar => {
                let text = scalar.to_string();
                for c in text.chars() {
                    match c {
                        '<' => self.out.push_str("\\u003c"),
                        '>' => self.out.push_str("\\u003e"),
                        '&' => self.out.push_str("\\u0026"),
                        c => self.out.push(c),
                    }
                }
            }
        }
    }

    fn separate(&mut self, first: &mut bool, depth: usize) {
        if !*first {
            self.out.push(',');
        }
        *first = false;
        self.new_line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if self.pretty {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', depth));
        }
    }
}

/// In the internal type, the host namespace fields belong to the security context.
fn with_host_namespaces(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for name in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        if let Some(value) = spec.unset(name) {
            spec.child_mut("securityContext").set(name, value);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_referenced_type_has_layout() {
        for (name, fields) in TYPES.iter() {
            for field in fields {
                let kind = field.kind.trim_start_matches(['o', '*', '[', ']']);
                let known = matches!(kind, "s" | "i" | "b" | "q" | "n" | "") || TYPES.contains_key(kind);
                assert!(known, "{name}.{}: {kind}", field.shown);
            }
        }
    }

    #[test]
    fn internal_json_includes_missing_fields() {
        assert_eq!(
            internal_json("SeccompProfile", &json!({"type": "Unconfined", "localhostProfile": "<a>"})),
            r#"{"Type":"Unconfined","LocalhostProfile":"\u003ca\u003e"}"#
        );
        assert_eq!(internal_json("PodOS", &json!({})), r#"{"Name":""}"#);
        assert!(
            internal_json_lines("PodSpec", &json!({"hostNetwork": true, "volumes": []}))
                .starts_with("{\n \"Volumes\": [],\n \"InitContainers\": null,")
        );
        let spec = internal_json("PodSpec", &json!({"hostNetwork": true}));
        assert!(spec.contains(r#""SecurityContext":{"HostNetwork":true,"HostPID":false"#));
    }
}
