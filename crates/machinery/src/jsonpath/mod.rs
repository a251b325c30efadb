//! JSONPath in the dialect of kubectl and client-go: text with paths in braces.
//!
//! `{.spec.replicas}`, `{.items[*].metadata.name}`, `{range .items[?(@.kind=="Pod")]}{.metadata.name}{"\n"}{end}`. A
//! [`Template`] is parsed once and evaluated on any number of values. Printer columns and selectable fields of custom
//! resources use the same dialect.

mod evaluate;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use print::{json, text};

use serde_json::Value;
use std::borrow::Cow;

/// A parsed template.
///
/// ```
/// use machinery::jsonpath::{Missing, Template};
/// use serde_json::json;
///
/// let template = Template::parse("{range .items[*]}{.name} {end}")?;
/// let value = json!({"items": [{"name": "a"}, {"name": "b"}]});
/// assert_eq!(template.execute(&value, Missing::Error)?, "a b ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    nodes: Vec<Node>,
}

/// Reason why a template cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub(crate) String);

/// Reason why a template cannot be evaluated on a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvaluateError(pub(crate) String);

/// Treatment of fields that a value does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Evaluation fails.
    Error,
    /// The result is empty.
    Allow,
}

/// A value that a path selects, or one that the template creates.
pub type Found<'v> = Cow<'v, Value>;

impl Template {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Ok(Self { nodes: parse::parse(text)? })
    }

    /// The results of every part of the template, in order. Parts in a range have results for every iteration.
    pub fn results<'v>(
        &'v self,
        value: &'v Value,
        missing: Missing,
    ) -> Result<Vec<Vec<Found<'v>>>, EvaluateError> {
        evaluate::results(&self.nodes, value, missing)
    }

    /// The output of the template for a value.
    pub fn execute(&self, value: &Value, missing: Missing) -> Result<String, EvaluateError> {
        let results = self.results(value, missing)?;
        Ok(results.iter().map(|results| text(results)).collect())
    }

    /// The names of the fields that the template consists of, if it is a path of fields only: `{.spec.replicas}`.
    pub fn fields(&self) -> Option<Vec<&str>> {
        let [Node::List(nodes)] = self.nodes.as_slice() else { return None };
        let mut fields = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Node::Field(name) = node else { return None };
            fields.push(&**name);
        }
        Some(fields)
    }
}

/// One part of a template or of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// Text outside braces, or a quoted string.
    Text(Value),
    /// The content of a pair of braces.
    List(Vec<Node>),
    Field(Box<str>),
    Slice(Slice),
    Filter(Box<Filter>),
    /// An integer, a float or a boolean.
    Constant(Value),
    Wildcard,
    Recursive,
    Union(Vec<Vec<Node>>),
    Range,
    End,
    /// An unrecognized identifier.
    Unknown(Box<str>),
}

/// `[start:end:step]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub start: Option<i64>,
    pub end: Option<i64>,
    /// The end is omitted: the slice is one element.
    pub is_index: bool,
    pub step: Option<i64>,
}

/// `[?(left operator right)]`
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    pub left: Vec<Node>,
    pub right: Vec<Node>,
    pub operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Unknown(Box<str>),
}
