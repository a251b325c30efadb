//! `--sort-by`: the order of objects and of a table's rows by a field.

use std::cmp::Ordering;

use machinery::jsonpath::{Missing, Template};
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::error::{CliError, fail};
use crate::printer::relaxed;

/// The field to sort by.
#[derive(Clone, Debug)]
pub struct SortKey {
    shown: String,
    path: Template,
}

impl SortKey {
    pub fn parse(text: &str) -> Result<Self, CliError> {
        let shown = relaxed(text);
        let path = Template::parse(&shown)
            .map_err(|error| CliError::Text(format!("error parsing jsonpath {text}, {error}")))?;
        Ok(Self { shown, path })
    }

    fn value(&self, object: &Value) -> Option<Value> {
        let results = self.path.results(object, Missing::Allow).ok()?;
        results.into_iter().flatten().next().map(std::borrow::Cow::into_owned)
    }

    fn sort(&self, items: &mut Vec<Value>, object: impl Fn(&Value) -> &Value) -> Result<(), CliError> {
        let mut keyed: Vec<(Option<Value>, Value)> =
            std::mem::take(items).into_iter().map(|item| (self.value(object(&item)), item)).collect();
        if !keyed.is_empty() && keyed.iter().all(|(key, _)| key.is_none()) {
            return fail(format!(
                "couldn't find any field with path {} in the list of objects",
                machinery::field::show_str(&self.shown)
            ));
        }
        keyed.sort_by(|(left, _), (right, _)| match (left, right) {
            (Some(left), Some(right)) => compare(left, right),
            (left, right) => left.is_some().cmp(&right.is_some()),
        });
        *items = keyed.into_iter().map(|(_, item)| item).collect();
        Ok(())
    }
}

pub fn objects(items: &mut Vec<Value>, key: &SortKey) -> Result<(), CliError> {
    key.sort(items, |item| item)
}

/// Sorts the rows of a table by their objects.
pub fn table(table: &mut Value, key: &SortKey) -> Result<(), CliError> {
    match table.get_mut("rows") {
        Some(Value::Array(rows)) => key.sort(rows, |row| &row["object"]),
        _ => Ok(()),
    }
}

fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::String(left), Value::String(right)) => {
            match (Quantity::parse(left), Quantity::parse(right)) {
                (Ok(left), Ok(right)) => left.cmp(&right),
                _ => natural(left, right),
            }
        }
        (Value::Number(left), Value::Number(right)) => {
            let (left, right) = (left.as_f64().unwrap_or(0.0), right.as_f64().unwrap_or(0.0));
            left.total_cmp(&right)
        }
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        _ => Ordering::Equal,
    }
}

/// The order in which numbers within text count as numbers.
fn natural(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left, right);
    loop {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        match (left.chars().next(), right.chars().next()) {
            (None, None) => return Ordering::Equal,
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (first, second) = (&left[..digits(left)], &right[..digits(right)]);
                let (a, b) = (first.trim_start_matches('0'), second.trim_start_matches('0'));
                let order =
                    a.len().cmp(&b.len()).then_with(|| a.cmp(b)).then_with(|| first.len().cmp(&second.len()));
                if order != Ordering::Equal {
                    return order;
                }
                (left, right) = (&left[first.len()..], &right[second.len()..]);
            }
            (Some(a), Some(b)) if a == b => (left, right) = (&left[a.len_utf8()..], &right[b.len_utf8()..]),
            (Some(a), Some(b)) => return a.cmp(&b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_sort_by_their_type() {
        let sorted = |path: &str, values: Value| {
            let mut items: Vec<Value> =
                values.as_array().expect("a list").iter().map(|value| json!({"a": value})).collect();
            objects(&mut items, &SortKey::parse(path).expect("a path")).expect("sorted");
            Value::from(items.iter().map(|item| item["a"].clone()).collect::<Vec<_>>())
        };
        assert_eq!(sorted(".a", json!(["n10", "n9", "n1"])), json!(["n1", "n9", "n10"]));
        assert_eq!(sorted("{.a}", json!(["1Gi", "500Mi", "2Ki"])), json!(["2Ki", "500Mi", "1Gi"]));
        assert_eq!(sorted("a", json!([10, 9, 1])), json!([1, 9, 10]));
        let mut items = vec![json!({})];
        let message =
            objects(&mut items, &SortKey::parse(".gone").expect("a path")).expect_err("refused").to_text();
        assert_eq!(message, "error: couldn't find any field with path \"{.gone}\" in the list of objects");
    }
}
