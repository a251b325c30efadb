//! Tables, with the columns of metrics-server.

use super::body::{Amounts, Meta, NodeMetrics, PodMetrics};
use super::negotiate::Form;
use super::query::Query;
use machinery::status::{Result, Status};
use serde::Serialize;
use serde_json::{Value, json};

/// The part of an object that rows carry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    fn of(query: &Query) -> Result<Self> {
        match query.text("includeObject") {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(Status::bad_request(format!(
                "Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

fn columns() -> Value {
    let column = |name: &str, format: &str, description: &str| json!({"name": name, "type": "string", "format": format, "description": description, "priority": 0});
    json!([
        column("Name", "name", "Name of the resource"),
        column("cpu", "quantity", ""),
        column("memory", "quantity", ""),
        column("Window", "duration", ""),
    ])
}

fn table(form: Form, rows: Vec<Value>) -> Value {
    let version = match form {
        Form::Table { version } => version,
        Form::Object => "meta.k8s.io/v1",
    };
    // As from metrics-server, a table without rows has no columns.
    let columns = if rows.is_empty() { json!(null) } else { columns() };
    json!({"kind": "Table", "apiVersion": version, "metadata": {}, "columnDefinitions": columns, "rows": rows})
}

fn row<T: Serialize>(
    include: Include,
    meta: &Meta<'_>,
    usage: &Amounts,
    window: &str,
    object: &T,
) -> Result<Value> {
    let failed = |error: serde_json::Error| Status::internal(&error);
    let mut row = json!({"cells": [meta.name, usage.cpu, usage.memory, window]});
    match include {
        Include::None => row["object"] = Value::Null,
        Include::Metadata => {
            let metadata = serde_json::to_value(meta).map_err(failed)?;
            row["object"] = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        }
        Include::Object => row["object"] = serde_json::to_value(object).map_err(failed)?,
    }
    Ok(row)
}

pub fn of_nodes(nodes: &[NodeMetrics<'_>], form: Form, query: &Query) -> Result<Value> {
    let include = Include::of(query)?;
    let rows = nodes.iter().map(|node| row(include, &node.metadata, &node.usage, &node.window, node));
    Ok(table(form, rows.collect::<Result<_>>()?))
}

pub fn of_pods(pods: &[PodMetrics<'_>], form: Form, query: &Query) -> Result<Value> {
    let include = Include::of(query)?;
    let rows = pods.iter().map(|pod| {
        let (cpu, memory) = pod.total;
        row(include, &pod.metadata, &Amounts::of(cpu, memory), &pod.window, pod)
    });
    Ok(table(form, rows.collect::<Result<_>>()?))
}
