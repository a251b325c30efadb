//! Alternative forms of objects: Table and PartialObjectMetadata.

use crate::registry::Served;
use crate::wire::negotiate::{Accepted, Form};
use crate::wire::query::Query;
use api::kind::CellContext;
use api::rules::TableLayout;
use api::{ResourceNames, Rules};
use base::clock::Clock;
use machinery::status::{Result, Status};
use machinery::{Map, Value, meta};
use serde_json::json;

/// Content of a table's rows besides cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// Reads `includeObject`, which is validated for tables only.
    pub fn read(query: &Query, accepted: &Accepted) -> Result<Self> {
        match query.text("includeObject") {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            _ if accepted.form != Some(Form::Table) => Ok(Self::Metadata),
            other => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

fn api_version(accepted: &Accepted) -> &'static str {
    if accepted.form_version == "v1beta1" { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

/// Converts one object from its stored version to the requested form.
pub fn object(served: &Served, stored: Value, accepted: &Accepted, include: Include) -> Result<Value> {
    match accepted.form {
        None => Ok(served.present(stored)),
        Some(Form::PartialObjectMetadata) => {
            Ok(partial(&stored, &*served.storage.rules, api_version(accepted)))
        }
        Some(Form::PartialObjectMetadataList) => Err(Status::not_acceptable(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
            type_name(&served.storage.kind, "")
        ))),
        Some(Form::Table) => {
            let mut metadata = Map::new();
            let version = meta::resource_version(&stored);
            if !version.is_empty() {
                metadata.insert("resourceVersion".to_owned(), version.into());
            }
            Ok(Rows { served, include, api_version: api_version(accepted) }.table(
                Value::Object(metadata),
                vec![stored],
                true,
            ))
        }
    }
}

/// Converts a list of objects from their stored version to the requested form.
pub fn list(
    served: &Served,
    metadata: Value,
    stored: Vec<Value>,
    accepted: &Accepted,
    include: Include,
) -> Result<Value> {
    match accepted.form {
        None => {
            let is_custom = served.rules.is_custom();
            let shown = |item| {
                let item = served.present(item);
                if is_custom { item } else { untyped(item) }
            };
            let items: Vec<Value> = stored.into_iter().map(shown).collect();
            Ok(json!({
                "kind": served.kind.list_kind(),
                "apiVersion": served.api_version,
                "metadata": metadata,
                "items": items,
            }))
        }
        Some(Form::PartialObjectMetadataList) => {
            let version = api_version(accepted);
            let items: Vec<Value> =
                stored.iter().map(|item| partial(item, &*served.storage.rules, version)).collect();
            // As in Kubernetes, an empty list of this form has `items: null`.
            let items = if items.is_empty() { Value::Null } else { Value::Array(items) };
            Ok(json!({
                "kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": items,
            }))
        }
        Some(Form::PartialObjectMetadata) => Err(Status::not_acceptable(format!(
            "you requested PartialObjectMetadata, but the requested object is a list ({})",
            type_name(&served.storage.kind, "List")
        ))),
        Some(Form::Table) => {
            let rows = Rows { served, include, api_version: api_version(accepted) };
            Ok(rows.table(metadata, stored, true))
        }
    }
}

/// Converts the object of a watch event from its stored version. Only the first table of a watch has column
/// definitions.
pub fn watched(served: &Served, stored: Value, accepted: &Accepted, include: Include, first: bool) -> Value {
    match accepted.form {
        None => served.present(stored),
        Some(Form::Table) => {
            let metadata = json!({"resourceVersion": meta::resource_version(&stored)});
            Rows { served, include, api_version: api_version(accepted) }.table(metadata, vec![stored], first)
        }
        Some(_) => partial(&stored, &*served.storage.rules, api_version(accepted)),
    }
}

/// Go type of an object, or of a list, in Kubernetes' messages.
fn type_name(kind: &ResourceNames, suffix: &str) -> String {
    let package = match kind.group().split('.').next().unwrap_or("") {
        "" => "core",
        package => package,
    };
    format!("*{package}.{}{suffix}", kind.kind())
}

/// Removes kind and apiVersion from an item of a typed list.
pub fn untyped(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

fn partial(object: &Value, rules: &dyn Rules, api_version: &str) -> Value {
    let mut metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    if let (Some(hidden), Some(metadata)) = (rules.field_annotation(), metadata.as_object_mut())
        && let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(hidden);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": metadata})
}

/// Settings of table rows.
struct Rows<'a> {
    served: &'a Served,
    include: Include,
    api_version: &'static str,
}

impl Rows<'_> {
    fn table(&self, metadata: Value, objects: Vec<Value>, headers: bool) -> Value {
        lay_out(self.served.rules.table(), self.api_version, metadata, objects, headers, |object| match self
            .include
        {
            Include::None => Value::Null,
            Include::Metadata => partial(&object, &*self.served.storage.rules, self.api_version),
            Include::Object => self.served.present(object),
        })
    }
}

/// The Table of a scale.
pub fn scale(scale: Value, accepted: &Accepted, include: Include) -> Result<Value> {
    let version = api_version(accepted);
    let metadata_of = |scale: &Value| {
        let metadata = scale.get("metadata").cloned().unwrap_or_else(|| json!({}));
        json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata})
    };
    match accepted.form {
        None => Ok(scale),
        Some(Form::PartialObjectMetadata) => Ok(metadata_of(&scale)),
        Some(Form::PartialObjectMetadataList) => Err(Status::not_acceptable(
            "you requested PartialObjectMetadataList, but the requested object is not a list (*autoscaling.Scale)",
        )),
        Some(Form::Table) => {
            let metadata = json!({"resourceVersion": meta::resource_version(&scale)});
            let row = |scale: Value| match include {
                Include::None => Value::Null,
                Include::Metadata => metadata_of(&scale),
                Include::Object => scale,
            };
            Ok(lay_out(api::tables::SCALE, version, metadata, vec![scale], true, row))
        }
    }
}

/// A Table of objects.
fn lay_out(
    table: &dyn TableLayout,
    api_version: &str,
    metadata: Value,
    mut objects: Vec<Value>,
    headers: bool,
    shown: impl Fn(Value) -> Value,
) -> Value {
    let context = CellContext { now: Clock::system().now().as_second() };
    let columns = if headers {
        table
            .columns()
            .iter()
            .map(|column| {
                json!({
                    "name": column.name, "type": column.kind, "format": column.format,
                    "description": column.description, "priority": column.priority,
                })
            })
            .collect()
    } else {
        Value::Null
    };
    table.sort(&mut objects);
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let mut row = Map::new();
            row.insert("cells".to_owned(), Value::Array(table.cells(&object, context)));
            let conditions = table.conditions(&object);
            if !conditions.is_empty() {
                row.insert("conditions".to_owned(), Value::Array(conditions));
            }
            row.insert("object".to_owned(), shown(object));
            Value::Object(row)
        })
        .collect();
    // As in Kubernetes, an empty table of a kind without its own layout has `rows: null`.
    let rows = match rows.is_empty() && table.is_generic() {
        true => Value::Null,
        false => Value::Array(rows),
    };
    json!({
        "kind": "Table", "apiVersion": api_version, "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}
