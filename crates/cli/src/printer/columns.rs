//! `-o custom-columns`.

use machinery::jsonpath::{Missing, Template};
use serde_json::Value;

use super::{TabWriter, escape_terminal, go_value};
use crate::error::{CliError, fail};

/// Columns with a header and a path each.
#[derive(Clone, Debug)]
pub struct CustomColumns {
    columns: Vec<(String, Template)>,
    pub no_headers: bool,
}

impl CustomColumns {
    /// `NAME:.metadata.name,NODE:.spec.nodeName`
    pub fn parse(spec: &str) -> Result<Self, CliError> {
        if spec.is_empty() {
            return fail("custom-columns format specified but no custom columns given");
        }
        let mut columns = Vec::new();
        for part in split(spec) {
            let Some((header, path)) = part.split_once(':').filter(|(_, path)| !path.contains(": ")) else {
                return fail(format!(
                    "unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"
                ));
            };
            columns.push(column(header, path)?);
        }
        Ok(Self { columns, no_headers: false })
    }

    /// A line of headers and a line of paths.
    pub fn parse_file(text: &str) -> Result<Self, CliError> {
        let mut lines = text.lines();
        let (headers, paths) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let (headers, paths): (Vec<&str>, Vec<&str>) =
            (headers.split_whitespace().collect(), paths.split_whitespace().collect());
        if headers.len() != paths.len() {
            return fail(format!(
                "number of headers ({}) and field specifications ({}) don't match",
                headers.len(),
                paths.len()
            ));
        }
        let columns = headers
            .iter()
            .zip(&paths)
            .map(|(header, path)| column(header, path))
            .collect::<Result<_, _>>()?;
        Ok(Self { columns, no_headers: false })
    }

    pub fn print(&self, object: &Value, first: bool) -> Result<String, CliError> {
        let mut writer = TabWriter::default();
        if first && !self.no_headers {
            let headers: Vec<&String> = self.columns.iter().map(|(header, _)| header).collect();
            writer.row(&headers);
        }
        let single = std::slice::from_ref(object);
        for item in object["items"].as_array().map_or(single, Vec::as_slice) {
            let cells =
                self.columns.iter().map(|(_, path)| cell(path, item)).collect::<Result<Vec<_>, _>>()?;
            writer.row(&cells);
        }
        Ok(writer.flush())
    }
}

/// The parts between commas that are in no brackets.
fn split(spec: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in spec.char_indices() {
        match c {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&spec[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&spec[start..]);
    parts
}

fn column(header: &str, path: &str) -> Result<(String, Template), CliError> {
    let template = Template::parse(&relaxed(path))
        .map_err(|error| CliError::Text(format!("error parsing jsonpath {path}, {error}")))?;
    Ok((header.to_owned(), template))
}

/// A path in braces: `.a`, `a`, `{.a}` and `{a}` mean the same. Templates stay as they are.
pub fn relaxed(path: &str) -> String {
    if path.contains('{') && !(path.starts_with('{') && path.matches('{').count() == 1 && path.ends_with('}'))
    {
        return path.to_owned();
    }
    let inner = path.strip_prefix('{').and_then(|path| path.strip_suffix('}')).unwrap_or(path);
    let inner = inner.strip_prefix('$').unwrap_or(inner);
    match inner.chars().next() {
        Some('.' | '[' | '"' | '\'' | '@' | '?' | '*') | None => format!("{{{inner}}}"),
        Some(_) if inner.starts_with("range ") || inner == "end" => format!("{{{inner}}}"),
        Some(_) => format!("{{.{inner}}}"),
    }
}

fn cell(path: &Template, item: &Value) -> Result<String, CliError> {
    let results = path
        .results(item, Missing::Allow)
        .map_err(|error| CliError::Text(format!("error executing jsonpath: {error}")))?;
    let values: Vec<String> = results
        .iter()
        .flatten()
        .map(|value| escape_terminal(&go_value(value)).replace('\n', "\\n"))
        .collect();
    Ok(if values.is_empty() { "<none>".to_owned() } else { values.join(",") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_have_headers_and_paths() {
        let columns = CustomColumns::parse("NAME:.metadata.name,C:spec.list[*].a,X:{.gone}").expect("parsed");
        let list = json!({"items": [{"metadata": {"name": "x"}, "spec": {"list": [{"a": 1}, {"a": 2}]}}]});
        assert_eq!(columns.print(&list, true).expect("printed"), "NAME   C     X\nx      1,2   <none>\n");
        let file = CustomColumns::parse_file("NAME\n.metadata.name\n").expect("parsed");
        assert_eq!(file.print(&list["items"][0], false).expect("printed"), "x\n");
        assert!(CustomColumns::parse("NAME").is_err() && CustomColumns::parse_file("A B\n.c\n").is_err());
    }
}
