//! Rules of a kind for the API server. A row of the table in [`crate::kinds`] is one [`Kind`].

use crate::field_selectors::Selectable;
use crate::value::Fields;
use machinery::field::{ErrorList, Path};
use machinery::{Value, names};
use std::borrow::Cow;

/// A name: borrowed from a table, or owned by a custom resource definition's kind.
pub type Text = Cow<'static, str>;

/// Namespaced or cluster-scoped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// A column of the Table form.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    pub name: &'a str,
    /// `string`, `integer`, `date`, …
    pub kind: &'a str,
    /// `name` for the name column, else empty.
    pub format: &'a str,
    pub description: &'a str,
    /// 0 is always shown; 1 only by `-o wide`.
    pub priority: i32,
}

/// Context of a cell besides the object.
#[derive(Clone, Copy, Debug)]
pub struct CellContext {
    /// Seconds since the epoch: ages are relative to it.
    pub now: i64,
}

/// Layout of a kind's objects in the Table form.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub columns: &'static [Column<'static>],
    pub cells: fn(&Value, CellContext) -> Vec<Value>,
    /// The row's `conditions`, left out when empty.
    pub conditions: Option<fn(&Value) -> Vec<Value>>,
    /// Order of rows in a list, if it differs from that of the list.
    pub order: Option<fn(&Value, &Value) -> std::cmp::Ordering>,
}

/// A field supported in field selectors, and its reader.
#[derive(Clone, Copy, Debug)]
pub struct SelectableField {
    pub name: &'static str,
    pub value: fn(&Value) -> Cow<'_, str>,
}

/// Paths of the scale subresource's values in the object.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    pub spec_replicas: &'a str,
    pub status_replicas: &'a str,
    pub selector: ScaleSelector<'a>,
}

/// Source of the scale's `status.selector`.
#[derive(Clone, Copy, Debug)]
pub enum ScaleSelector<'a> {
    /// Computed from the object.
    Computed(fn(&Value) -> String),
    /// The string at a path, empty without one.
    At(&'a str),
}

impl ScaleSelector<'_> {
    pub fn of(&self, object: &Value) -> String {
        match self {
            Self::Computed(compute) => compute(object),
            Self::At("") => String::new(),
            Self::At(path) => {
                let mut parts = path.trim_start_matches('.').split('.');
                let found = parts.try_fold(object, |value, part| value.get(part));
                found.and_then(Value::as_str).unwrap_or("").to_owned()
            }
        }
    }
}

/// Paths of fields.
pub type FieldPaths = &'static [&'static [&'static str]];

/// Reset fields of most kinds: the main resource ignores status, the status subresource ignores spec.
pub const STATUS_RESET_FIELDS: &[(&str, FieldPaths)] = &[("", &[&["status"]]), ("status", &[&["spec"]])];

/// Reset fields of kinds whose status subresource ignores metadata as well.
pub const METADATA_RESET_FIELDS: &[(&str, FieldPaths)] =
    &[("", &[&["status"]]), ("status", &[&["metadata"], &["spec"]])];

/// Conversion of a version that is not stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredAs {
    /// The kind in the version that is stored.
    pub kind: &'static Kind,
    pub to_stored: fn(Value) -> Value,
    pub from_stored: fn(Value) -> Value,
    /// Rules of the stored kind apply; those of the served version are limited to its defaults.
    pub rules_of_stored: bool,
}

/// An object whose fields are the same in another version.
pub fn renamed(mut object: Value, api_version: &str) -> Value {
    object.set("apiVersion", api_version);
    object
}

/// A kind in a version that has the fields and rules of the stored one.
macro_rules! renamed_version {
    ($stored:expr, $group:literal, $stored_version:literal, $version:literal, $deprecation:expr) => {
        $crate::Kind {
            version: $version,
            deprecation: $deprecation,
            stored_as: Some(&$crate::kind::StoredAs {
                kind: &$stored,
                to_stored: |object| $crate::kind::renamed(object, concat!($group, "/", $stored_version)),
                from_stored: |object| $crate::kind::renamed(object, concat!($group, "/", $version)),
                rules_of_stored: true,
            }),
            ..$stored
        }
    };
}
pub(crate) use renamed_version;

