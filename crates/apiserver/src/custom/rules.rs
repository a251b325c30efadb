//! Rules of a custom resource, from its compiled definition.

use api::custom::{CompiledVersion, Malformed};
use api::field_selectors::UnsupportedField;
use api::kind::{
    CellContext, Column, MetadataCheck, Scale, ScaleSelector, drop_status, keep_metadata_and_spec,
    keep_status,
};
use api::rules::{FieldReader, IndexedField, TableLayout};
use api::{ResourceNames, Rules};
use machinery::apply::Reset;
use machinery::codec::typed::{Report, TypeError};
use machinery::field::{ErrorList, Path};
use machinery::schema::SchemaRef;
use machinery::{Value, meta, names};
use std::borrow::Cow;
use std::sync::Arc;

/// One version of a custom resource.
pub struct CustomRules {
    names: ResourceNames,
    compiled: Arc<CompiledVersion>,
    /// All versions: the watch cache retains the fields that selectors of any of them may use.
    versions: Vec<Arc<CompiledVersion>>,
    scale: Option<ScalePaths>,
    deprecation: Option<String>,
    /// True while the definition is deleted.
    is_terminating: bool,
}

/// Paths of the scale subresource, without the leading dot.
struct ScalePaths {
    spec_replicas: String,
    status_replicas: String,
    label_selector: String,
}

const NAME_DOC: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
const PREFER_QUALIFIED: &str =
    "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers";

impl CustomRules {
    /// `deprecation` is the warning added to every response.
    pub fn new(
        names: ResourceNames,
        compiled: Arc<CompiledVersion>,
        versions: Vec<Arc<CompiledVersion>>,
        deprecation: Option<String>,
        is_terminating: bool,
    ) -> Self {
        let scale = compiled.scale.as_ref().map(|scale| {
            let dotted = |path: &api::custom::FieldPath| path.names().collect::<Vec<_>>().join(".");
            ScalePaths {
                spec_replicas: dotted(&scale.spec_replicas),
                status_replicas: dotted(&scale.status_replicas),
                label_selector: scale.label_selector.as_ref().map(dotted).unwrap_or_default(),
            }
        });
        Self { names, compiled, versions, scale, deprecation, is_terminating }
    }

    fn decode(&self, object: &mut Value, malformed: Malformed) -> Result<Vec<String>, TypeError> {
        let unknown =
            self.compiled.decode(object, malformed).map_err(|error| TypeError { message: error.0 })?;
        self.compiled.default(object).map_err(|error| TypeError { message: error.to_string() })?;
        Ok(unknown)
    }
}

impl Rules for CustomRules {
    fn metadata_errors(&self, object: &Value) -> ErrorList {
        let path = Path::new("metadata");
        let namespaced = self.names.namespaced();
        names::validate_generic_object_meta(&object["metadata"], namespaced, names::dns_subdomain, &path)
    }

    fn metadata_update_errors(&self, new: &Value, old: &Value) -> ErrorList {
        let path = Path::new("metadata");
        names::validate_generic_object_meta_update(&new["metadata"], &old["metadata"], &path)
    }

    fn any_finalizer(&self) -> bool {
        true
    }

