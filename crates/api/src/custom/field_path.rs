//! Field paths of rules and selectable fields: `.spec.replicas`, `.spec['odd.name']`.

use super::schema::Schema;

const NO_FIELD: &str = "does not refer to a valid field";
const CUT_OFF: &str = "unexpected end of JSON path";

/// Resolved path: its field names, and the schema of its target if known.
pub struct ResolvedPath<'a> {
    /// Canonical text, as in messages.
    pub path: String,
    pub first: String,
    pub schema: Option<Schema<'a>>,
}

/// Resolves a path; the error is the reason why it is invalid.
pub fn follow<'a>(
    path: &str,
    schema: Option<Schema<'a>>,
    brackets: bool,
) -> Result<ResolvedPath<'a>, String> {
    let mut resolved = ResolvedPath { path: String::new(), first: String::new(), schema };
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
        step(&mut resolved, &name)?;
        if token == "[" {
            match tokens.next().ok_or(CUT_OFF)? {
                "]" => {}
                other => return Err(format!("expected ] but got {other}")),
            }
        }
    }
    Ok(resolved)
}

fn step(resolved: &mut ResolvedPath<'_>, name: &str) -> Result<(), String> {
    let at = resolved.schema.ok_or(NO_FIELD)?;
    if resolved.path.is_empty() {
        name.clone_into(&mut resolved.first);
    }
    if at.has_properties() {
        resolved.schema = Some(at.property(name).ok_or(NO_FIELD)?);
        if !resolved.path.is_empty() {
            resolved.path.push('.');
        }
        resolved.path.push_str(name);
    } else {
        at.additional().ok_or(NO_FIELD)?;
        resolved.schema = at.additional_schema();
        resolved.path.push_str(&format!("[{name}]"));
    }
    Ok(())
}

/// Tokens: `.`, `[` and `]` each; a quoted text is one token.
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
    fn field_paths_resolve_in_schema() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "odd.name": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}});
        let follow = |path: &str, brackets| {
            follow(path, Some(Schema(&schema)), brackets).map(|resolved| resolved.path)
        };
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
