//! One schema model for built-in kinds and custom resources.
//!
//! A [`Schema`] is an arena of nodes. Code walks it with the copyable [`SchemaRef`]; attributes of one usage of a
//! type (list type, merge key, default, protobuf number) are on the node or field that uses it.

use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// JSON shape of a value, and its protobuf encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Any value; fields inside are unknown and retained (RawExtension, JSON, FieldsV1).
    Any,
    /// A struct: known fields only.
    Object,
    /// A map from string to one type of value.
    Map,
    List,
    String,
    /// Base64 in JSON, bytes in protobuf.
    Bytes,
    Int32,
    Int64,
    /// A floating-point number.
    Number,
    Boolean,
    Quantity,
    IntOrString,
    /// RFC 3339 with seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// A Go duration string such as `1h0m0s`.
    Duration,
}

/// List type for server-side apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// Patch strategy of a field in strategic merge patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    pub merge: bool,
    pub replace: bool,
    pub retain_keys: bool,
}

/// Protobuf position of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proto {
    /// 0: the field is not in protobuf under its own number.
    pub number: u32,
    pub wire: ProtoType,
}

/// The declared protobuf type of a scalar; messages and maps follow the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtoType {
    #[default]
    Message,
    String,
    Bytes,
    Bool,
    Int32,
    Int64,
    UInt32,
    UInt64,
    Double,
}

/// Condition for writing a struct's field: the effect of Go's `omitempty`, pointers and plain values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// A zero value (`0`, `""`, `false`, empty list or map, `null`) is omitted.
    #[default]
    OmitZero,
    /// Omitted when absent or `null`; a zero value is retained (an optional pointer).
    OmitAbsent,
    /// Always written: the zero value replaces an absent one (`{}`, `""`, `0`, `null` for lists).
    Always,
}

/// Position of a node in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub u32);

/// One type or one usage of a list or map.
#[derive(Clone, Debug)]
pub struct Node {
    /// `io.k8s.api.core.v1.Container` for named types, empty for the others.
    pub name: Arc<str>,
    pub shape: Shape,
    /// Fields of an object, sorted by JSON name.
    pub fields: Vec<Field>,
    /// The item of a list or the value of a map.
    pub element: Option<NodeId>,
    /// Default of an element (items that default to `{}` or `""`).
    pub element_default: Option<Value>,
    pub list_type: ListType,
    /// The schema states the list's type; otherwise it is atomic by default.
    pub has_list_type: bool,
    pub map_keys: Vec<Arc<str>>,
    /// Maps and structs: replaced as a whole by server-side apply.
    pub atomic: bool,
    pub enumeration: Vec<Arc<str>>,
    /// `null` is a valid value (custom resources).
    pub nullable: bool,
    /// Unknown fields below are retained (custom resources).
    pub preserve_unknown: bool,
    /// Group, version and kind of a top-level type.
    pub gvks: Vec<KindKey>,
    /// JSON names that protobuf nests in one message, with that message's number.
    pub nested: Vec<Nested>,
    /// Name of this type in type errors, if its shape does not determine it: `v1.PullPolicy`. Empty otherwise.
    pub alias: Arc<str>,
    /// No type in OpenAPI: messages that exist only in protobuf.
    pub hidden: bool,
    /// A list that protobuf wraps in a message (field 1 repeats).
    pub wrapped: bool,
    /// One of two forms in JSON, a message with a field for each in protobuf.
    pub union: Option<Union>,
    /// Fields and nested messages in the order of their protobuf numbers, set by [`Schema::finish`].
    pub wire: Vec<Wire>,
    /// Indexes of the fields that are always written, set by [`Schema::finish`].
    pub always: Vec<u16>,
    /// Leading bytes of the fields' names, in order, set by [`Schema::finish`]: a search touches one block of memory
    /// instead of one per name.
    pub heads: Vec<u64>,
}

