//! Types of expressions, and their text in messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The type of an expression. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Any type, determined at evaluation.
    Dyn,
    /// Type of an erroneous expression, so that one error is reported once.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    /// The type of types.
    Type(Option<Arc<Type>>),
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Object(Arc<ObjectType>),
    /// A named type without fields.
    Opaque(&'static str),
    Optional(Arc<Type>),
    /// A type variable.
    Variable(u32),
}

/// A type with fields.
#[derive(Debug)]
pub struct ObjectType {
    pub name: String,
    pub fields: Fields,
}

#[derive(Debug)]
pub enum Fields {
    /// No fields.
    None,
    /// A fixed set of fields.
    Known(BTreeMap<String, Type>),
    /// Any field, of any type.
    Any,
}

impl PartialEq for ObjectType {
    /// Types of objects are equal if their names are.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl ObjectType {
    /// Type of a field; `None` if there is no such field.
    pub fn field(&self, name: &str) -> Option<Type> {
        match &self.fields {
            Fields::None => None,
            Fields::Any => Some(Type::Dyn),
            Fields::Known(fields) => fields.get(name).cloned(),
        }
    }
}

impl Type {
    pub fn list(of: Type) -> Self {
        Self::List(Arc::new(of))
    }

    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub fn optional(of: Type) -> Self {
        Self::Optional(Arc::new(of))
    }

    /// An object with these fields.
    pub fn object<N: Into<String>>(
        name: impl Into<String>,
        fields: impl IntoIterator<Item = (N, Type)>,
    ) -> Self {
        let fields = fields.into_iter().map(|(name, of)| (name.into(), of)).collect();
        Self::Object(Arc::new(ObjectType { name: name.into(), fields: Fields::Known(fields) }))
    }

    /// An object with unchecked fields.
    pub fn open_object(name: impl Into<String>) -> Self {
        Self::Object(Arc::new(ObjectType { name: name.into(), fields: Fields::Any }))
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// Type parameters.
    pub(crate) fn parameters(&self) -> Vec<&Type> {
        match self {
            Self::List(of) | Self::Optional(of) | Self::Type(Some(of)) => vec![of],
            Self::Map(of) => vec![&of.0, &of.1],
            _ => Vec::new(),
        }
    }

    /// True if null is a value of this type.
    pub(crate) fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Object(_)
                | Self::Opaque(_)
                | Self::Optional(_)
                | Self::Duration
                | Self::Timestamp
        )
    }

    /// Name of the type, as in the result of `type()` and in "must evaluate to".
    pub fn runtime_name(&self) -> String {
        let of = |name: &str, inner: &[&Type]| {
            let inner: Vec<String> = inner.iter().map(|of| of.runtime_name()).collect();
            format!("{name}({})", inner.join(", "))
        };
        match self {
            Self::Null => "null_type".to_owned(),
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            Self::List(inner) => of("list", &[inner]),
            Self::Map(inner) => of("map", &[&inner.0, &inner.1]),
            Self::Optional(inner) => of("optional_type", &[inner]),
            Self::Type(Some(inner)) => of("type", &[inner]),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Type {
    /// Text of the type in messages of the type checker.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::Type(None) => f.write_str("type"),
            Self::Type(Some(of)) => write!(f, "type({of})"),
            Self::List(of) => write!(f, "list({of})"),
            Self::Map(of) => write!(f, "map({}, {})", of.0, of.1),
            Self::Object(of) => f.write_str(&of.name),
            Self::Opaque(name) => f.write_str(name),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Variable(id) => write!(f, "_var{id}"),
        }
    }
}

/// Signature of a function: `string.(int) -> string` has a string receiver, `(string) -> bool` has no receiver. `A`
/// and `B` are type parameters.
#[derive(Clone, Debug)]
pub struct Signature {
    pub is_member: bool,
    /// Parameters, the receiver of a member first.
    pub arguments: Vec<Type>,
    pub result: Type,
    /// Number of type parameters used, as variables 0 and 1.
    pub variables: u32,
}

