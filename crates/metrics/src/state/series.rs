//! Lines of the text format.

use super::config::Allowed;
use super::family::Kind;
use super::object::{entries, text};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;

/// First time after a given one of a schedule in a time zone; `Err` if schedule or zone cannot be parsed.
pub type NextSchedule = fn(&str, Option<&str>, Timestamp) -> Result<Option<Timestamp>, InvalidSchedule>;

/// A schedule that cannot be parsed.
#[derive(Clone, Copy, Debug)]
pub struct InvalidSchedule;

/// The lines of one family of one object.
pub struct Series<'a> {
    pub out: &'a mut String,
    pub name: &'static str,
    /// Rendered labels that identify the object.
    pub identity: &'a str,
    pub settings: &'a Settings<'a>,
}

/// Settings that apply to one kind.
pub struct Settings<'a> {
    pub labels: Allowed<'a>,
    pub annotations: Allowed<'a>,
    pub next_schedule: NextSchedule,
}

const STATUSES: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("Unknown", "unknown")];

impl Series<'_> {
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        self.out.push_str(self.name);
        if !self.identity.is_empty() || !labels.is_empty() {
            self.out.push('{');
            self.out.push_str(self.identity);
            for (at, (name, value)) in labels.iter().enumerate() {
                if at > 0 || !self.identity.is_empty() {
                    self.out.push(',');
                }
                push_label(self.out, name, value);
            }
            self.out.push('}');
        }
        self.out.push(' ');
        push_number(self.out, value);
        self.out.push('\n');
    }

    pub fn add_some(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.add(&[], value);
        }
    }

    /// One series for each status of a condition, in the label `key`, 1 for the present one.
    pub fn add_statuses(&mut self, labels: &[(&str, &str)], key: &str, present: &str) {
        let mut all = labels.to_vec();
        for (status, lower) in STATUSES {
            all.push((key, lower));
            self.add(&all, (status == present).into());
            all.pop();
        }
    }

    pub fn add_allowed_labels(&mut self, object: &Value) {
        self.add_allowed("label", self.settings.labels, object, "metadata.labels");
    }

    pub fn add_allowed_annotations(&mut self, object: &Value) {
        self.add_allowed("annotation", self.settings.annotations, object, "metadata.annotations");
    }

    /// One series with the entries that are allowed; none if nothing is.
    fn add_allowed(&mut self, prefix: &str, allowed: Allowed<'_>, object: &Value, path: &str) {
        let keep = |name: &str| match allowed {
            Allowed::Only(names) => names.iter().any(|one| one == name),
            _ => true,
        };
        if !matches!(allowed, Allowed::None) {
            self.add_map(prefix, entries(object, path).filter(|(name, _)| keep(name)));
        }
    }

    /// One series of value 1 with the entries of a map as labels. Names that become equal get numbers.
    pub fn add_map<'a>(&mut self, prefix: &str, map: impl Iterator<Item = (&'a str, &'a Value)>) {
        let mut entries: Vec<_> = map.collect();
        entries.sort_unstable_by_key(|(name, _)| *name);
        let mut labels: Vec<(String, &str)> = Vec::new();
        let mut seen: HashMap<String, (usize, usize)> = HashMap::new();
        for (name, value) in entries {
            let mut label = format!("{prefix}_{}", snake_case(&sanitize(name)));
            if let Some((count, first)) = seen.get_mut(&label) {
                if *count == 1 {
                    labels[*first].0.push_str("_conflict1");
                }
                *count += 1;
                label.push_str(&format!("_conflict{count}"));
            } else {
                seen.insert(label.clone(), (1, labels.len()));
            }
            labels.push((label, value.as_str().unwrap_or_default()));
        }
        let labels: Vec<_> = labels.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        self.add(&labels, 1.0);
    }

    /// One series for each entry of a map of quantities, with its name in the label `resource`.
    pub fn add_quantities(
        &mut self,
        object: &Value,
        path: &str,
        kind: &[(&str, &str)],
        convert: fn(&Value) -> Option<f64>,
    ) {
        for (resource, value) in entries(object, path) {
            if let Some(value) = convert(value) {
                let labels: Vec<_> =
                    std::iter::once(("resource", resource)).chain(kind.iter().copied()).collect();
                self.add(&labels, value);
            }
        }
    }
}

/// Labels that identify an object, rendered.
pub fn identity(kind: &Kind, object: &Value) -> String {
    let mut out = String::new();
    for (name, path) in kind.identity {
        if !out.is_empty() {
            out.push(',');
        }
        push_label(&mut out, name, text(object, path));
    }
    out
}

fn push_label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    if value.contains(['\\', '\n', '"']) {
        for character in value.chars() {
            match character {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '"' => out.push_str("\\\""),
                other => out.push(other),
            }
        }
    } else {
        out.push_str(value);
    }
    out.push('"');
}

/// Writes a number as Go's `%g` with the shortest precision: an exponent below -4 or from 6 on is written.
fn push_number(out: &mut String, value: f64) {
    if value == 0.0 {
        return out.push('0');
    }
    if !value.is_finite() {
        let text = if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        };
        return out.push_str(text);
    }
    let start = out.len();
    let _ = write!(out, "{value:e}");
    let exponent = out[start..].find('e').map(|at| (start + at, out[start + at + 1..].parse::<i32>()));
    let Some((at, Ok(exponent))) = exponent else { return };
    let tail = if (-4..6).contains(&exponent) {
        out.truncate(start);
        write!(out, "{value}")
    } else {
        out.truncate(at);
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "e{sign}{:02}", exponent.abs())
    };
    debug_assert!(tail.is_ok(), "strings accept all text");
}

/// Replaces the characters that no label name has.
pub fn sanitize(name: &str) -> String {
    name.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect()
}

fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut previous = '_';
    for one in name.chars() {
        if one.is_ascii_uppercase() && (previous.is_ascii_lowercase() || previous.is_ascii_digit()) {
            out.push('_');
        }
        out.push(one.to_ascii_lowercase());
        previous = one;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_has_the_form_of_go() {
        for (value, want) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (0.1, "0.1"),
            (123_456.0, "123456"),
            (1_000_000.0, "1e+06"),
            (1_501_569_018.0, "1.501569018e+09"),
            (0.00001, "1e-05"),
            (0.0001, "0.0001"),
            (9.223_372_036_854_776e18, "9.223372036854776e+18"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            let mut out = String::new();
            push_number(&mut out, value);
            assert_eq!(out, want);
        }
    }

    #[test]
    fn label_value_is_escaped() {
        let mut out = String::new();
        push_label(&mut out, "a", "x\\\"\ny é");
        assert_eq!(out, "a=\"x\\\\\\\"\\ny é\"");
    }

    #[test]
    fn label_name_becomes_snake_case() {
        for (name, want) in [
            ("an_underscore", "an_underscore"),
            ("app.kubernetes.io/name", "app_kubernetes_io_name"),
            ("-starting", "_starting"),
            ("thisTitleCase", "this_title_case"),
            ("HTTPRoute9A", "httproute9_a"),
            ("é", "_"),
        ] {
            assert_eq!(snake_case(&sanitize(name)), want);
        }
    }
}
