//! Format-independent model of a path: its operations with their parameters and responses.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Location of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParameterLocation {
    Path,
    Query,
}

/// A parameter besides the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub location: ParameterLocation,
    /// `string`, `integer` or `boolean`.
    pub kind: &'static str,
    pub text: Arc<str>,
}

/// Content of a body or a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A type of the document by its full name.
    Type(Arc<str>),
    /// Any text.
    Text,
}

#[derive(Clone, Debug)]
pub struct Body {
    pub content: Content,
    pub required: bool,
}

#[derive(Clone, Debug)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// One method of a path.
#[derive(Clone, Debug)]
pub struct Operation {
    /// In lower case.
    pub method: &'static str,
    pub id: String,
    pub text: String,
    pub tag: String,
    /// Kubernetes' name of the action; empty for non-resource paths.
    pub action: &'static str,
    pub kind: Option<GroupVersionKind>,
    pub consumes: &'static [&'static str],
    pub produces: &'static [&'static str],
    pub parameters: Vec<Parameter>,
    pub body: Option<Body>,
    /// The response and its status codes.
    pub answer: Content,
    pub codes: &'static [(&'static str, &'static str)],
}

/// One path with its operations; common parameters are at the path.
#[derive(Clone, Debug)]
pub struct PathItem {
    pub operations: Vec<Operation>,
    pub parameters: Vec<Parameter>,
}

impl PathItem {
    /// Moves the parameters common to all operations up to the path and sorts the others.
    fn of(mut operations: Vec<Operation>) -> Self {
        let mut common: Vec<Parameter> = match operations.split_first() {
            None => Vec::new(),
            Some((first, others)) => first
                .parameters
                .iter()
                .filter(|parameter| others.iter().all(|other| other.parameters.contains(parameter)))
                .cloned()
                .collect(),
        };
        for operation in &mut operations {
            operation.parameters.retain(|parameter| !common.contains(parameter));
            operation.parameters.sort_by_key(|parameter| (parameter.name, parameter.location));
        }
        common.sort_by_key(|parameter| (parameter.name, parameter.location));
        PathItem { operations, parameters: common }
    }

    /// Types used by its operations.
    pub fn types(&self) -> impl Iterator<Item = &Arc<str>> {
        self.operations.iter().flat_map(|operation| {
            let body = operation.body.as_ref().map(|body| &body.content);
            body.into_iter().chain([&operation.answer]).filter_map(|content| match content {
                Content::Type(name) => Some(name),
                Content::Text => None,
            })
        })
    }
}

/// Operations by path, before they become path items.
#[derive(Debug, Default)]
pub struct Routes {
    paths: BTreeMap<String, Vec<Operation>>,
}

impl Routes {
    /// A single route.
    pub fn of(path: String, operation: Operation) -> Self {
        Self { paths: BTreeMap::from([(path, vec![operation])]) }
    }

    pub fn add(&mut self, path: String, operation: Operation) {
        self.paths.entry(path).or_default().push(operation);
    }

    pub fn finish(self) -> BTreeMap<String, PathItem> {
        self.paths.into_iter().map(|(path, operations)| (path, PathItem::of(operations))).collect()
    }
}

pub const OK: &[(&str, &str)] = &[("200", "OK")];
pub const OK_CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
pub const OK_ACCEPTED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];
pub const OK_CREATED_ACCEPTED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];

pub const ANYTHING: &[&str] = &["*/*"];
pub const JSON: &[&str] = &["application/json"];
pub const ENCODINGS: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
