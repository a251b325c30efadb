//! Compiled nodes of a schema: immutable, shared, and small, because a cluster has many definitions with many fields.
//!
//! Fields that most nodes lack are behind one pointer. Equal nodes are shared ([`super::intern`]).

use super::patterns::Pattern;
use super::programs::Rules;
use machinery::Value;
use machinery::schema::ListType;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// Declared type of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeType {
    /// No type, or one that validation ignores.
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl NodeType {
    pub fn of(name: &str) -> Self {
        match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::Any,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `additionalProperties`; its schema is in [`Node::additional`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Additional {
    #[default]
    Unset,
    Allowed,
    Forbidden,
    Schema,
}

/// Properties of a node and all nodes below it, by which walks skip subtrees without work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Below {
    pub rules: bool,
    pub defaults: bool,
    /// Lists of type set or map.
    pub keyed_lists: bool,
    pub embedded: bool,
}

impl Below {
    fn add(&mut self, other: Below) {
        self.rules |= other.rules;
        self.defaults |= other.defaults;
        self.keyed_lists |= other.keyed_lists;
        self.embedded |= other.embedded;
    }
}

/// Named field of an object.
#[derive(Clone, Debug)]
pub struct Property {
    pub name: Arc<str>,
    pub node: Arc<Node>,
}

/// One node of a schema.
#[derive(Debug, Default)]
pub struct Node {
    pub kind: NodeType,
    pub nullable: bool,
    pub int_or_string: bool,
    pub embedded: bool,
    pub preserve_unknown: bool,
    /// `x-kubernetes-map-type: atomic`
    pub atomic_map: bool,
    /// The schema sets a list type.
    pub has_list_type: bool,
    pub list_type: ListType,
    pub additional_properties: Additional,
    pub below: Below,
    /// Sorted by name.
    pub properties: Box<[Property]>,
    pub items: Option<Arc<Node>>,
    pub additional: Option<Arc<Node>>,
    pub default: Option<Arc<Value>>,
    pub checks: Option<Arc<Checks>>,
    pub rules: Option<Arc<Rules>>,
}

/// Value validation and other rare attributes of a node.
#[derive(Debug, Default, PartialEq)]
pub struct Checks {
    /// Source text, including formats that do not apply to the type.
    pub format: Option<Arc<str>>,
    pub format_is_known: bool,
    pub pattern: Option<Arc<Pattern>>,
    pub enumeration: Box<[Value]>,
    pub required: Box<[Arc<str>]>,
    /// `x-kubernetes-list-map-keys`
    pub map_keys: Box<[Arc<str>]>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub multiple_of: Option<f64>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub unique_items: bool,
    pub min_length: Option<i64>,
    pub max_length: Option<i64>,
    pub min_items: Option<i64>,
    pub max_items: Option<i64>,
    pub min_properties: Option<i64>,
    pub max_properties: Option<i64>,
    pub all_of: Box<[Arc<Node>]>,
    pub any_of: Box<[Arc<Node>]>,
    pub one_of: Box<[Arc<Node>]>,
    pub not: Option<Arc<Node>>,
}

/// Checks of nodes without any.
static NO_CHECKS: LazyLock<Checks> = LazyLock::new(Checks::default);

impl Node {
    pub fn property(&self, name: &str) -> Option<&Arc<Node>> {
        let at = self.properties.binary_search_by(|property| property.name.as_ref().cmp(name)).ok()?;
        Some(&self.properties[at].node)
    }

    /// Node of a field: a named one, or that of additional fields.
    pub fn member(&self, name: &str) -> Option<&Arc<Node>> {
        self.property(name).or(self.additional.as_ref())
    }

    pub fn checks(&self) -> &Checks {
        self.checks.as_deref().unwrap_or(&NO_CHECKS)
    }

    /// Format that values are validated against; empty if none.
    pub fn format(&self) -> &str {
        self.checks.as_ref().and_then(|checks| checks.format.as_deref()).unwrap_or("")
    }

    pub fn map_keys(&self) -> &[Arc<str>] {
        &self.checks().map_keys
    }

    /// True for lists of type map that have keys.
    pub fn is_map_list(&self) -> bool {
        self.kind == NodeType::Array && self.list_type == ListType::Map && !self.map_keys().is_empty()
    }

    /// Completes a node whose children are set.
    #[must_use]
    pub fn finished(mut self) -> Self {
        let mut below = Below {
            rules: self.rules.is_some(),
            defaults: self.default.is_some(),
            keyed_lists: self.list_type != ListType::Atomic,
            embedded: self.embedded,
        };
        let parts = self.properties.iter().map(|property| &property.node);
        for part in parts.chain(&self.items).chain(&self.additional) {
            below.add(part.below);
        }
        self.below = below;
        self
    }

    /// Hash for the lookup of equal nodes. Children are hashed by address, as equal ones are already shared.
    pub fn digest(&self) -> u64 {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut hasher = SEED.build_hasher();
        let head = (self.kind, self.nullable, self.int_or_string, self.embedded, self.preserve_unknown);
        head.hash(&mut hasher);
        (self.atomic_map, self.has_list_type, self.list_type, self.additional_properties).hash(&mut hasher);
        for property in &self.properties {
            property.name.hash(&mut hasher);
            Arc::as_ptr(&property.node).hash(&mut hasher);
        }
        for part in [&self.items, &self.additional] {
            part.as_ref().map(Arc::as_ptr).hash(&mut hasher);
        }
        self.default.is_some().hash(&mut hasher);
        if let Some(checks) = &self.checks {
            checks.required.hash(&mut hasher);
            checks.format.hash(&mut hasher);
            (checks.max_length, checks.min_length, checks.enumeration.len()).hash(&mut hasher);
            checks.pattern.as_ref().map(|pattern| pattern.text()).hash(&mut hasher);
            checks.enumeration.first().and_then(Value::as_str).hash(&mut hasher);
        }
        hasher.finish()
    }
}

fn is_same(one: &Option<Arc<Node>>, other: &Option<Arc<Node>>) -> bool {
    one.as_ref().map(Arc::as_ptr) == other.as_ref().map(Arc::as_ptr)
}

impl PartialEq for Property {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.node, &other.node)
    }
}

impl PartialEq for Node {
    /// Children are compared by address. Nodes with rules are never equal, because programs are not compared.
    fn eq(&self, other: &Self) -> bool {
        let head = |node: &Node| {
            (
                (node.kind, node.nullable, node.int_or_string, node.embedded, node.preserve_unknown),
                (node.atomic_map, node.has_list_type, node.list_type, node.additional_properties),
            )
        };
        head(self) == head(other)
            && self.rules.is_none()
            && other.rules.is_none()
            && self.properties == other.properties
            && is_same(&self.items, &other.items)
            && is_same(&self.additional, &other.additional)
            && self.default == other.default
            && self.checks == other.checks
    }
}
