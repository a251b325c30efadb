//! Rules of a kind for the API server, for built-in kinds and custom resources.

use crate::field_selectors::UnsupportedField;
use crate::kind::{
    CellContext, Column, Graceful, Kind, MetadataCheck, Scale, Table, Text, keep_all_but_status,
};
use crate::tables;
use machinery::Value;
use machinery::apply::Reset;
use machinery::codec::typed::{self, Report, TypeError};
use machinery::field::ErrorList;
use machinery::schema::SchemaRef;
use std::borrow::Cow;
use std::fmt;

/// Defaults, preparation, validation, update strategy and reset fields of a kind. The default bodies fit a kind with
/// a status subresource and no rules of its own; [`Kind`] documents each method.
pub trait Rules: Send + Sync {
    /// Errors in the metadata of a new object.
    fn metadata_errors(&self, object: &Value) -> ErrorList;
    /// Errors in metadata changes of an object.
    fn metadata_update_errors(&self, new: &Value, old: &Value) -> ErrorList;

    fn any_finalizer(&self) -> bool {
        false
    }

    fn metadata_last(&self) -> bool {
        false
    }

    fn metadata_on_update(&self) -> &'static [MetadataCheck] {
        &[MetadataCheck::Update]
    }

    fn metadata_on_status_update(&self) -> &'static [MetadataCheck] {
        &[MetadataCheck::Update]
    }

    fn generates_no_suffix(&self) -> bool {
        false
    }

    fn labels_from(&self) -> Option<&'static str> {
        None
    }

    fn set_defaults(&self, _object: &mut Value) {}

    fn prepare_create(&self, _object: &mut Value) {}

    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        keep_all_but_status(new, old);
    }

    fn validate(&self, _object: &Value) -> ErrorList {
        ErrorList::new()
    }

    fn validate_update(&self, _new: &Value, _old: &Value) -> ErrorList {
        ErrorList::new()
    }

    fn validate_status_update(&self, _new: &Value, _old: &Value) -> ErrorList {
        ErrorList::new()
    }

    /// Errors of an update, and warnings about values that it leaves invalid.
    fn check_update(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        (self.validate_update(new, old), Vec::new())
    }

    /// The same for the status subresource.
    fn check_status_update(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        (self.validate_status_update(new, old), Vec::new())
    }

    fn canonicalize(&self, _object: &mut Value) {}

    fn early_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    fn status_warnings(&self, _new: &Value) -> Vec<String> {
        Vec::new()
    }

    fn counts_generation(&self) -> bool {
        false
    }

    fn create_on_update(&self) -> bool {
        false
    }

    fn unconditional_update(&self) -> bool {
        true
    }

    fn graceful(&self, _object: &Value, _requested: Option<i64>) -> Graceful {
        Graceful::No
    }

    fn orphan_dependents(&self) -> bool {
        false
    }

    fn orphan_warning(&self) -> Option<&'static str> {
        None
    }

    fn collects_dependents(&self) -> bool {
        true
    }

    fn held(&self, _object: &Value) -> bool {
        false
    }

    fn mark_deleting(&self, _object: &mut Value) {}

    fn stamp_user(&self) -> Option<fn(&mut Value, user: &Value)> {
        None
    }

    fn scale(&self) -> Option<Scale<'_>> {
        None
    }

    fn field_annotation(&self) -> Option<&'static str> {
        None
    }

    fn ttl_seconds(&self) -> Option<u64> {
        None
    }

    fn deprecation(&self) -> Option<&str> {
        None
    }

    /// A deletion returns the object in its last state, not a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Path below `/registry`, as shown in messages.
    fn storage_path(&self) -> Cow<'_, str>;

    /// Reset fields of a subresource (`""` is the main resource).
    fn reset_fields(&self, subresource: &str) -> Reset;

    /// Bodies are decoded by the schema, which reports a field of the wrong type immediately. Otherwise they are
    /// decoded as plain JSON, normalized by [`Rules::normalize`], and validated later.
    fn is_typed(&self) -> bool {
        true
    }

    /// True for custom resources: they have no protobuf encoding and no strategic merge patch, and items of lists
    /// carry their kind.
    fn is_custom(&self) -> bool {
        false
    }

    /// The reason why new objects are rejected, by create and by an apply of a missing object.
    fn rejects_creation(&self) -> Option<&'static str> {
        None
    }

    /// Normalizes an object to its type and reports unknown fields.
    fn normalize(&self, object: &mut Value, schema: SchemaRef<'_>) -> Result<Report, TypeError> {
        typed::normalize(object, schema)
    }

    /// Normalizes an object changed by the rules to its stored form.
    fn normalize_stored(&self, object: &mut Value, schema: SchemaRef<'_>) -> Result<(), TypeError> {
        typed::normalize_for_storage(object, schema).map(drop)
    }

    /// Drops unknown fields of an object of another version.
    fn prune(&self, _object: &mut Value) {}

    /// Normalizes an object that was stored under an earlier definition.
    fn read(&self, _stored: &mut Value) {}

    /// The Table form.
    fn table(&self) -> &dyn TableLayout;

    /// Reports whether field selectors support a field.
    fn find_field(&self, label: &str) -> Result<(), UnsupportedField>;

    /// Name in the watch cache of a field label.
    fn stored_field<'a>(&self, label: &'a str) -> Cow<'a, str> {
        label.into()
    }

    /// Fields, besides name and namespace, that the watch cache indexes.
    fn indexed_fields(&self) -> Vec<IndexedField>;

    /// Members without indexed fields at any depth: the watch cache need not decode them.
    fn unindexed_members(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A field that the watch cache indexes for selectors.
pub struct IndexedField {
    pub name: Text,
    pub read: FieldReader,
}

/// Reader of an indexed field.
pub enum FieldReader {
    Function(fn(&Value) -> Cow<'_, str>),
    /// State of a compiled definition.
    Closure(Box<dyn Fn(&Value) -> String + Send + Sync>),
}

impl IndexedField {
    pub fn value<'a>(&self, object: &'a Value) -> Cow<'a, str> {
        match &self.read {
            FieldReader::Function(read) => read(object),
            FieldReader::Closure(read) => read(object).into(),
        }
    }
}

