//! Questions to the authorizer. An expression only words them: whoever evaluates it answers, and evaluates it again.

use super::Row;
use crate::types::Type;
use crate::value::{Fault, Outcome, Value};
use std::sync::Arc;

/// What is asked, as far as it has been said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Of whom; `None`: of the user whose request it is.
    pub service_account: Option<(String, String)>,
    pub about: About,
    pub verb: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum About {
    /// Nothing yet: the authorizer itself.
    #[default]
    Nothing,
    Path(String),
    Group(String),
    Resource(ResourceAbout),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAbout {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// What the authorizer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// Questions and their answers. There are few per request.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Check, Arc<Decision>)>);

impl Answers {
    pub fn get(&self, check: &Check) -> Option<Arc<Decision>> {
        self.0.iter().find(|(asked, _)| asked == check).map(|(_, decision)| decision.clone())
    }

    pub fn add(&mut self, check: Check, decision: Decision) {
        self.0.push((check, Arc::new(decision)));
    }
}

impl Check {
    /// The value of a variable `authorizer`.
    pub fn authorizer<'a>() -> Value<'a> {
        Value::Check(Arc::new(Self::default()))
    }

    /// The value of a variable that asks about one resource.
    pub fn resource<'a>(about: ResourceAbout) -> Value<'a> {
        Value::Check(Arc::new(Self { about: About::Resource(about), ..Self::default() }))
    }

    /// The whole question; `None`: nothing is asked about yet.
    pub fn with_verb(&self, verb: &str) -> Option<Self> {
        match self.about {
            About::Path(_) | About::Resource(_) => Some(Self { verb: verb.to_owned(), ..self.clone() }),
            About::Nothing | About::Group(_) => None,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self.about {
            About::Nothing => "kubernetes.authorization.Authorizer",
            About::Path(_) => "kubernetes.authorization.PathCheck",
            About::Group(_) => "kubernetes.authorization.GroupCheck",
            About::Resource(_) => "kubernetes.authorization.ResourceCheck",
        }
    }
}

pub const ROWS: &[Row] = &[
    ("path", &["Authorizer.(string) -> PathCheck"], |values| {
        about(values, |check, path| match check.about {
            About::Nothing if path.is_empty() => Err(Fault::new("path must not be empty")),
            About::Nothing => Ok(About::Path(path.to_owned())),
            _ => Err(Fault::no_such_overload()),
        })
    }),
    ("group", &["Authorizer.(string) -> GroupCheck"], |values| {
        about(values, |check, group| match check.about {
            About::Nothing => Ok(About::Group(group.to_owned())),
            _ => Err(Fault::no_such_overload()),
        })
    }),
    ("resource", &["GroupCheck.(string) -> ResourceCheck"], |values| {
        about(values, |check, resource| match &check.about {
            About::Group(_) if resource.is_empty() => Err(Fault::new("resource must not be empty")),
            About::Group(group) => Ok(About::Resource(ResourceAbout {
                group: group.clone(),
                resource: resource.to_owned(),
                ..ResourceAbout::default()
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
    // Answered by whoever evaluates.
    ("check", &["PathCheck.(string) -> Decision", "ResourceCheck.(string) -> Decision"], |_| {
        Err(Fault::no_such_overload())
    }),
    ("allowed", &["Decision.() -> bool"], |values| said(values, |said| Value::Bool(said.allowed))),
    ("reason", &["Decision.() -> string"], |values| said(values, |said| said.reason.as_str().into())),
    ("errored", &["Decision.() -> bool"], |values| said(values, |said| Value::Bool(said.error.is_some()))),
    ("error", &["Decision.() -> string"], |values| {
        said(values, |said| said.error.as_deref().unwrap_or("").into())
    }),
];

fn about<'a>(values: &[Value<'a>], next: impl Fn(&Check, &str) -> Result<About, Fault>) -> Outcome<'a> {
    match values {
        [Value::Check(check), Value::String(text)] => {
            let about = next(check, text)?;
            Ok(Value::Check(Arc::new(Check { about, ..(**check).clone() })))
        }
        _ => Err(Fault::no_such_overload()),
    }
}

fn detail<'a>(values: &[Value<'a>], set: impl Fn(&mut ResourceAbout, String)) -> Outcome<'a> {
    about(values, |check, text| match &check.about {
        About::Resource(about) => {
            let mut about = about.clone();
            set(&mut about, text.to_owned());
            Ok(About::Resource(about))
        }
        _ => Err(Fault::no_such_overload()),
    })
}

fn said<'a>(values: &[Value<'a>], of: impl Fn(&Decision) -> Value<'a>) -> Outcome<'a> {
    match values {
        [Value::Decision(decision)] => Ok(of(decision)),
        _ => Err(Fault::no_such_overload()),
    }
}

/// The type of the variable `authorizer`.
pub fn authorizer_type() -> Type {
    crate::types::library("kubernetes.authorization.Authorizer")
}

/// The type of a variable that asks about one resource.
pub fn resource_check_type() -> Type {
    crate::types::library("kubernetes.authorization.ResourceCheck")
}
