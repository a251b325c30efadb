//! Output formats, shared by verbs.

mod columns;
mod table;
mod tabwriter;
mod template;

use machinery::codec::{time, yaml};
use machinery::jsonpath::{self, Missing, Template};
use serde_json::Value;

pub use columns::{CustomColumns, relaxed};
pub use table::{TableOptions, TablePrinter, table_of};
pub use tabwriter::TabWriter;

use crate::arguments::Matches;
use crate::error::{CliError, fail};
use template::GoTemplate;

/// Output formats of complete objects.
#[derive(Clone, Debug)]
pub enum Format {
    Json,
    Yaml,
    Name,
    JsonPath(Template),
    JsonPathAsJson(Template),
    Columns(CustomColumns),
    GoTemplate(GoTemplate),
}

/// Prints objects in one format.
#[derive(Clone, Debug)]
pub struct Printer {
    pub format: Format,
    missing: Missing,
    keep_managed_fields: bool,
    printed: usize,
}

const FORMATS: [&str; 7] =
    ["go-template", "go-template-file", "json", "jsonpath", "jsonpath-as-json", "jsonpath-file", "name"];
const TEMPLATES: [&str; 3] = ["template", "templatefile", "yaml"];

impl Printer {
    /// The printer of `-o`; nothing if the verb's own output is wanted.
    pub fn read(matches: &Matches) -> Result<Option<Self>, CliError> {
        Self::parse(matches.text("output"), matches, &[])
    }

    /// As [`Printer::read`], with further formats that only some verbs have.
    pub fn parse(output: &str, matches: &Matches, more: &[&str]) -> Result<Option<Self>, CliError> {
        let mut output = output.to_owned();
        let template = matches.text("template");
        if output.is_empty() && !template.is_empty() {
            "go-template".clone_into(&mut output);
        }
        let (name, argument) = match output.split_once('=') {
            Some((name, argument)) => (name, argument.to_owned()),
            None => (output.as_str(), template.to_owned()),
        };
        let file = |what: &str| {
            std::fs::read_to_string(&argument)
                .map_err(|error| CliError::Text(format!("error reading {what} {argument}, {error}")))
        };
        let path = |text: &str| {
            if text.is_empty() {
                return fail("template format specified but no template given");
            }
            let relaxed = columns::relaxed(text);
            Template::parse(&relaxed)
                .map_err(|error| CliError::Text(format!("error parsing jsonpath {text}, {error}")))
        };
        let go_template = |text: &str| {
            if text.is_empty() {
                return fail("template format specified but no template given");
            }
            GoTemplate::parse(text).map(Format::GoTemplate).map_err(|error| {
                CliError::Text(format!("error parsing template {text}, template: output:1: {error}"))
            })
        };
        let format = match name {
            "" => return Ok(None),
            "json" => Format::Json,
            "yaml" => Format::Yaml,
            "name" => Format::Name,
            "jsonpath" => Format::JsonPath(path(&argument)?),
            "jsonpath-file" => Format::JsonPath(path(&file("template")?)?),
            "jsonpath-as-json" => Format::JsonPathAsJson(path(&argument)?),
            "go-template" | "template" => go_template(&argument)?,
            "go-template-file" | "templatefile" => go_template(&file("template")?)?,
            "custom-columns" if more.contains(&name) => Format::Columns(CustomColumns::parse(&argument)?),
            "custom-columns-file" if more.contains(&name) => {
                Format::Columns(CustomColumns::parse_file(&file("template")?)?)
            }
            _ => {
                let mut known: Vec<&str> = FORMATS.iter().chain(&TEMPLATES).chain(more).copied().collect();
                known.sort_unstable();
                return fail(format!(
                    "unable to match a printer suitable for the output format {}, allowed formats are: {}",
                    machinery::field::show_str(&output),
                    known.join(",")
                ));
            }
        };
        let missing = if matches.on("allow-missing-template-keys") { Missing::Allow } else { Missing::Error };
        let keep_managed_fields = matches.on("show-managed-fields");
        Ok(Some(Self { format, missing, keep_managed_fields, printed: 0 }))
    }