/// The first eight bytes of a name as a number; numbers are ordered like names.
fn head(name: &str) -> u64 {
    let bytes = name.as_bytes();
    if let Some(first) = bytes.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
        return u64::from(first) << 32 | u64::from(last) << (8 * (8 - bytes.len()));
    }
    bytes.iter().zip([56, 48, 40]).fold(0, |number, (byte, shift)| number | u64::from(*byte) << shift)
}

/// The types of a custom resource's schema that are either a schema or a simpler value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Union {
    SchemaOrArray,
    SchemaOrBool,
    SchemaOrStrings,
}

/// One position of a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Index into the node's fields.
    Field(u16),
    /// Index into the node's nested messages.
    Nested(u16),
}

/// Fields that JSON inlines and protobuf nests in a message.
#[derive(Clone, Debug)]
pub struct Nested {
    pub number: u32,
    /// An object node of this arena holding the fields with their numbers.
    pub node: NodeId,
}

#[derive(Clone, Debug)]
pub struct Field {
    pub name: Arc<str>,
    pub node: NodeId,
    pub required: bool,
    pub default: Option<Value>,
    pub patch: PatchStrategy,
    pub merge_key: Option<Arc<str>>,
    /// This usage of a struct or map is replaced as a whole, regardless of its type.
    pub atomic: bool,
    /// This usage merges field by field, regardless of its type (`map-type: granular`).
    pub granular: bool,
    pub presence: Presence,
    /// Absent and zero differ: protobuf omits it only when absent, and `Always` writes `null`.
    pub pointer: bool,
    pub proto: Proto,
}

impl Field {
    /// A field of a type with defaults for everything else.
    pub fn new(name: &str, node: NodeId) -> Self {
        Self {
            name: Arc::from(name),
            node,
            required: false,
            default: None,
            patch: PatchStrategy::default(),
            merge_key: None,
            atomic: false,
            granular: false,
            presence: Presence::default(),
            pointer: false,
            proto: Proto::default(),
        }
    }
}

/// Group, version and kind.
pub type KindKey = (Arc<str>, Arc<str>, Arc<str>);

/// An arena of types with names.
///
/// ```
/// use machinery::schema::{Field, Node, Schema, Shape};
///
/// let mut schema = Schema::default();
/// let text = schema.push(Node::of(Shape::String));
/// let mut widget = Node::of(Shape::Object);
/// widget.fields.push(Field::new("color", text));
/// let widget = schema.push(widget);
/// schema.kinds.insert(("example.com".into(), "v1".into(), "Widget".into()), widget);
/// schema.finish();
///
/// let widget = schema.kind("example.com", "v1", "Widget").expect("the kind");
/// assert_eq!(widget.field("color").expect("the field").shape(), Shape::String);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Schema {
    pub nodes: Vec<Node>,
    pub names: HashMap<Arc<str>, NodeId>,
    pub kinds: HashMap<KindKey, NodeId>,
}

/// A node with its arena.
#[derive(Clone, Copy, Debug)]
pub struct SchemaRef<'a> {
    pub schema: &'a Schema,
    pub id: NodeId,
    /// This usage is atomic (or, if `Some(false)`, granular) regardless of its type.
    atomic: Option<bool>,
}

/// A type that owns a reference to its arena, for holders that outlive a borrow of the schema.
#[derive(Clone, Debug)]
pub struct TypeHandle(Handle);

#[derive(Clone, Debug)]
enum Handle {
    Made { schema: Arc<Schema>, id: NodeId },
    Lazy(Arc<dyn TypeSource>),
}

/// A type whose arena is built on first use.
pub trait TypeSource: std::fmt::Debug + Send + Sync {
    fn type_ref(&self) -> SchemaRef<'_>;
}

impl TypeHandle {
    pub fn new(schema: Arc<Schema>, id: NodeId) -> Self {
        Self(Handle::Made { schema, id })
    }