/// Names of a kind and of its resource. Built-in kinds borrow theirs; definitions own them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNames {
    group: Text,
    version: Text,
    kind: Text,
    list_kind: Text,
    resource: Text,
    pub scope: Scope,
}

impl ResourceNames {
    pub fn new(
        (group, version): (impl Into<Text>, impl Into<Text>),
        kind: impl Into<Text>,
        resource: impl Into<Text>,
        scope: Scope,
    ) -> Self {
        let kind = kind.into();
        let list_kind = format!("{kind}List").into();
        Self {
            group: group.into(),
            version: version.into(),
            kind,
            list_kind,
            resource: resource.into(),
            scope,
        }
    }

    /// Sets a list name other than `<kind>List`.
    #[must_use]
    pub fn with_list_kind(self, list_kind: impl Into<Text>) -> Self {
        Self { list_kind: list_kind.into(), ..self }
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn list_kind(&self) -> &str {
        &self.list_kind
    }

    /// The plural in paths.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        machinery::gvk::api_version(&self.group, &self.version)
    }
}

/// Deletion mode of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graceful {
    /// Immediate.
    No,
    /// After `deletionGracePeriodSeconds` seconds, confirmed by its owner (a kubelet).
    After(i64),
}

/// A check of metadata in a kind's own rules for updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataCheck {
    /// Same check as for a new object.
    New,
    /// Compared with the old object.
    Update,
}

/// One built-in kind and its own rules. Every function has a default that fits a plain kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub resource: &'static str,
    pub scope: Scope,

    /// Validates names and returns the errors. The flag is true for a prefix (generateName).
    pub validate_name: fn(&str, bool) -> Vec<String>,
    /// Finalizers need no domain: the registry checks metadata with `names::validate_generic_object_meta` (and
    /// its update) instead of `names::validate_object_meta`.
    pub any_finalizer: bool,
    /// The kind has no rules for metadata: the general ones run only after its own have passed, and any name that is
    /// a valid path segment is accepted.
    pub metadata_last: bool,
    /// Checks of metadata in the kind's own rules for updates, after the general ones: each check reports its errors
    /// again.
    pub metadata_on_update: &'static [MetadataCheck],
    /// The same for the status subresource.
    pub metadata_on_status_update: &'static [MetadataCheck],
    /// `generateName` itself becomes the name.
    pub generates_no_suffix: bool,
    /// Path of the labels that are used if the object has none. Both share the same map, as in Kubernetes: labels
    /// added to one on create are added to both.
    pub labels_from: Option<&'static str>,
    /// Sets the defaults of this version. Runs on every decode, also of stored objects.
    pub default: fn(&mut Value),
    /// Before validation on create: clears fields that clients may not set (status, disabled fields). The registry
    /// itself sets name, namespace, uid, creationTimestamp and generation.
    pub prepare_create: fn(&mut Value),
    /// Before validation on update of the main resource: restores fields that it may not change (usually status).
    pub prepare_update: fn(new: &mut Value, old: &Value),
    /// Same for the status subresource: restores everything but status and its related fields.
    pub prepare_status_update: fn(new: &mut Value, old: &Value),
    pub validate: fn(&Value) -> ErrorList,
    /// All checks on update, including validity of the new object (metadata is checked by the registry).
    pub validate_update: fn(new: &Value, old: &Value) -> ErrorList,
    pub validate_status_update: fn(new: &Value, old: &Value) -> ErrorList,
    /// After validation: converts the object to its stored form.
    pub canonicalize: fn(&mut Value),
    /// `Warning` headers for a new object, before `prepare_create`.
    pub early_warnings: fn(&Value) -> Vec<String>,
    /// `Warning` headers for a write.
    pub warnings: fn(new: &Value, old: Option<&Value>) -> Vec<String>,
    /// `Warning` headers for a write of the status.
    pub status_warnings: fn(new: &Value) -> Vec<String>,
    /// `metadata.generation` counts changes of this kind's spec. The registry sets 1 on create and adds one when
    /// anything besides metadata and status differs.
    pub counts_generation: bool,
    /// A PUT to a missing name creates the object.
    pub create_on_update: bool,
    /// A PUT without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// Grace period of deletion, from the object and the requested period, if any.
    pub graceful: fn(&Value, Option<i64>) -> Graceful,
    /// Dependents are orphaned if the deletion sets no propagation policy (the oldest kinds).
    pub orphan_dependents: bool,
    /// Warning for deletions that use this default.
    pub orphan_warning: Option<&'static str>,
    /// The garbage collector handles deletions of this kind (not of events).
    pub collects_dependents: bool,
    /// Finalizers other than `metadata.finalizers` block deletion (a namespace's `spec.finalizers`).
    pub held: fn(&Value) -> bool,
    /// Further changes when deletion begins but is not immediate.
    pub mark_deleting: fn(&mut Value),
    /// Records the requesting user in the object, given as `{username, uid, groups, extra}`.
    pub stamp_user: Option<fn(&mut Value, user: &Value)>,
    pub scale: Option<Scale<'static>>,
    /// Reset fields by subresource ("" is the main resource).
    pub reset_fields: &'static [(&'static str, FieldPaths)],
    /// Columns and cells of the Table form. All versions share one: its cells read objects of any of them.
    pub table: &'static Table,
    /// Fields that field selectors support.
    pub selectable: Selectable,
    /// Name of a selectable field in the stored version.
    pub stored_field: fn(&str) -> Cow<'_, str>,
    /// Deletion returns the object in its last state, not a Status.
    pub returns_deleted: bool,
    /// The stored version, if it differs from this one.
    pub stored_as: Option<&'static StoredAs>,
    /// Kubernetes stores the kind as JSON: values that protobuf would lose are retained.
    pub stored_as_json: bool,
    /// Resource name in Kubernetes' storage keys if it differs from the plural; shown in messages.
    pub storage_path: &'static str,
    /// An annotation that replaces a field of old versions; omitted from PartialObjectMetadata.
    pub field_annotation: Option<&'static str>,
    /// Warning sent with every response for the kind.
    pub deprecation: Option<&'static str>,
    /// Objects expire this many seconds after their last write (events).
    pub ttl_seconds: Option<u64>,
}

