//! Compiled version of a custom resource definition, for serving its objects.

use super::columns::{self, Column};
use super::compile::schema as compile_schema;
use super::correlation::{Correlated, Ratchet};
use super::embedded::{self, Malformed};
use super::evaluation::Findings;
use super::node::Node;
use super::observed::{ExpressionWork, timed};
use super::scale::Scale;
use super::schema::Schema;
use super::selectable::SelectableField;
use super::{apply_schema, defaulting, definition, evaluation, lists, prune, structural, values};
use crate::value::Fields;
use machinery::Value;
use machinery::codec::BudgetExceeded;
use machinery::field::{ErrorKind, ErrorList, FieldError, Path};
use machinery::schema::{Schema as TypeSchema, SchemaRef, TypeSource};
use std::sync::{Arc, OnceLock};

/// Compilation error of a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("custom resource definition has no version {0:?}")]
    NoVersion(String),
    #[error("failed to compile schema of version {version:?}: {reason}")]
    Schema { version: String, reason: String },
}

/// Decoding error of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

/// A compiled version. Immutable and small: equal parts of all definitions are shared.
#[derive(Debug)]
pub struct CompiledVersion {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub kind: Arc<str>,
    pub has_status: bool,
    pub scale: Option<Scale>,
    /// Columns after the name.
    pub columns: Box<[Column]>,
    pub selectable: Box<[SelectableField]>,
    root: Root,
    /// `spec.preserveUnknownFields`: nothing is pruned.
    preserve_unknown: bool,
    /// Built when an object is first applied or tracked.
    types: OnceLock<Arc<TypeSchema>>,
}

/// A definition that is stored elsewhere in a smaller form.
pub trait DefinitionSource: std::fmt::Debug + Send + Sync {
    /// Returns the definition. Its spec never changes.
    fn definition(&self) -> Value;
}

/// The compiled schema. Most versions are only stored and listed in discovery, so a schema is compiled when an object
/// of its version is first read or written.
#[derive(Debug)]
struct Root {
    node: OnceLock<Arc<Node>>,
    source: Option<Arc<dyn DefinitionSource>>,
}

/// Compiles a version of a definition.
pub fn compile(definition: &Value, version: &str) -> Result<CompiledVersion, CompileError> {
    let compiled = prepare(definition, version, None)?;
    let _ = compiled.root.node.set(root_of(definition, version));
    Ok(compiled)
}

/// Compiles a version of a definition except its schema, which is read from `source` on first use.
pub fn compile_lazily(
    definition: &Value,
    version: &str,
    source: Arc<dyn DefinitionSource>,
) -> Result<CompiledVersion, CompileError> {
    prepare(definition, version, Some(source))
}

/// A version of a definition by its name.
fn version_of<'a>(definition: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = definition.field("spec").items("versions");
    versions.iter().find(|known| known.text("name") == version)
}

fn root_of(definition: &Value, version: &str) -> Arc<Node> {
    // Without a schema there is nothing to check.
    let anything = serde_json::json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = version_of(definition, version).and_then(definition::schema_of);
    compile_schema(schema.unwrap_or(Schema(&anything)), true)
}

fn prepare(
    definition: &Value,
    version: &str,
    source: Option<Arc<dyn DefinitionSource>>,
) -> Result<CompiledVersion, CompileError> {
    let spec = definition.field("spec");
    let of_version =
        version_of(definition, version).ok_or_else(|| CompileError::NoVersion(version.to_owned()))?;
    let anything = Value::Null;
    let schema = definition::schema_of(of_version).unwrap_or(Schema(&anything));
    if let Some(reason) = structural::unsupported(schema) {
        return Err(CompileError::Schema { version: version.to_owned(), reason });
    }
    let subresources = of_version.field("subresources");
    let fields = of_version.items("selectableFields");
    Ok(CompiledVersion {
        group: super::intern::name(spec.text("group")),
        version: super::intern::name(version),
        kind: super::intern::name(spec.field("names").text("kind")),
        has_status: subresources.has("status"),
        scale: Some(subresources.field("scale")).filter(|scale| scale.is_object()).map(Scale::compile),
        columns: columns::compile(of_version),
        selectable: fields.iter().map(|field| SelectableField::compile(field, schema)).collect(),
        root: Root { node: OnceLock::new(), source },
        preserve_unknown: spec.flag("preserveUnknownFields"),
        types: OnceLock::new(),
    })
}

/// Kinds of errors after which validation rules are not evaluated.
const BLOCKING: [ErrorKind; 5] = [
    ErrorKind::NotSupported,
    ErrorKind::Required,
    ErrorKind::TooLong,
    ErrorKind::TooMany,
    ErrorKind::TypeInvalid,
];
const NOT_CHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

impl CompiledVersion {
    /// The compiled schema.
    fn root(&self) -> &Arc<Node> {
        self.root.node.get_or_init(|| {
            let definition = self.root.source.as_ref().map(|source| source.definition());
            root_of(&definition.unwrap_or_default(), &self.version)
        })
    }

