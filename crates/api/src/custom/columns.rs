//! Printer columns of a custom resource.

use crate::kind::CellContext;
use crate::tables::human_duration;
use crate::value::Fields;
use machinery::Value;
use machinery::codec::time;
use machinery::jsonpath::{Missing, Template};
use serde_json::json;
use std::sync::Arc;

/// Compiled column.
#[derive(Debug)]
pub struct Column {
    pub name: Arc<str>,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: Arc<str>,
    pub format: Arc<str>,
    pub description: Box<str>,
    pub priority: i64,
    path: Template,
}

/// Compiles the columns of a version after the name. The first column with an invalid path and all after it are
/// omitted, as in Kubernetes; a version without columns has the age.
pub(super) fn compile(version: &Value) -> Box<[Column]> {
    let declared = version.items("additionalPrinterColumns");
    if declared.is_empty() {
        let description = crate::tables::CREATION_TIMESTAMP;
        let age = json!({"name": "Age", "type": "date", "description": description,
            "jsonPath": ".metadata.creationTimestamp"});
        return Column::compile(&age).into_iter().collect();
    }
    declared.iter().map_while(Column::compile).collect()
}

impl Column {
    fn compile(column: &Value) -> Option<Self> {
        let path = column.text("jsonPath");
        let description = match column.text("description") {
            "" => format!("Custom resource definition column (in JSONPath format): {path}"),
            description => description.to_owned(),
        };
        Some(Self {
            name: super::intern::name(column.text("name")),
            kind: super::intern::name(column.text("type")),
            format: super::intern::name(column.text("format")),
            description: description.into(),
            priority: column.int("priority"),
            path: Template::parse(&format!("{{{path}}}")).ok()?,
        })
    }

    /// Cell of an object.
    pub fn cell(&self, object: &Value, context: CellContext) -> Value {
        let Ok(results) = self.path.results(object, Missing::Allow) else { return Value::Null };
        let Some(value) = results.first().and_then(|first| first.first()) else { return Value::Null };
        if self.kind.as_ref() == "string" {
            return machinery::jsonpath::text(std::slice::from_ref(value)).into();
        }
        match (self.kind.as_ref(), value.as_ref()) {
            #[expect(clippy::cast_possible_truncation, reason = "fractions are cut off, as in Kubernetes")]
            ("integer", Value::Number(number)) => match number.as_i64() {
                Some(number) => number.into(),
                None => number.as_f64().map_or(Value::Null, |number| (number as i64).into()),
            },
            ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Value::from),
            ("boolean", flag @ Value::Bool(_)) => flag.clone(),
            ("date", Value::String(text)) => match time::parse(text, false) {
                Ok(moment) => human_duration(context.now.saturating_sub(moment.seconds)).into(),
                Err(_) if text.is_empty() => "<unknown>".into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}