    /// The type of a top-level kind.
    pub fn of_kind(schema: &Arc<Schema>, group: &str, version: &str, kind: &str) -> Option<Self> {
        let id = schema.kind(group, version, kind)?.id;
        Some(Self::new(Arc::clone(schema), id))
    }

    /// A type that is built on first use.
    pub fn lazy(source: Arc<dyn TypeSource>) -> Self {
        Self(Handle::Lazy(source))
    }

    pub fn get(&self) -> SchemaRef<'_> {
        match &self.0 {
            Handle::Made { schema, id } => schema.at(*id),
            Handle::Lazy(source) => source.type_ref(),
        }
    }
}

impl Node {
    /// A node of a shape with everything else empty.
    pub fn of(shape: Shape) -> Self {
        static EMPTY: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));
        Self {
            name: Arc::clone(&EMPTY),
            shape,
            fields: Vec::new(),
            element: None,
            element_default: None,
            list_type: ListType::Atomic,
            has_list_type: false,
            map_keys: Vec::new(),
            atomic: false,
            enumeration: Vec::new(),
            nullable: false,
            preserve_unknown: false,
            gvks: Vec::new(),
            nested: Vec::new(),
            alias: Arc::clone(&EMPTY),
            hidden: false,
            wrapped: false,
            union: None,
            wire: Vec::new(),
            always: Vec::new(),
            heads: Vec::new(),
        }
    }
}

impl Schema {
    pub fn at(&self, id: NodeId) -> SchemaRef<'_> {
        SchemaRef { schema: self, id, atomic: None }
    }

    /// A type by its full name: `io.k8s.api.core.v1.Pod`.
    pub fn named(&self, name: &str) -> Option<SchemaRef<'_>> {
        self.names.get(name).map(|id| self.at(*id))
    }

    /// The type of a top-level kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<SchemaRef<'_>> {
        let key = (Arc::from(group), Arc::from(version), Arc::from(kind));
        self.kinds.get(&key).map(|id| self.at(*id))
    }

    /// Sorts every struct's fields by name and computes their protobuf order. Called once, after all nodes were
    /// added.
    pub fn finish(&mut self) {
        for node in &mut self.nodes {
            node.fields.sort_by(|a, b| a.name.cmp(&b.name));
            let mut wire: Vec<(u32, Wire)> = Vec::new();
            let mut always = Vec::new();
            for (index, field) in (0u16..).zip(&node.fields) {
                if field.proto.number != 0 {
                    wire.push((field.proto.number, Wire::Field(index)));
                }
                if field.presence == Presence::Always {
                    always.push(index);
                }
            }
            for (index, nested) in (0u16..).zip(&node.nested) {
                wire.push((nested.number, Wire::Nested(index)));
            }
            wire.sort_by_key(|(number, _)| *number);
            node.wire = wire.into_iter().map(|(_, wire)| wire).collect();
            node.always = always;
            node.heads = node.fields.iter().map(|field| head(&field.name)).collect();
        }
    }

    /// Adds a node and returns its id.
    pub fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 schema nodes"));
        self.nodes.push(node);
        id
    }
}