impl Kind {
    /// A kind with a status subresource and no rules of its own.
    ///
    /// ```
    /// use api::{Kind, Scope};
    ///
    /// static WIDGET: Kind = Kind {
    ///     create_on_update: true,
    ///     ..Kind::new("example.com", "v1", "Widget", "widgets", Scope::Namespaced)
    /// };
    /// assert_eq!(WIDGET.resource, "widgets");
    /// ```
    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        resource: &'static str,
        scope: Scope,
    ) -> Kind {
        Kind {
            group,
            version,
            kind,
            resource,
            scope,
            validate_name: machinery::names::dns_subdomain,
            any_finalizer: false,
            metadata_last: false,
            metadata_on_update: &[MetadataCheck::Update],
            metadata_on_status_update: &[MetadataCheck::Update],
            generates_no_suffix: false,
            labels_from: None,
            default: |_| {},
            prepare_create: |_| {},
            prepare_update: |_, _| {},
            prepare_status_update: keep_all_but_status,
            validate: |_| Vec::new(),
            validate_update: |_, _| Vec::new(),
            validate_status_update: |_, _| Vec::new(),
            canonicalize: |_| {},
            early_warnings: |_| Vec::new(),
            warnings: |_, _| Vec::new(),
            status_warnings: |_| Vec::new(),
            counts_generation: false,
            create_on_update: false,
            unconditional_update: true,
            graceful: |_, _| Graceful::No,
            orphan_dependents: false,
            orphan_warning: None,
            collects_dependents: true,
            held: |_| false,
            mark_deleting: |_| {},
            stamp_user: None,
            scale: None,
            reset_fields: STATUS_RESET_FIELDS,
            table: &crate::tables::GENERIC,
            selectable: Selectable::GENERIC,
            stored_field: |label| Cow::Borrowed(label),
            returns_deleted: false,
            stored_as: None,
            stored_as_json: false,
            storage_path: "",
            field_annotation: None,
            deprecation: None,
            ttl_seconds: None,
        }
    }
}