    fn rejects_creation(&self) -> Option<&'static str> {
        self.is_terminating.then_some("create not allowed while custom resource definition is terminating")
    }

    fn metadata_on_update(&self) -> &'static [MetadataCheck] {
        &[MetadataCheck::Update]
    }

    fn set_defaults(&self, object: &mut Value) {
        if let Err(error) = self.compiled.default(object) {
            tracing::debug!(resource = self.names.resource(), %error, "defaults exceed the size limit");
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if self.compiled.has_status {
            drop_status(object);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if self.compiled.has_status {
            keep_status(new, old);
        } else if new.get("status") != old.get("status") {
            // Without a status subresource, status is an ordinary part of the object.
            let generation = meta::generation(old) + 1;
            meta::metadata_mut(new).insert("generation".to_owned(), generation.into());
        }
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        keep_metadata_and_spec(new, old);
    }

    fn validate(&self, object: &Value) -> ErrorList {
        self.compiled.validate(object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.check_update(new, old).0
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.check_status_update(new, old).0
    }

    fn check_update(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        let found = self.compiled.validate_with_warnings(new, Some(old));
        (found.errors, found.warnings)
    }

    fn check_status_update(&self, new: &Value, old: &Value) -> (ErrorList, Vec<String>) {
        let found = self.compiled.validate_status_with_warnings(new, old);
        (found.errors, found.warnings)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let known = old.map(meta::finalizers).unwrap_or_default();
        let mut added: Vec<&str> = meta::finalizers(new)
            .iter()
            .filter(|name| !known.contains(name))
            .filter_map(Value::as_str)
            .collect();
        added.sort_unstable();
        let is_plain = |name: &&str| !name.contains('/') && !STANDARD_FINALIZERS.contains(name);
        let plain = added.into_iter().filter(is_plain);
        plain.map(|name| format!("metadata.finalizers: {name:?}: {PREFER_QUALIFIED}")).collect()
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn scale(&self) -> Option<Scale<'_>> {
        self.scale.as_ref().map(|paths| Scale {
            spec_replicas: &paths.spec_replicas,
            status_replicas: &paths.status_replicas,
            selector: ScaleSelector::At(&paths.label_selector),
        })
    }

    fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    fn storage_path(&self) -> Cow<'_, str> {
        format!("{}/{}", self.names.group(), self.names.resource()).into()
    }

    fn reset_fields(&self, subresource: &str) -> Reset {
        match subresource {
            "" => Reset::of_fields(&[&["status"]]),
            "status" => Reset::of_fields(&[&["metadata"], &["spec"]]),
            _ => Reset::Nothing,
        }
    }

    fn is_typed(&self) -> bool {
        false
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn normalize(&self, object: &mut Value, _schema: SchemaRef<'_>) -> Result<Report, TypeError> {
        let unknown = self.decode(object, Malformed::Refuse)?;
        let strict = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        Ok(Report { strict, ..Report::default() })
    }

    fn normalize_stored(&self, _object: &mut Value, _schema: SchemaRef<'_>) -> Result<(), TypeError> {
        Ok(())
    }

    fn prune(&self, object: &mut Value) {
        self.compiled.prune(object);
    }

    fn read(&self, stored: &mut Value) {
        if let Err(error) = self.decode(stored, Malformed::Drop) {
            tracing::warn!(
                resource = self.names.resource(),
                error = error.message,
                "stored object is malformed"
            );
        }
    }

    fn table(&self) -> &dyn TableLayout {
        self
    }

    fn find_field(&self, label: &str) -> Result<(), UnsupportedField> {
        let is_selectable = self.compiled.selectable.iter().any(|field| *field.name == *label);
        match label {
            "metadata.name" => Ok(()),
            "metadata.namespace" if self.names.namespaced() => Ok(()),
            _ if is_selectable => Ok(()),
            _ => Err(UnsupportedField::of_custom(label)),
        }
    }

    fn indexed_fields(&self) -> Vec<IndexedField> {
        let mut fields: Vec<IndexedField> = Vec::new();
        for version in &self.versions {
            for (index, field) in version.selectable.iter().enumerate() {
                if fields.iter().any(|known| *known.name == *field.name) {
                    continue;
                }
                let version = Arc::clone(version);
                let read = move |object: &Value| {
                    version.selectable.get(index).map(|field| field.value(object)).unwrap_or_default()
                };
                let name = Cow::Owned(field.name.to_string());
                fields.push(IndexedField { name, read: FieldReader::Closure(Box::new(read)) });
            }
        }
        fields
    }
}

impl TableLayout for CustomRules {
    fn columns(&self) -> Vec<Column<'_>> {
        let name =
            Column { name: "Name", kind: "string", format: "name", description: NAME_DOC, priority: 0 };
        let more = self.compiled.columns.iter().map(|column| Column {
            name: &column.name,
            kind: &column.kind,
            format: &column.format,
            description: &column.description,
            priority: i32::try_from(column.priority).unwrap_or(i32::MAX),
        });
        std::iter::once(name).chain(more).collect()
    }

    fn cells(&self, object: &Value, context: CellContext) -> Vec<Value> {
        let name = Value::from(meta::name(object));
        std::iter::once(name)
            .chain(self.compiled.columns.iter().map(|column| column.cell(object, context)))
            .collect()
    }
}
