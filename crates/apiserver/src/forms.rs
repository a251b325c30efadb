//! Other forms of objects that clients may ask for: Table and PartialObjectMetadata.

use crate::negotiate::{Accepted, Form};
use crate::query::Query;
use crate::registry::Served;
use api::kind::CellContext;
use api::rules::TableLayout;
use api::{ResourceNames, Rules};
use machinery::status::{Result, Status};
use machinery::{Map, Value, meta};
use serde_json::json;

/// What a table's rows carry besides cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// What the query asks for; only tables care.
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

/// One object, given in its stored version, in the form asked for.
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

/// The objects of a list, in their stored version, with the list's metadata, in the form asked for.
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
            // Kubernetes' quirk, kept: this form of an empty list has none.
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

/// The object of a watch event, given in its stored version. Only the first table of a watch has its columns
/// described.
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

/// What Kubernetes calls the type of an object, or of a list of them, in its messages.
fn type_name(kind: &ResourceNames, suffix: &str) -> String {
    let package = match kind.group().split('.').next().unwrap_or("") {
        "" => "core",
        package => package,
    };
    format!("*{package}.{}{suffix}", kind.kind())
}

/// Items of a typed list carry neither kind nor apiVersion.
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

/// How the rows of a table are made.
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
    let context = CellContext { now: jiff::Timestamp::now().as_second() };
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
    // Kubernetes' quirk, kept: without rows, kinds that have no layout of their own have no list of them either.
    let rows = match rows.is_empty() && table.is_generic() {
        true => Value::Null,
        false => Value::Array(rows),
    };
    json!({
        "kind": "Table", "apiVersion": api_version, "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}
