//! Constraints of a claim on the attributes of all its devices.

use objects::resource::v1::{Device, DeviceAttribute, DeviceConstraint};

use super::request::RequestView;

/// Value of an attribute. Semantic versions have one text each.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AttributeValue<'a> {
    String(&'a str),
    Int(i64),
    Bool(bool),
    Version(&'a str),
    /// A type that cannot be compared.
    Other,
}

impl<'a> AttributeValue<'a> {
    fn of(attribute: &'a DeviceAttribute) -> Self {
        if let Some(value) = &attribute.string {
            return Self::String(value);
        }
        if let Some(value) = attribute.int {
            return Self::Int(value);
        }
        if let Some(value) = attribute.bool {
            return Self::Bool(value);
        }
        attribute.version.as_deref().map_or(Self::Other, Self::Version)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// All devices have the same value.
    Match,
    /// All devices have different values.
    Distinct,
}

/// A constraint and the values of the devices chosen so far.
#[derive(Debug)]
pub struct Constraint<'a> {
    kind: Kind,
    attribute: &'a str,
    requests: &'a [String],
    values: Vec<AttributeValue<'a>>,
}

impl<'a> Constraint<'a> {
    /// `None` for an unknown type of constraint.
    pub fn of(constraint: &'a DeviceConstraint) -> Option<Self> {
        let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Kind::Match, attribute),
            (None, Some(attribute)) => (Kind::Distinct, attribute),
            (None, None) => return None,
        };
        let requests = constraint.requests.as_deref().unwrap_or_default();
        Some(Self { kind, attribute, requests, values: Vec::new() })
    }

    fn applies(&self, request: &RequestView<'_>) -> bool {
        self.requests.is_empty() || request.is_listed(self.requests)
    }

    /// Adds a device unless that violates the constraint.
    pub fn add(&mut self, request: &RequestView<'_>, driver: &str, device: &'a Device) -> bool {
        if !self.applies(request) {
            return true;
        }
        let Some(value) = lookup(device, driver, self.attribute).map(AttributeValue::of) else {
            return false;
        };
        let holds = match self.kind {
            _ if self.values.is_empty() => true,
            _ if value == AttributeValue::Other => false,
            Kind::Match => self.values.first() == Some(&value),
            Kind::Distinct => !self.values.contains(&value),
        };
        if holds {
            self.values.push(value);
        }
        holds
    }

    /// Removes the device that was added last.
    pub fn remove_last(&mut self, request: &RequestView<'_>) {
        if self.applies(request) {
            self.values.pop();
        }
    }
}

/// Attribute by its fully qualified name; names without domain are in the domain of the driver.
fn lookup<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        attributes.get(id).filter(|_| domain == driver)
    })
}