impl fmt::Debug for IndexedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IndexedField").field(&self.name).finish()
    }
}

/// Columns and cells of the Table form.
pub trait TableLayout: Send + Sync {
    fn columns(&self) -> Vec<Column<'_>>;

    fn cells(&self, object: &Value, context: CellContext) -> Vec<Value>;

    /// The row's `conditions`, left out when empty.
    fn conditions(&self, _object: &Value) -> Vec<Value> {
        Vec::new()
    }

    /// Sorts the rows of a list, if their order differs from that of the list.
    fn sort(&self, _objects: &mut [Value]) {}

    /// An empty table omits the list of rows, as in Kubernetes for kinds without a table layout.
    fn is_generic(&self) -> bool {
        false
    }
}

impl TableLayout for Table {
    fn columns(&self) -> Vec<Column<'_>> {
        self.columns.to_vec()
    }

    fn cells(&self, object: &Value, context: CellContext) -> Vec<Value> {
        (self.cells)(object, context)
    }

    fn conditions(&self, object: &Value) -> Vec<Value> {
        self.conditions.map_or_else(Vec::new, |conditions| conditions(object))
    }

    fn sort(&self, objects: &mut [Value]) {
        if let Some(order) = self.order {
            objects.sort_by(order);
        }
    }

    fn is_generic(&self) -> bool {
        tables::is_generic(self)
    }
}

/// Members without indexed fields in any built-in kind: nearly all of most objects.
pub const UNINDEXED: [&str; 12] = [
    "metadata",
    "affinity",
    "conditions",
    "containerStatuses",
    "containers",
    "data",
    "images",
    "initContainerStatuses",
    "initContainers",
    "template",
    "tolerations",
    "volumes",
];

/// Implements methods by the fields of the same name.
macro_rules! facts {
    ($($name:ident: $type:ty,)*) => {
        $(fn $name(&self) -> $type { self.$name })*
    };
}