impl Signature {
    /// Parses a signature; `None` if it is malformed. A test parses every signature in the tables of this crate.
    pub fn parse(text: &str) -> Option<Self> {
        let (call, result) = text.split_once(" -> ")?;
        let open = match call.find(".(") {
            Some(at) => at + 1,
            None => call.starts_with('(').then_some(0)?,
        };
        let (receiver, rest) = call.split_at(open);
        let inner = rest.strip_prefix('(')?.strip_suffix(')')?;
        let mut arguments = Vec::new();
        if let Some(receiver) = receiver.strip_suffix('.') {
            arguments.push(named(receiver)?);
        }
        for argument in split_top(inner) {
            arguments.push(named(argument)?);
        }
        Some(Self {
            is_member: !receiver.is_empty(),
            arguments,
            result: named(result)?,
            variables: if text.contains('B') { 2 } else { u32::from(text.contains('A')) },
        })
    }
}

/// Splits at commas outside parentheses.
fn split_top(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or("").trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text.get(start..).unwrap_or("").trim();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}

fn named(text: &str) -> Option<Type> {
    if let Some((outer, inner)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let inner: Vec<Type> = split_top(inner).into_iter().map(named).collect::<Option<_>>()?;
        return match (outer, inner.as_slice()) {
            ("list", [of]) => Some(Type::list(of.clone())),
            ("map", [key, value]) => Some(Type::map(key.clone(), value.clone())),
            ("optional", [of]) => Some(Type::optional(of.clone())),
            ("type", [of]) => Some(Type::Type(Some(Arc::new(of.clone())))),
            _ => None,
        };
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Type(None),
        "A" => Type::Variable(0),
        "B" => Type::Variable(1),
        "Ip" => Type::Opaque("net.IP"),
        "Cidr" => Type::Opaque("net.CIDR"),
        "Url" => library("kubernetes.URL"),
        "Quantity" => library("kubernetes.Quantity"),
        "Semver" => library("kubernetes.Semver"),
        "Format" => library("kubernetes.NamedFormat"),
        "Authorizer" => library("kubernetes.authorization.Authorizer"),
        "PathCheck" => library("kubernetes.authorization.PathCheck"),
        "GroupCheck" => library("kubernetes.authorization.GroupCheck"),
        "ResourceCheck" => library("kubernetes.authorization.ResourceCheck"),
        "Decision" => library("kubernetes.authorization.Decision"),
        _ => return None,
    })
}

/// A type of a library, with functions and without fields.
pub fn library(name: &str) -> Type {
    Type::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_parse() {
        let of = |text| Signature::parse(text).expect(text);
        let member = of("list(A).(A, map(A, B)) -> optional(B)");
        assert!(member.is_member);
        assert_eq!((member.arguments.len(), member.variables), (3, 2));
        assert_eq!(member.result.to_string(), "optional_type(_var1)");
        let global = of("(string, int) -> list(string)");
        assert!(!global.is_member);
        assert_eq!((global.arguments.len(), global.variables), (2, 0));
        assert_eq!(of("() -> Format").arguments.len(), 0);
        assert!(Signature::parse("string -> int").is_none());
        assert!(Signature::parse("(strange) -> int").is_none());
    }

    #[test]
    fn types_have_checker_and_runtime_names() {
        for (of, checked, runtime) in [
            (Type::Null, "null", "null_type"),
            (Type::list(Type::Timestamp), "list(timestamp)", "list(google.protobuf.Timestamp)"),
            (Type::map(Type::String, Type::Dyn), "map(string, dyn)", "map(string, dyn)"),
            (Type::open_object("Object"), "Object", "Object"),
        ] {
            assert_eq!((of.to_string().as_str(), of.runtime_name().as_str()), (checked, runtime));
        }
    }
}
