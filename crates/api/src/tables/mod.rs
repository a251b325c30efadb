//! Table form of objects: columns and the values of their cells, one file per family.

pub(crate) mod admission;
pub(crate) mod api_service;
pub(crate) mod autoscaling;
pub(crate) mod batch;
mod cell;
pub(crate) mod certificates;
pub(crate) mod config;
mod doc;
pub(crate) mod event;
pub(crate) mod flow_control;
pub(crate) mod networking;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod policy;
pub(crate) mod rbac;
pub(crate) mod resource;
pub(crate) mod service;
pub(crate) mod storage;
pub(crate) mod workloads;

pub use cell::{human_duration, label_selector_text};
pub(crate) use doc::OBJECT_META_CREATION_TIMESTAMP as CREATION_TIMESTAMP;

use crate::kind::{CellContext, Column, Table};
use cell::{created_at, name};
use machinery::Value;

const fn column(name: &'static str, kind: &'static str, description: &'static str) -> Column<'static> {
    Column { name, kind, format: "", description, priority: 0 }
}

/// A column shown only by `-o wide`.
const fn wide(name: &'static str, kind: &'static str, description: &'static str) -> Column<'static> {
    Column { name, kind, format: "", description, priority: 1 }
}

impl Column<'static> {
    /// Clients treat cells of this column as names.
    const fn formatted_name(self) -> Column<'static> {
        Column { format: "name", ..self }
    }
}

const fn plain(columns: &'static [Column<'static>], cells: fn(&Value, CellContext) -> Vec<Value>) -> Table {
    Table { columns, cells, conditions: None, order: None }
}

const NAME: Column<'static> = column("Name", "string", doc::OBJECT_META_NAME).formatted_name();
const AGE: Column<'static> = column("Age", "string", doc::OBJECT_META_CREATION_TIMESTAMP);

/// The table of kinds without a layout of their own.
pub static GENERIC: Table =
    plain(&[NAME, column("Created At", "date", doc::OBJECT_META_CREATION_TIMESTAMP)], |object, _| {
        vec![name(object), created_at(object)]
    });

/// The table of a `scale` subresource.
pub static SCALE: &Table = &autoscaling::SCALE;

/// True for the table of kinds without a layout of their own.
pub fn is_generic(table: &Table) -> bool {
    std::ptr::eq(table, &GENERIC)
}

#[cfg(test)]
mod tests;
