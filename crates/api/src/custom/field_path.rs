//! Paths to fields, as rules and selectable fields name them: `.spec.replicas`, `.spec['odd.name']`.

use super::schema::Schema;

const NO_FIELD: &str = "does not refer to a valid field";
const CUT_OFF: &str = "unexpected end of JSON path";

/// Where a path leads: the names on the way, and the schema there if one is known.
pub struct Found<'a> {
    /// As messages write it, and so that equal paths are equal.
    pub path: String,
    pub first: String,
    pub schema: Option<Schema<'a>>,
}

/// Follows a path, or says why it leads nowhere.
pub fn follow<'a>(path: &str, schema: Option<Schema<'a>>, brackets: bool) -> Result<Found<'a>, String> {
    let mut found = Found { path: String::new(), first: String::new(), schema };
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = tokens.next().ok_or(CUT_OFF)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                unescape(inner).map_err(|why| format!("invalid string literal: {why}"))?
            }
            "." => tokens.next().ok_or(CUT_OFF)?.to_owned(),
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        step(&mut found, &name)?;
        if token == "[" {
            match tokens.next().ok_or(CUT_OFF)? {
                "]" => {}
                other => return Err(format!("expected ] but got {other}")),
            }
        }
    }
    Ok(found)
}

fn step(found: &mut Found<'_>, name: &str) -> Result<(), String> {
    let at = found.schema.ok_or(NO_FIELD)?;
    if found.path.is_empty() {
        name.clone_into(&mut found.first);
    }
    if at.has_properties() {
        found.schema = Some(at.property(name).ok_or(NO_FIELD)?);
        if !found.path.is_empty() {
            found.path.push('.');
        }
        found.path.push_str(name);
    } else {
        at.additional().ok_or(NO_FIELD)?;
        found.schema = at.additional_schema();
        found.path.push_str(&format!("[{name}]"));
    }
    Ok(())
}

/// `.`, `[` and `]` stand alone; what is quoted is one.
fn tokens(path: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '.' | '[' | ']' => 1,
            '\'' => {
                let mut escaped = false;
                let close = rest.char_indices().skip(1).find(|(_, c)| {
                    let closes = *c == '\'' && !escaped;
                    escaped = *c == '\\';
                    closes
                });
                close.map_or(rest.len(), |(at, _)| at + 1)
            }
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after;
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some(c @ ('\'' | '"' | '\\')) => c,
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            _ => return Err("invalid syntax".to_owned()),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_followed() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "odd.name": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}});
        let follow =
            |path: &str, brackets| follow(path, Some(Schema(&schema)), brackets).map(|found| found.path);
        for (path, brackets, want) in [
            (".spec.a", false, Ok("spec.a")),
            (".spec['odd.name']", true, Ok("spec.odd.name")),
            (".spec.labels['x']", true, Ok("spec.labels[x]")),
            (".spec['a']", false, Err("array notation is not allowed")),
            (".spec.nope", false, Err(NO_FIELD)),
            ("spec", false, Err("expected [ or . but got: spec")),
            (".spec.", false, Err(CUT_OFF)),
            (".spec[a]", true, Err("expected single quoted string but got a")),
        ] {
            assert_eq!(follow(path, brackets).as_deref().map_err(String::as_str), want, "{path}");
        }
    }
}