    /// The text of an object or a list.
    pub fn print(&mut self, object: &Value) -> Result<String, CliError> {
        let mut object = object.clone();
        if !self.keep_managed_fields {
            drop_managed_fields(&mut object);
        }
        self.printed += 1;
        match &self.format {
            Format::Json => Ok(pretty_json(&object) + "\n"),
            Format::Yaml => {
                let text = String::from_utf8_lossy(&yaml::encode(&object)).into_owned();
                Ok(if self.printed > 1 { format!("---\n{text}") } else { text })
            }
            Format::Name => match object["items"].as_array() {
                Some(items) => Ok(items.iter().map(|item| title(item) + "\n").collect()),
                None => Ok(title(&object) + "\n"),
            },
            Format::JsonPath(template) => {
                let text = template.execute(&object, self.missing);
                text.map_err(|error| CliError::Text(format!("error executing jsonpath: {error}")))
            }
            Format::JsonPathAsJson(template) => {
                let results = template.results(&object, self.missing);
                let results =
                    results.map_err(|error| CliError::Text(format!("error executing jsonpath: {error}")))?;
                Ok(results.iter().map(|results| jsonpath::json(results)).collect())
            }
            Format::Columns(columns) => columns.print(&object, self.printed == 1),
            Format::GoTemplate(template) => template
                .execute(&object)
                .map_err(|error| CliError::Text(format!("error executing template: {error}"))),
        }
    }
}

/// JSON in lines, as kubectl writes it.
pub fn pretty_json(value: &Value) -> String {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    // Writing to memory cannot fail.
    let _ = serde::Serialize::serialize(value, &mut serializer);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        if text.contains(c) {
            text = text.replace(c, &format!("\\u{:04x}", c as u32));
        }
    }
    text
}

fn drop_managed_fields(object: &mut Value) {
    if let Some(Value::Array(items)) = object.get_mut("items") {
        items.iter_mut().for_each(drop_managed_fields);
    }
    if let Some(Value::Object(meta)) = object.get_mut("metadata") {
        meta.remove("managedFields");
    }
}

/// `deployment.apps/web`, from an object's own type.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let kind = text(&object["kind"]).to_lowercase();
    let name = text(&object["metadata"]["name"]);
    let name = if name.is_empty() { "<unknown>" } else { &name };
    escape_terminal(&if group.is_empty() {
        format!("{kind}/{name}")
    } else {
        format!("{kind}.{group}/{name}")
    })
}

/// Text without control characters.
pub fn escape_terminal(text: &str) -> String {
    text.replace('\u{1b}', "^[").replace('\r', "\\r")
}

/// A value as Go's `fmt.Sprint` shows it.
pub fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{key}:{}", go_value(value));
            format!("map[{}]", members.iter().map(member).collect::<Vec<_>>().join(" "))
        }
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (None, None, Some(float)) => machinery::field::show_float(float),
            _ => number.to_string(),
        },
        Value::Bool(_) => value.to_string(),
    }
}

/// Labels in one cell: `a=b,c=d`.
pub fn labels(labels: &Value) -> String {
    match labels.as_object().filter(|labels| !labels.is_empty()) {
        None => "<none>".to_owned(),
        Some(labels) => {
            let label =
                |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
            labels.iter().map(label).collect::<Vec<_>>().join(",")
        }
    }
}

/// Seconds since 1970 of a timestamp.
pub fn seconds(timestamp: &Value) -> Option<i64> {
    let text = timestamp.as_str()?;
    let micros = text.contains('.');
    time::parse(text, micros).ok().map(|instant| instant.seconds)
}

pub fn now() -> i64 {
    base::clock::Clock::system().now().as_second()
}

/// Time since a timestamp.
pub fn age(timestamp: &Value) -> String {
    match seconds(timestamp) {
        Some(seconds) => human_duration(now().saturating_sub(seconds)),
        None => "<unknown>".to_owned(),
    }
}

/// A duration in two units at most, as tables show it.
pub fn human_duration(seconds: i64) -> String {
    let two = |big: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{small_unit}"),
    };
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_have_kubectls_units() {
        let rows = [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (700_000, "8d"),
            (70_000_000, "2y80d"),
            (300_000_000, "9y"),
        ];
        for (seconds, want) in rows {
            assert_eq!(human_duration(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn json_has_four_spaces_and_go_escapes() {
        assert_eq!(
            pretty_json(&json!({"a": ["<&>"], "b": {}})),
            "{\n    \"a\": [\n        \"\\u003c\\u0026\\u003e\"\n    ],\n    \"b\": {}\n}"
        );
    }

    #[test]
    fn values_look_as_go_prints_them() {
        assert_eq!(go_value(&json!({"a": [1, true, "x"], "b": null})), "map[a:[1 true x] b:<nil>]");
        assert_eq!(
            title(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}})),
            "deployment.apps/web"
        );
    }
}
