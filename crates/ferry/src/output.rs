//! Lists as aligned tables with headers, JSON or YAML.

use anyhow::Result;
use clap::{Args, ValueEnum};
use machinery::codec::yaml;
use serde_json::{Map, Value};

use crate::serve::say;

/// Output format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Json,
    Yaml,
}

#[derive(Args, Clone, Copy, Debug)]
pub struct OutputArgs {
    /// Output format [default: a table].
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// `1 pod`, `2 pods`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A column: its header, and its member in JSON and YAML.
pub type Column = (&'static str, &'static str);

/// Prints rows, whose cells have the order of the columns.
pub fn print(format: Option<Format>, columns: &[Column], rows: &[Vec<Value>]) -> Result<()> {
    say(format_args!("{}", render(format, columns, rows)?.trim_end()));
    Ok(())
}

fn render(format: Option<Format>, columns: &[Column], rows: &[Vec<Value>]) -> Result<String> {
    let objects = || -> Value {
        let member = |((_, name), cell): (&Column, &Value)| ((*name).to_owned(), cell.clone());
        rows.iter()
            .map(|row| Value::Object(columns.iter().zip(row).map(member).collect::<Map<_, _>>()))
            .collect()
    };
    match format {
        Some(Format::Json) => Ok(serde_json::to_string_pretty(&objects())?),
        Some(Format::Yaml) => Ok(String::from_utf8_lossy(&yaml::encode(&objects())).into_owned()),
        None => Ok(table(columns, rows)),
    }
}

fn table(columns: &[Column], rows: &[Vec<Value>]) -> String {
    let text = |cell: &Value| match cell {
        Value::Null => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let header: Vec<String> = columns.iter().map(|(header, _)| (*header).to_owned()).collect();
    let lines: Vec<Vec<String>> =
        std::iter::once(header).chain(rows.iter().map(|row| row.iter().map(text).collect())).collect();
    let width =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).filter_map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("   ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COLUMNS: [Column; 3] = [("NAME", "name"), ("SIZE", "size"), ("ID", "id")];

    #[test]
    fn lists_are_tables_json_or_yaml() {
        let rows = [
            vec![json!("example.com/app:v1"), json!(5), json!(null)],
            vec![json!("b"), json!(12345), json!("x")],
        ];
        let text = |format| render(format, &COLUMNS, &rows).expect("rendered");
        assert_eq!(
            text(None),
            "NAME                 SIZE    ID\nexample.com/app:v1   5       <none>\nb                    12345   x\n"
        );
        let json: Value = serde_json::from_str(&text(Some(Format::Json))).expect("JSON");
        assert_eq!(json[0], json!({"name": "example.com/app:v1", "size": 5, "id": null}));
        assert!(text(Some(Format::Yaml)).contains("size: 12345"), "{}", text(Some(Format::Yaml)));
        assert_eq!(render(None, &COLUMNS, &[]).expect("rendered"), "NAME   SIZE   ID\n");
        assert_eq!(render(Some(Format::Json), &COLUMNS, &[]).expect("rendered"), "[]");
    }
}
