//! Authorizer checks. An expression only describes them: the caller of the evaluation performs them and evaluates
//! again.

use super::Row;
use crate::types::Type;
use crate::value::{EvaluationResult, Fault, Value};
use std::sync::Arc;

/// Attributes of an authorizer check, as far as they are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Service account to check; `None` for the user of the request.
    pub service_account: Option<(String, String)>,
    pub about: CheckTarget,
    pub verb: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckTarget {
    /// The authorizer itself, without attributes.
    #[default]
    Nothing,
    Path(String),
    Group(String),
    Resource(ResourceTarget),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceTarget {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// Decision of the authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// Checks and their decisions. There are few per request.
#[derive(Debug, Default)]
pub struct Decisions(Vec<(Check, Arc<Decision>)>);

impl Decisions {
    pub fn get(&self, check: &Check) -> Option<Arc<Decision>> {
        self.0.iter().find(|(candidate, _)| candidate == check).map(|(_, decision)| decision.clone())
    }

    pub fn add(&mut self, check: Check, decision: Decision) {
        self.0.push((check, Arc::new(decision)));
    }
}

impl Check {
    /// Value of the variable `authorizer`.
    pub fn authorizer<'a>() -> Value<'a> {
        Value::Check(Arc::new(Self::default()))
    }

    /// Value of a variable for checks of one resource.
    pub fn resource<'a>(about: ResourceTarget) -> Value<'a> {
        Value::Check(Arc::new(Self { about: CheckTarget::Resource(about), ..Self::default() }))
    }

    /// The complete check; `None` if the resource or path is not set.
    pub fn with_verb(&self, verb: &str) -> Option<Self> {
        match self.about {
            CheckTarget::Path(_) | CheckTarget::Resource(_) => {
                Some(Self { verb: verb.to_owned(), ..self.clone() })
            }
            CheckTarget::Nothing | CheckTarget::Group(_) => None,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self.about {
            CheckTarget::Nothing => "kubernetes.authorization.Authorizer",
            CheckTarget::Path(_) => "kubernetes.authorization.PathCheck",
            CheckTarget::Group(_) => "kubernetes.authorization.GroupCheck",
            CheckTarget::Resource(_) => "kubernetes.authorization.ResourceCheck",
        }
    }
}

pub const ROWS: &[Row] = &[
    ("path", &["Authorizer.(string) -> PathCheck"], |values| {
        about(values, |check, path| match check.about {
            CheckTarget::Nothing if path.is_empty() => Err(Fault::new("path must not be empty")),
            CheckTarget::Nothing => Ok(CheckTarget::Path(path.to_owned())),
            _ => Err(Fault::no_such_overload()),
        })
    }),
    ("group", &["Authorizer.(string) -> GroupCheck"], |values| {
        about(values, |check, group| match check.about {
            CheckTarget::Nothing => Ok(CheckTarget::Group(group.to_owned())),
            _ => Err(Fault::no_such_overload()),
        })
    }),
    ("resource", &["GroupCheck.(string) -> ResourceCheck"], |values| {
        about(values, |check, resource| match &check.about {
            CheckTarget::Group(_) if resource.is_empty() => Err(Fault::new("resource must not be empty")),
            CheckTarget::Group(group) => Ok(CheckTarget::Resource(ResourceTarget {
                group: group.clone(),
                resource: resource.to_owned(),
                ..ResourceTarget::default()
            })),
            _ => Err(Fault::no_such_overload()),
        })
    }),
    ("subresource", &["ResourceCheck.(string) -> ResourceCheck"], |values| {
        detail(values, |about, text| about.subresource = text)
    }),
    ("namespace", &["ResourceCheck.(string) -> ResourceCheck"], |values| {
        detail(values, |about, text| about.namespace = text)
    }),
    ("name", &["ResourceCheck.(string) -> ResourceCheck"], |values| {
        detail(values, |about, text| about.name = text)
    }),
    ("fieldSelector", &["ResourceCheck.(string) -> ResourceCheck"], |values| {
        detail(values, |about, text| about.field_selector = text)
    }),
    ("labelSelector", &["ResourceCheck.(string) -> ResourceCheck"], |values| {
        detail(values, |about, text| about.label_selector = text)
    }),
    ("serviceAccount", &["Authorizer.(string, string) -> Authorizer"], |values| match values {
        [Value::Check(check), Value::String(namespace), Value::String(name)] => {
            if !machinery::names::dns_subdomain(name, false).is_empty() {
                return Err(Fault::new("Invalid service account name"));
            }
            if !machinery::names::dns_label(namespace, false).is_empty() {
                return Err(Fault::new("Invalid service account namespace"));
            }
            let service_account = Some(((**namespace).to_owned(), (**name).to_owned()));
            Ok(Value::Check(Arc::new(Check { service_account, ..(**check).clone() })))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    // Performed by the caller of the evaluation.
    ("check", &["PathCheck.(string) -> Decision", "ResourceCheck.(string) -> Decision"], |_| {
        Err(Fault::no_such_overload())
    }),
    ("allowed", &["Decision.() -> bool"], |values| {
        with_decision(values, |decision| Value::Bool(decision.allowed))
    }),
    ("reason", &["Decision.() -> string"], |values| {
        with_decision(values, |decision| decision.reason.as_str().into())
    }),
    ("errored", &["Decision.() -> bool"], |values| {
        with_decision(values, |decision| Value::Bool(decision.error.is_some()))
    }),
    ("error", &["Decision.() -> string"], |values| {
        with_decision(values, |decision| decision.error.as_deref().unwrap_or("").into())
    }),
];

fn about<'a>(
    values: &[Value<'a>],
    next: impl Fn(&Check, &str) -> Result<CheckTarget, Fault>,
) -> EvaluationResult<'a> {
    match values {
        [Value::Check(check), Value::String(text)] => {
            let about = next(check, text)?;
            Ok(Value::Check(Arc::new(Check { about, ..(**check).clone() })))
        }
        _ => Err(Fault::no_such_overload()),
    }
}

fn detail<'a>(values: &[Value<'a>], set: impl Fn(&mut ResourceTarget, String)) -> EvaluationResult<'a> {
    about(values, |check, text| match &check.about {
        CheckTarget::Resource(about) => {
            let mut about = about.clone();
            set(&mut about, text.to_owned());
            Ok(CheckTarget::Resource(about))
        }
        _ => Err(Fault::no_such_overload()),
    })
}

fn with_decision<'a>(values: &[Value<'a>], of: impl Fn(&Decision) -> Value<'a>) -> EvaluationResult<'a> {
    match values {
        [Value::Decision(decision)] => Ok(of(decision)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// Type of the variable `authorizer`.
pub fn authorizer_type() -> Type {
    crate::types::library("kubernetes.authorization.Authorizer")
}

/// Type of a variable for checks of one resource.
pub fn resource_check_type() -> Type {
    crate::types::library("kubernetes.authorization.ResourceCheck")
}