impl<'a> SchemaRef<'a> {
    pub fn node(self) -> &'a Node {
        &self.schema.nodes[self.id.0 as usize]
    }

    pub fn shape(self) -> Shape {
        self.node().shape
    }

    pub fn fields(self) -> &'a [Field] {
        &self.node().fields
    }

    /// The declaration of a struct's field.
    pub fn field_decl(self, name: &str) -> Option<&'a Field> {
        self.position(name).map(|at| &self.fields()[at])
    }

    /// Index of a struct's field in [`Self::fields`].
    pub fn position(self, name: &str) -> Option<usize> {
        let Node { fields, heads, .. } = self.node();
        if heads.len() != fields.len() {
            return fields.binary_search_by(|field| field.name.as_ref().cmp(name)).ok();
        }
        let wanted = head(name);
        let mut at = heads.partition_point(|head| *head < wanted);
        while heads.get(at) == Some(&wanted) {
            let candidate = fields[at].name.as_ref();
            // The heads of short names contain the whole name.
            if candidate.len() == name.len() && (name.len() <= 8 || candidate == name) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// The type of a struct's field, with the attributes of this usage.
    pub fn field(self, name: &str) -> Option<SchemaRef<'a>> {
        self.field_decl(name).map(|f| self.of_field(f))
    }

    /// The type behind a field declaration of this node.
    pub fn of_field(self, field: &Field) -> SchemaRef<'a> {
        let atomic = match (field.atomic, field.granular) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        SchemaRef { schema: self.schema, id: field.node, atomic }
    }

    /// The item of a list or the value of a map.
    pub fn element(self) -> Option<SchemaRef<'a>> {
        self.node().element.map(|id| self.schema.at(id))
    }

    /// The type of the member `name`: a struct's field or any key of a map.
    pub fn child(self, name: &str) -> Option<SchemaRef<'a>> {
        match self.shape() {
            Shape::Object => self.field(name),
            Shape::Map => self.element(),
            _ => None,
        }
    }

    /// Replaced as a whole by server-side apply: scalars, atomic lists, atomic structs and maps.
    pub fn is_atomic(self) -> bool {
        match self.shape() {
            Shape::Object | Shape::Map => self.atomic.unwrap_or(self.node().atomic),
            Shape::List => self.node().list_type == ListType::Atomic,
            _ => true,
        }
    }

    pub fn list_type(self) -> ListType {
        self.node().list_type
    }

    pub fn map_keys(self) -> &'a [Arc<str>] {
        &self.node().map_keys
    }

    /// Name of this type in type errors: `string`, `v1.Container`, `[]v1.Container`, `map[string]string`.
    pub fn type_name(self) -> String {
        let node = self.node();
        if !node.alias.is_empty() {
            return node.alias.to_string();
        }
        if !node.name.is_empty() {
            let start = node.name.rmatch_indices('.').nth(1).map_or(0, |(at, _)| at + 1);
            return node.name[start..].to_owned();
        }
        let element = || self.element().map_or_else(|| "interface {}".to_owned(), SchemaRef::type_name);
        match node.shape {
            Shape::Any => "interface {}".to_owned(),
            Shape::Object => "struct {}".to_owned(),
            Shape::Map => format!("map[string]{}", element()),
            Shape::List => format!("[]{}", element()),
            Shape::String => "string".to_owned(),
            Shape::Bytes => "[]uint8".to_owned(),
            Shape::Int32 => "int32".to_owned(),
            Shape::Int64 => "int64".to_owned(),
            Shape::Number => "float64".to_owned(),
            Shape::Boolean => "bool".to_owned(),
            Shape::Quantity => "resource.Quantity".to_owned(),
            Shape::IntOrString => "intstr.IntOrString".to_owned(),
            Shape::Time => "v1.Time".to_owned(),
            Shape::MicroTime => "v1.MicroTime".to_owned(),
            Shape::Duration => "v1.Duration".to_owned(),
        }
    }

    pub fn preserves_unknown(self) -> bool {
        self.shape() == Shape::Any || self.node().preserve_unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn field_lookup_finds_all_names(
            names in prop::collection::btree_set("[ab]{0,3}|abcdefg[ab]{0,4}|[a-c]{4,10}", 0..40),
            other in "[ab]{0,3}|abcdefg[ab]{0,4}|[a-c]{4,10}",
        ) {
            let mut schema = Schema::default();
            let mut node = Node::of(Shape::Object);
            node.fields = names.iter().rev().map(|name| Field::new(name, NodeId(0))).collect();
            let id = schema.push(node);
            schema.finish();
            let found = |name: &str| schema.at(id).field_decl(name).map(|field| field.name.to_string());
            for name in &names {
                prop_assert_eq!(found(name), Some(name.clone()));
            }
            prop_assert_eq!(found(&other), names.get(&other).cloned());
        }
    }
}