    /// Reports whether the schema has been compiled.
    pub fn is_complete(&self) -> bool {
        self.root.node.get().is_some()
    }

    /// Types of the kind for server-side apply and typed decoding.
    pub fn types(&self) -> &Arc<TypeSchema> {
        self.types.get_or_init(|| {
            let kind = (self.group.clone(), self.version.clone(), self.kind.clone());
            Arc::new(apply_schema::build(self.root(), kind))
        })
    }

    /// The type of the kind in [`Self::types`].
    pub fn type_of(&self) -> Option<SchemaRef<'_>> {
        self.types().kind(&self.group, &self.version, &self.kind)
    }

    /// Completes decoding: normalizes metadata to its type, drops unknown fields and disallowed null fields. Returns
    /// the paths of unknown fields.
    pub fn decode(&self, object: &mut Value, malformed: Malformed) -> Result<Vec<String>, DecodeError> {
        let mut unknown = Vec::new();
        if let Some(metadata) = object.get_mut("metadata") {
            let found = embedded::coerce_metadata(metadata, malformed).map_err(DecodeError)?;
            unknown.extend(found.iter().map(|name| format!("metadata.{name}")));
        }
        unknown.extend(self.prune(object));
        unknown.extend(self.coerce(object, malformed).map_err(|error| DecodeError(error.to_string()))?);
        Ok(unknown)
    }

    /// Drops unknown fields and null fields that are neither nullable nor have a default. Returns the paths of unknown
    /// fields, sorted.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        if self.preserve_unknown {
            return Vec::new();
        }
        let dropped = prune::prune(object, self.root(), true);
        prune::prune_nulls(object, self.root());
        dropped
    }

    /// Normalizes the metadata of embedded resources to its type. Returns the paths of unknown fields, sorted.
    pub fn coerce(&self, object: &mut Value, malformed: Malformed) -> Result<Vec<String>, FieldError> {
        let mut unknown = Vec::new();
        embedded::coerce(object, self.root(), malformed, &Path::ROOT, &mut unknown)?;
        unknown.sort();
        Ok(unknown)
    }

    /// Sets default values.
    pub fn default(&self, object: &mut Value) -> Result<(), BudgetExceeded> {
        defaulting::default(object, self.root())
    }

    /// Errors of a new object, or of the update of an old one. The object's own metadata is not checked here.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        self.validate_with_warnings(new, old).errors
    }

    /// Same as above, with warnings about rules that unchanged values fail.
    pub fn validate_with_warnings(&self, new: &Value, old: Option<&Value>) -> Findings {
        let correlated = old.map(|old| Correlated { node: self.root(), new, old });
        let mut errors = values::check(new, self.root(), correlated, true, &Path::ROOT);
        if let Some(scale) = &self.scale {
            errors.extend(scale.check_spec(new));
            errors.extend(scale.check_status(new));
        }
        errors.extend(embedded::check(new, self.root(), false, &Path::ROOT));
        self.lists_and_rules(new, old, errors)
    }

    /// Errors of an update through the status subresource.
    pub fn validate_status(&self, new: &Value, old: &Value) -> ErrorList {
        self.validate_status_with_warnings(new, old).errors
    }

    /// Same as above, with warnings about rules that unchanged values fail.
    pub fn validate_status_with_warnings(&self, new: &Value, old: &Value) -> Findings {
        let mut errors = Vec::new();
        let whole = Correlated { node: self.root(), new, old };
        if let (Some(status), Some(node)) = (new.get("status"), self.root().property("status")) {
            errors = values::check(status, node, whole.field("status"), true, &Path::new("status"));
        }
        if let Some(scale) = &self.scale {
            errors.extend(scale.check_status(new));
        }
        self.lists_and_rules(new, Some(old), errors)
    }

    fn lists_and_rules(&self, new: &Value, old: Option<&Value>, mut errors: ErrorList) -> Findings {
        let of = |value: &Value| lists::check(value, self.root(), &Path::ROOT);
        if old.is_none_or(|old| of(old).is_empty()) {
            errors.extend(of(new));
        }
        if !self.root().below.rules {
            return Findings { errors, warnings: Vec::new() };
        }
        if errors.iter().any(|error| BLOCKING.contains(&error.kind)) {
            let error = FieldError::invalid(&Path::ROOT, &Value::Null, NOT_CHECKED);
            errors.push(FieldError { field: super::ROOT_FIELD.to_owned(), ..error });
            return Findings { errors, warnings: Vec::new() };
        }
        let ratchet = Ratchet::root(self.root(), new, old);
        let mut budget = evaluation::BUDGET;
        let found = timed(ExpressionWork::Evaluation, || {
            evaluation::check(self.root(), new, old, ratchet, &mut budget, &Path::ROOT)
        });
        errors.extend(found.errors);
        Findings { errors, warnings: found.warnings }
    }
}

impl TypeSource for CompiledVersion {
    fn type_ref(&self) -> SchemaRef<'_> {
        self.type_of().expect("the types of a version have its kind")
    }
}

#[cfg(test)]
mod tests;