impl Rules for &'static Kind {
    facts! {
        any_finalizer: bool,
        metadata_last: bool,
        metadata_on_update: &'static [MetadataCheck],
        metadata_on_status_update: &'static [MetadataCheck],
        generates_no_suffix: bool,
        labels_from: Option<&'static str>,
        counts_generation: bool,
        create_on_update: bool,
        unconditional_update: bool,
        orphan_dependents: bool,
        orphan_warning: Option<&'static str>,
        collects_dependents: bool,
        stamp_user: Option<fn(&mut Value, user: &Value)>,
        scale: Option<Scale<'_>>,
        field_annotation: Option<&'static str>,
        ttl_seconds: Option<u64>,
        deprecation: Option<&str>,
    }

    fn metadata_errors(&self, object: &Value) -> ErrorList {
        Kind::metadata_errors(self, object)
    }

    fn metadata_update_errors(&self, new: &Value, old: &Value) -> ErrorList {
        Kind::metadata_update_errors(self, new, old)
    }

    fn set_defaults(&self, object: &mut Value) {
        (self.default)(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        (self.prepare_create)(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        (self.prepare_update)(new, old);
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        (self.prepare_status_update)(new, old);
    }

    fn validate(&self, object: &Value) -> ErrorList {
        (self.validate)(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        (self.validate_update)(new, old)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        (self.validate_status_update)(new, old)
    }

    fn canonicalize(&self, object: &mut Value) {
        (self.canonicalize)(object);
    }

    fn early_warnings(&self, object: &Value) -> Vec<String> {
        (self.early_warnings)(object)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        (self.warnings)(new, old)
    }

    fn status_warnings(&self, new: &Value) -> Vec<String> {
        (self.status_warnings)(new)
    }

    fn graceful(&self, object: &Value, requested: Option<i64>) -> Graceful {
        (self.graceful)(object, requested)
    }

    fn held(&self, object: &Value) -> bool {
        (self.held)(object)
    }

    fn mark_deleting(&self, object: &mut Value) {
        (self.mark_deleting)(object);
    }

    fn returns_deleted(&self) -> bool {
        self.returns_deleted
    }

    fn storage_path(&self) -> Cow<'_, str> {
        Cow::Borrowed(if self.storage_path.is_empty() { self.resource } else { self.storage_path })
    }

    fn reset_fields(&self, subresource: &str) -> Reset {
        let row = self.reset_fields.iter().find(|(name, _)| *name == subresource);
        Reset::of_fields(row.map_or(&[], |(_, paths)| paths))
    }

    fn normalize_stored(&self, object: &mut Value, schema: SchemaRef<'_>) -> Result<(), TypeError> {
        let normalize = if self.stored_as_json { typed::normalize } else { typed::normalize_for_storage };
        normalize(object, schema).map(drop)
    }

    fn table(&self) -> &dyn TableLayout {
        self.table
    }

    fn find_field(&self, label: &str) -> Result<(), UnsupportedField> {
        self.selectable.find(label).map(drop)
    }

    fn stored_field<'a>(&self, label: &'a str) -> Cow<'a, str> {
        (self.stored_field)(label)
    }

    fn indexed_fields(&self) -> Vec<IndexedField> {
        self.selectable
            .fields
            .iter()
            .filter(|field| !matches!(field.name, "metadata.name" | "metadata.namespace"))
            .map(|field| IndexedField {
                name: Cow::Borrowed(field.name),
                read: FieldReader::Function(field.value),
            })
            .collect()
    }

    fn unindexed_members(&self) -> &'static [&'static str] {
        &UNINDEXED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::KINDS;

    #[test]
    fn unindexed_members_hold_no_selectable_field() {
        for kind in KINDS {
            for field in kind.indexed_fields() {
                let is_inside = field.name.split('.').any(|name| UNINDEXED.contains(&name));
                assert!(!is_inside, "{} of {}", field.name, kind.kind);
            }
        }
    }

    #[test]
    fn reset_fields_follow_kubernetes() {
        let of = |group: &str, resource: &str, subresource: &str| {
            let kind = KINDS.iter().find(|kind| (kind.group, kind.resource) == (group, resource));
            match kind.expect("a kind").reset_fields(subresource) {
                Reset::Nothing => "{}".to_owned(),
                Reset::Exclude(fields) => fields.to_fields_v1().to_string(),
            }
        };
        for (group, resource, subresource, want) in [
            ("apps", "deployments", "", r#"{"f:status":{}}"#),
            ("apps", "deployments", "status", r#"{"f:metadata":{"f:labels":{}},"f:spec":{}}"#),
            ("apps", "deployments", "scale", "{}"),
            ("batch", "jobs", "status", r#"{"f:spec":{}}"#),
            ("storage.k8s.io", "volumeattachments", "status", r#"{"f:metadata":{},"f:spec":{}}"#),
            ("networking.k8s.io", "servicecidrs", "status", r#"{"f:metadata":{},"f:spec":{}}"#),
            ("", "namespaces", "finalize", r#"{"f:status":{}}"#),
            (
                "certificates.k8s.io",
                "certificatesigningrequests",
                "approval",
                r#"{"f:spec":{},"f:status":{"f:certificate":{}}}"#,
            ),
        ] {
            assert_eq!(of(group, resource, subresource), want, "{group}/{resource}/{subresource}");
        }
    }

    #[test]
    fn stored_version_has_no_stored_as() {
        for kind in KINDS {
            if let Some(stored) = kind.stored_as {
                assert!(stored.kind.stored_as.is_none(), "{}", kind.kind);
                assert_ne!((kind.group, kind.version), (stored.kind.group, stored.kind.version));
            }
        }
    }
}
