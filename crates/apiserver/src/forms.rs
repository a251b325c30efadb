//! Other forms of objects that clients may ask for: Table and PartialObjectMetadata.

use crate::negotiate::{Accepted, Form};
use crate::query::Query;
use crate::registry::Served;
use api::kind::{CellContext, Table};
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
    pub fn read(query: &Query) -> Result<Self> {
        match query.text("includeObject") {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => {
                use machinery::field::{FieldError, Path};
                let path = Path::new("includeObject");
                let error =
                    FieldError::invalid_str(&path, other, "must be 'Metadata', 'Object', 'None', or empty");
                Err(Status::invalid("meta.k8s.io", "TableOptions", "", &vec![error]))
            }
        }
    }
}

fn api_version(accepted: &Accepted) -> &'static str {
    if accepted.form_version == "v1beta1" { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

/// One object in the form asked for.
pub fn object(served: &Served, object: Value, accepted: &Accepted, include: Include) -> Result<Value> {
    match accepted.form {
        None => Ok(object),
        Some(Form::PartialObjectMetadata) => Ok(partial(&object, api_version(accepted))),
        Some(Form::PartialObjectMetadataList) => Err(not_acceptable(
            "you requested PartialObjectMetadataList, but the requested object is not a list",
        )),
        Some(Form::Table) => {
            let mut metadata = Map::new();
            let version = meta::resource_version(&object);
            if !version.is_empty() {
                metadata.insert("resourceVersion".to_owned(), version.into());
            }
            let version = api_version(accepted);
            Ok(table(served_table(served), version, Value::Object(metadata), vec![object], include, true))
        }
    }
}

/// The objects of a list, with the list's metadata, in the form asked for. A selector that nothing matches
/// leaves no list at all.
pub fn list(
    served: &Served,
    metadata: Value,
    items: Vec<Value>,
    selective: bool,
    accepted: &Accepted,
    include: Include,
) -> Result<Value> {
    let some = |items: Vec<Value>| {
        if selective && items.is_empty() { Value::Null } else { Value::Array(items) }
    };
    match accepted.form {
        None => {
            let items = some(items.into_iter().map(untyped).collect());
            Ok(json!({
                "kind": format!("{}List", served.kind.kind),
                "apiVersion": served.api_version,
                "metadata": metadata,
                "items": items,
            }))
        }
        Some(Form::PartialObjectMetadataList) => {
            let version = api_version(accepted);
            let items = some(items.iter().map(|item| partial(item, version)).collect());
            Ok(json!({
                "kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": items,
            }))
        }
        Some(Form::PartialObjectMetadata) => {
            Err(not_acceptable("you requested PartialObjectMetadata, but the requested object is a list"))
        }
        Some(Form::Table) => {
            Ok(table(served_table(served), api_version(accepted), metadata, items, include, true))
        }
    }
}

/// The object of a watch event. Only the first table of a watch has its columns described.
pub fn watched(served: &Served, object: Value, accepted: &Accepted, include: Include, first: bool) -> Value {
    match accepted.form {
        None => object,
        Some(Form::Table) => {
            let metadata = json!({"resourceVersion": meta::resource_version(&object)});
            table(served_table(served), api_version(accepted), metadata, vec![object], include, first)
        }
        Some(_) => partial(&object, api_version(accepted)),
    }
}

fn served_table(served: &Served) -> &'static Table {
    let kind = served.kind;
    api::tables::table(kind.group, kind.version, kind.resource)
}

fn not_acceptable(message: &str) -> Status {
    Status::not_acceptable(message)
}

/// Items of a typed list carry neither kind nor apiVersion.
pub fn untyped(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

fn partial(object: &Value, api_version: &str) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": metadata})
}

/// A Table of objects.
pub fn table(
    table: &Table,
    api_version: &str,
    metadata: Value,
    mut objects: Vec<Value>,
    include: Include,
    headers: bool,
) -> Value {
    let context = CellContext { now: jiff::Timestamp::now().as_second() };
    let columns = if headers {
        table
            .columns
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
    if let Some(order) = table.order {
        objects.sort_by(order);
    }
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let mut row = Map::new();
            row.insert("cells".to_owned(), Value::Array((table.cells)(&object, context)));
            let conditions = table.conditions.map_or_else(Vec::new, |conditions| conditions(&object));
            if !conditions.is_empty() {
                row.insert("conditions".to_owned(), Value::Array(conditions));
            }
            let shown = match include {
                Include::None => Value::Null,
                Include::Metadata => partial(&object, api_version),
                Include::Object => object,
            };
            row.insert("object".to_owned(), shown);
            Value::Object(row)
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": api_version, "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}
