//! Tables that the server makes of objects.

use serde_json::{Value, json};

use super::{TabWriter, age, escape_terminal, go_value};

/// Choices of columns.
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    pub no_headers: bool,
    pub wide: bool,
    pub with_namespace: bool,
    /// Prefix of names, such as `deployment.apps`.
    pub kind: Option<String>,
    pub show_labels: bool,
    pub label_columns: Vec<String>,
}

/// Prints tables; headers again only if the columns change.
#[derive(Debug, Default)]
pub struct TablePrinter {
    pub options: TableOptions,
    columns: Value,
    printed_headers: bool,
}

/// An object in the form of a table, for servers that make none.
pub fn table_of(object: &Value) -> Value {
    if object["kind"] == "Table" {
        return object.clone();
    }
    let items = match object["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![object.clone()],
    };
    let rows: Vec<Value> = items
        .into_iter()
        .map(|item| {
            let cells = json!([item["metadata"]["name"], age(&item["metadata"]["creationTimestamp"])]);
            json!({"cells": cells, "object": item})
        })
        .collect();
    let columns =
        json!([{"name": "Name", "type": "string", "format": "name"}, {"name": "Age", "type": "string"}]);
    json!({"kind": "Table", "columnDefinitions": columns, "rows": rows})
}

impl TablePrinter {
    pub fn new(options: TableOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Adds a table to `writer`; `event` is the type of a watch event, if it is to be shown.
    pub fn print(&mut self, table: &Value, event: Option<&str>, writer: &mut TabWriter) {
        const NONE: &[Value] = &[];
        let mut no_headers = self.options.no_headers;
        let own = &table["columnDefinitions"];
        let has_own = own.as_array().is_some_and(|columns| !columns.is_empty());
        if self.printed_headers && (!has_own || *own == self.columns) {
            no_headers = true;
        }
        if has_own && *own != self.columns {
            self.columns = own.clone();
            self.printed_headers = false;
        }
        let rows = table["rows"].as_array().map_or(NONE, Vec::as_slice);
        if rows.is_empty() {
            return;
        }
        self.printed_headers = true;
        let columns = self.columns.as_array().map_or(NONE, Vec::as_slice);
        let shown = |column: &Value| self.options.wide || column["priority"].as_i64().unwrap_or(0) == 0;
        if !no_headers {
            let mut cells: Vec<String> = Vec::new();
            cells.extend(event.map(|_| "EVENT".to_owned()));
            cells.extend(self.options.with_namespace.then(|| "NAMESPACE".to_owned()));
            let names = columns.iter().filter(|column| shown(column));
            cells.extend(names.map(|column| text(&column["name"]).to_uppercase()));
            cells.extend(self.options.label_columns.iter().map(|label| label_header(label)));
            cells.extend(self.options.show_labels.then(|| "LABELS".to_owned()));
            writer.row(&cells);
        }
        let is_name = |column: &Value| column["format"] == "name" && column["type"] == "string";
        let name_column = self.options.kind.as_ref().and_then(|_| columns.iter().position(is_name));
        for row in rows {
            let mut cells: Vec<String> = Vec::new();
            cells.extend(event.map(event_type));
            let meta = &row["object"]["metadata"];
            cells.extend(self.options.with_namespace.then(|| escape_terminal(&text(&meta["namespace"]))));
            let values = row["cells"].as_array().map_or(NONE, Vec::as_slice);
            for (index, (column, value)) in columns.iter().zip(values).enumerate() {
                if !shown(column) {
                    continue;
                }
                let mut cell = shown_cell(value);
                if let Some(kind) = self.options.kind.as_ref().filter(|_| name_column == Some(index)) {
                    cell = format!("{kind}/{cell}");
                }
                cells.push(cell);
            }
            let label = |key: &str| meta["labels"].get(key).map(text);
            for key in &self.options.label_columns {
                cells.push(escape_terminal(&label(key).unwrap_or_default()));
            }
            if self.options.show_labels {
                cells.push(escape_terminal(&super::labels(&meta["labels"])));
            }
            writer.row(&cells);
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A cell up to its first line break, without control characters.
fn shown_cell(value: &Value) -> String {
    let Value::String(text) = value else {
        return if value.is_null() { String::new() } else { escape_terminal(&go_value(value)) };
    };
    match text.find(['\u{c}', '\n', '\r']) {
        Some(at) => escape_terminal(&text[..at]) + "...",
        None => escape_terminal(text),
    }
}

/// `app.kubernetes.io/name` is headed `NAME`.
fn label_header(label: &str) -> String {
    label.rsplit('/').next().unwrap_or(label).to_uppercase()
}

fn event_type(event: &str) -> String {
    match event {
        "ADDED" | "DELETED" | "ERROR" => format!("{event:8}"),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Value {
        json!({"kind": "Table", "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name"},
            {"name": "Ready", "type": "integer"},
            {"name": "Node", "type": "string", "priority": 1}],
            "rows": [
                {"cells": ["a\u{1b}[31m", 1, "n"], "object": {"metadata": {"namespace": "x", "labels": {"b/app": "v", "a": "w"}}}},
                {"cells": ["line\nbreak", null, "n", "surplus"], "object": {"metadata": {"namespace": "y"}}}]})
    }

    fn printed(options: TableOptions, event: Option<&str>) -> String {
        let (mut printer, mut writer) = (TablePrinter::new(options), TabWriter::default());
        printer.print(&table(), event, &mut writer);
        writer.flush()
    }

    #[test]
    fn cells_are_escaped_and_cut_at_line_breaks() {
        assert_eq!(printed(TableOptions::default(), None), "NAME      READY\na^[[31m   1\nline...   \n");
    }

    #[test]
    fn columns_follow_the_options() {
        let options = TableOptions {
            wide: true,
            with_namespace: true,
            kind: Some("pod".to_owned()),
            show_labels: true,
            label_columns: vec!["b/app".to_owned()],
            ..TableOptions::default()
        };
        let want = "EVENT      NAMESPACE   NAME          READY   NODE   APP   LABELS\n\
                    ADDED      x           pod/a^[[31m   1       n      v     a=w,b/app=v\n\
                    ADDED      y           pod/line...           n            <none>\n";
        assert_eq!(printed(options, Some("ADDED")), want);
    }

    #[test]
    fn headers_come_once() {
        let (mut printer, mut writer) = (TablePrinter::default(), TabWriter::default());
        printer.print(&table(), None, &mut writer);
        let mut without = table();
        without["columnDefinitions"] = json!([]);
        printer.print(&without, None, &mut writer);
        assert_eq!(writer.flush().matches("NAME").count(), 1);
    }

    #[test]
    fn objects_without_a_table_have_name_and_age() {
        let table = table_of(&json!({"items": [{"metadata": {"name": "a"}}]}));
        assert_eq!(table["rows"][0]["cells"], json!(["a", "<unknown>"]));
    }
}