impl Kind {
    pub fn names(&self) -> ResourceNames {
        ResourceNames::new((self.group, self.version), self.kind, self.resource, self.scope)
    }

    /// Errors in the metadata of a new object.
    pub fn metadata_errors(&self, object: &Value) -> ErrorList {
        let check = if self.any_finalizer {
            names::validate_generic_object_meta
        } else {
            names::validate_object_meta
        };
        let namespaced = self.scope == Scope::Namespaced;
        check(object.field("metadata"), namespaced, self.validate_name, &Path::new("metadata"))
    }

    /// Errors in metadata changes of an object. Kinds whose own rules check it between others call this themselves.
    pub fn metadata_update_errors(&self, new: &Value, old: &Value) -> ErrorList {
        let check = if self.any_finalizer {
            names::validate_generic_object_meta_update
        } else {
            names::validate_object_meta_update
        };
        check(new.field("metadata"), old.field("metadata"), &Path::new("metadata"))
    }
}

/// `prepare_create` of kinds whose status is set by controllers only.
pub fn drop_status(object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
}

/// `prepare_update` of kinds with a status subresource: the main resource ignores status.
pub fn keep_status(new: &mut Value, old: &Value) {
    let Some(map) = new.as_object_mut() else {
        return;
    };
    match old.get("status") {
        // The status is usually unchanged, and comparing is cheaper than copying.
        Some(status) if map.get("status") == Some(status) => None,
        Some(status) => map.insert("status".to_owned(), status.clone()),
        None => map.remove("status"),
    };
}

/// `prepare_status_update` of most kinds: only status is taken; metadata except managedFields is that of the old
/// object.
pub fn keep_all_but_status(new: &mut Value, old: &Value) {
    let status = new.get("status").cloned();
    let mut retained = old.clone();
    if let Some(map) = retained.as_object_mut() {
        match status {
            Some(status) => map.insert("status".to_owned(), status),
            None => map.remove("status"),
        };
        if let Some(metadata) = new.get("metadata") {
            map.insert("metadata".to_owned(), metadata.clone());
        }
    }
    *new = retained;
}

/// `prepare_status_update` of newer kinds: metadata is that of the old object, too.
pub fn keep_metadata_and_spec(new: &mut Value, old: &Value) {
    const RESTORED_METADATA: [&str; 7] = [
        "deletionTimestamp",
        "generation",
        "selfLink",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ];
    keep_all_but_status(new, old);
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    for field in RESTORED_METADATA {
        match old.get("metadata").and_then(|metadata| metadata.get(field)) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn update_metadata_errors_are_reported_between_kind_rules() {
        use crate::kinds::{cluster_role, job, namespace, node, role, runtime_class, storage_class};
        let old = json!({"metadata": {"name": "x", "uid": "u"}, "provisioner": "p", "handler": "h"});
        let new = json!({
            "metadata": {"name": "x", "uid": "v"}, "provisioner": "q", "handler": "-", "rules": [{}],
            "spec": {"finalizers": ["-"], "podCIDRs": ["a"], "template": {}},
        });
        for kind in [
            &cluster_role::KIND,
            &job::KIND,
            &namespace::KIND,
            &node::KIND,
            &role::KIND,
            &runtime_class::KIND,
            &storage_class::KIND,
        ] {
            let errors = (kind.validate_update)(&new, &old);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            let at = fields.iter().position(|field| *field == "metadata.uid");
            assert!(at.is_some_and(|at| at > 0), "{}: {fields:?}", kind.kind);
            assert_eq!(kind.metadata_on_update, [MetadataCheck::New], "{}", kind.kind);
        }
    }

    #[test]
    fn keep_metadata_and_spec_takes_status_and_managed_fields_only() {
        let old = json!({"metadata": {"labels": {"a": "b"}, "managedFields": []}, "spec": 1, "status": 1});
        let mut new = json!({
            "metadata": {"labels": {"c": "d"}, "finalizers": ["x/y"], "managedFields": [1]}, "spec": 2, "status": 2,
        });
        keep_metadata_and_spec(&mut new, &old);
        let want = json!({"metadata": {"labels": {"a": "b"}, "managedFields": [1]}, "spec": 1, "status": 2});
        assert_eq!(new, want);
    }
}
