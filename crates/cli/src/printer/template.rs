//! `-o go-template`: the constructs of Go's text templates that are used with kubectl.
//!
//! Actions: pipelines, `range`, `if`, `else`, `with`, `end`, variables, comments. Functions: see [`call`].

use std::collections::HashMap;

use base64::Engine as _;
use serde_json::Value;

use super::go_value;

/// Deepest nesting of actions and parentheses.
const DEEPEST: usize = 64;
/// Longest output.
const LONGEST: usize = 256 << 20;

#[derive(Clone, Debug)]
pub struct GoTemplate {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
enum Node {
    Text(String),
    Action(Vec<String>, Pipeline),
    Range(Vec<String>, Pipeline, Vec<Node>, Vec<Node>),
    If(Pipeline, Vec<Node>, Vec<Node>),
    With(Vec<String>, Pipeline, Vec<Node>, Vec<Node>),
}

/// Commands, each of which gets the result of the one before as its last argument.
type Pipeline = Vec<Vec<Operand>>;

#[derive(Clone, Debug)]
enum Operand {
    /// `.a.b`
    Path(Vec<String>),
    /// `$x.a`
    Variable(String, Vec<String>),
    Constant(Value),
    Function(String),
    /// `(pipeline).a`
    Group(Pipeline, Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Identifier(String),
    Text(String),
    Open,
    Close(Vec<String>),
    Pipe,
}

impl GoTemplate {
    pub fn parse(text: &str) -> Result<Self, String> {
        let pieces = pieces(text)?;
        let mut at = 0;
        let (nodes, end) = parse_nodes(&pieces, &mut at, 0)?;
        match end.as_str() {
            "" => Ok(Self { nodes }),
            end => Err(format!("unexpected {{{{{end}}}}}")),
        }
    }

    pub fn execute(&self, value: &Value) -> Result<String, String> {
        let mut run = Run { out: String::new(), variables: HashMap::from([("$".to_owned(), value.clone())]) };
        run.nodes(&self.nodes, value)?;
        Ok(run.out)
    }
}

enum Piece {
    Text(String),
    Action(String),
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let (mut rest, mut trim) = (text, false);
    while let Some(start) = rest.find("{{") {
        let inside = &rest[start + 2..];
        let end = inside.find("}}").ok_or("unclosed action")?;
        let mut action = &inside[..end];
        let mut before = &rest[..start];
        if trim {
            before = before.trim_start();
        }
        if let Some(trimmed) = action.strip_prefix("- ") {
            action = trimmed;
            before = before.trim_end();
        }
        trim = action.ends_with(" -");
        action = action.strip_suffix(" -").unwrap_or(action);
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Action(action.trim().to_owned()));
        rest = &inside[end + 2..];
    }
    pieces.push(Piece::Text(if trim { rest.trim_start() } else { rest }.to_owned()));
    Ok(pieces)
}

/// Nodes up to `end` or `else`, and the word that ended them.
fn parse_nodes(pieces: &[Piece], at: &mut usize, depth: usize) -> Result<(Vec<Node>, String), String> {
    if depth > DEEPEST {
        return Err("too deeply nested".to_owned());
    }
    let mut nodes = Vec::new();
    while let Some(piece) = pieces.get(*at) {
        *at += 1;
        let action = match piece {
            Piece::Text(text) => {
                nodes.push(Node::Text(text.clone()));
                continue;
            }
            Piece::Action(action) => action,
        };
        let end = action.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(action.len());
        let (identifier, rest) = action.split_at(end);
        match identifier {
            "end" | "else" => return Ok((nodes, action.clone())),
            "range" | "if" | "with" => {
                let (names, pipeline) = declaration(rest, depth)?;
                let (body, mut end) = parse_nodes(pieces, at, depth + 1)?;
                let mut otherwise = Vec::new();
                if let Some(condition) = end.strip_prefix("else if ") {
                    let (_, pipeline) = declaration(condition, depth)?;
                    let (inner, inner_end) = parse_nodes(pieces, at, depth + 1)?;
                    let mut last = Vec::new();
                    end = inner_end;
                    if end == "else" {
                        (last, end) = parse_nodes(pieces, at, depth + 1)?;
                    }
                    otherwise.push(Node::If(pipeline, inner, last));
                } else if end == "else" {
                    (otherwise, end) = parse_nodes(pieces, at, depth + 1)?;
                }
                if end != "end" {
                    return Err("unexpected EOF".to_owned());
                }
                nodes.push(match identifier {
                    "range" => Node::Range(names, pipeline, body, otherwise),
                    "if" => Node::If(pipeline, body, otherwise),
                    _ => Node::With(names, pipeline, body, otherwise),
                });
            }
            _ if action.starts_with("/*") => {}
            _ if action.is_empty() => return Err("missing value for command".to_owned()),
            _ => {
                let (names, pipeline) = declaration(action, depth)?;
                nodes.push(Node::Action(names, pipeline));
            }
        }
    }
    Ok((nodes, String::new()))
}

/// `$a, $b := pipeline`, or a pipeline alone.
fn declaration(text: &str, depth: usize) -> Result<(Vec<String>, Pipeline), String> {
    let assigned = text.split_once(":=").or_else(|| text.split_once(" = "));
    if let Some((names, rest)) = assigned.filter(|(names, _)| names.trim_start().starts_with('$')) {
        let names = names.split(',').map(|name| name.trim().to_owned()).collect();
        return Ok((names, pipeline(rest, depth)?));
    }
    Ok((Vec::new(), pipeline(text, depth)?))
}

fn pipeline(text: &str, depth: usize) -> Result<Pipeline, String> {
    let tokens = tokens(text)?;
    let mut at = 0;
    let commands = commands(&tokens, &mut at, depth)?;
    if at < tokens.len() { Err("unexpected right paren".to_owned()) } else { Ok(commands) }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        match first {
            '(' => {
                tokens.push(Token::Open);
                rest = &rest[1..];
            }
            ')' => {
                let tail = &rest[1..];
                let end = tail
                    .find(|c: char| c.is_whitespace() || matches!(c, ')' | '|' | '('))
                    .unwrap_or(tail.len());
                tokens.push(Token::Close(names(&tail[..end])));
                rest = &tail[end..];
            }
            '|' => {
                tokens.push(Token::Pipe);
                rest = &rest[1..];
            }
            '"' => {
                let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                let Some(Ok(value)) = stream.next() else {
                    return Err("unterminated quoted string".to_owned());
                };
                rest = &rest[stream.byte_offset()..];
                tokens.push(Token::Text(value));
            }
            '`' => {
                let end = rest[1..].find('`').ok_or("unterminated raw quoted string")?;
                tokens.push(Token::Text(rest[1..=end].to_owned()));
                rest = &rest[end + 2..];
            }
            _ => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || matches!(c, ')' | '|' | '('))
                    .unwrap_or(rest.len());
                tokens.push(Token::Identifier(rest[..end].to_owned()));
                rest = &rest[end..];
            }
        }
        rest = rest.trim_start();
    }
    Ok(tokens)
}

fn names(path: &str) -> Vec<String> {
    path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn commands(tokens: &[Token], at: &mut usize, depth: usize) -> Result<Pipeline, String> {
    if depth > DEEPEST {
        return Err("too deeply nested".to_owned());
    }
    let mut commands = vec![Vec::new()];
    while let Some(token) = tokens.get(*at) {
        let operand = match token {
            Token::Close(_) => break,
            Token::Pipe => {
                *at += 1;
                commands.push(Vec::new());
                continue;
            }
            Token::Open => {
                *at += 1;
                let inner = self::commands(tokens, at, depth + 1)?;
                match tokens.get(*at) {
                    Some(Token::Close(path)) => Operand::Group(inner, path.clone()),
                    _ => return Err("unclosed left paren".to_owned()),
                }
            }
            Token::Text(text) => Operand::Constant(Value::String(text.clone())),
            Token::Identifier(identifier) => operand(identifier)?,
        };
        *at += 1;
        if let Some(command) = commands.last_mut() {
            command.push(operand);
        }
    }
    if commands.iter().any(Vec::is_empty) {
        return Err("missing value for command".to_owned());
    }
    Ok(commands)
}

fn operand(identifier: &str) -> Result<Operand, String> {
    if identifier.starts_with('.') {
        return Ok(Operand::Path(names(identifier)));
    }
    if identifier.starts_with('$') {
        let (name, path) = identifier.split_once('.').unwrap_or((identifier, ""));
        return Ok(Operand::Variable(name.to_owned(), names(path)));
    }
    match identifier {
        "true" => return Ok(Operand::Constant(Value::Bool(true))),
        "false" => return Ok(Operand::Constant(Value::Bool(false))),
        "nil" => return Ok(Operand::Constant(Value::Null)),
        _ => {}
    }
    if let Ok(number) = identifier.parse::<i64>() {
        return Ok(Operand::Constant(number.into()));
    }
    if FUNCTIONS.contains(&identifier) {
        return Ok(Operand::Function(identifier.to_owned()));
    }
    Err(format!("function {} not defined", machinery::field::show_str(identifier)))
}

const FUNCTIONS: [&str; 18] = [
    "and",
    "base64decode",
    "eq",
    "exists",
    "ge",
    "gt",
    "html",
    "index",
    "js",
    "le",
    "len",
    "lt",
    "ne",
    "not",
    "or",
    "print",
    "printf",
    "println",
];

struct Run {
    out: String,
    variables: HashMap<String, Value>,
}

impl Run {
    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<(), String> {
        for node in nodes {
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Action(names, pipeline) => {
                    let value = self.pipeline(pipeline, dot)?;
                    match (names.first(), value) {
                        (Some(name), value) => {
                            drop(self.variables.insert(name.clone(), value.unwrap_or_default()))
                        }
                        (None, Some(value)) => self.out.push_str(&go_value(&value)),
                        (None, None) => self.out.push_str("<no value>"),
                    }
                }
                Node::If(pipeline, body, otherwise) => {
                    let value = self.pipeline(pipeline, dot)?.unwrap_or_default();
                    self.nodes(if is_true(&value) { body } else { otherwise }, dot)?;
                }
                Node::With(names, pipeline, body, otherwise) => {
                    let value = self.pipeline(pipeline, dot)?.unwrap_or_default();
                    if let Some(name) = names.first() {
                        self.variables.insert(name.clone(), value.clone());
                    }
                    if is_true(&value) { self.nodes(body, &value)? } else { self.nodes(otherwise, dot)? }
                }
                Node::Range(names, pipeline, body, otherwise) => {
                    let value = self.pipeline(pipeline, dot)?.unwrap_or_default();
                    let entries: Vec<(Value, Value)> = match value {
                        Value::Array(items) => {
                            items.into_iter().enumerate().map(|(index, item)| (index.into(), item)).collect()
                        }
                        Value::Object(members) => {
                            members.into_iter().map(|(key, value)| (key.into(), value)).collect()
                        }
                        Value::Null => Vec::new(),
                        other => return Err(format!("range can't iterate over {}", go_value(&other))),
                    };
                    if entries.is_empty() {
                        self.nodes(otherwise, dot)?;
                    }
                    for (key, value) in entries {
                        match names.as_slice() {
                            [] => {}
                            [name] => drop(self.variables.insert(name.clone(), value.clone())),
                            [first, second, ..] => {
                                self.variables.insert(first.clone(), key);
                                self.variables.insert(second.clone(), value.clone());
                            }
                        }
                        self.nodes(body, &value)?;
                    }
                }
            }
            if self.out.len() > LONGEST {
                return Err("the output is too long".to_owned());
            }
        }
        Ok(())
    }

    /// The value of a pipeline; nothing if a field is missing.
    fn pipeline(&self, pipeline: &[Vec<Operand>], dot: &Value) -> Result<Option<Value>, String> {
        let mut last: Option<Option<Value>> = None;
        for command in pipeline {
            let mut arguments = Vec::new();
            for operand in &command[1..] {
                arguments.push(self.operand(operand, dot)?.unwrap_or_default());
            }
            arguments.extend(last.take().map(Option::unwrap_or_default));
            last = Some(match &command[0] {
                Operand::Function(name) => Some(call(name, &arguments)?),
                operand if arguments.is_empty() => self.operand(operand, dot)?,
                _ => return Err("can't give argument to non-function".to_owned()),
            });
        }
        Ok(last.flatten())
    }

    fn operand(&self, operand: &Operand, dot: &Value) -> Result<Option<Value>, String> {
        match operand {
            Operand::Path(path) => walk(dot, path),
            Operand::Variable(name, path) => match self.variables.get(name) {
                Some(value) => walk(value, path),
                None => Err(format!("undefined variable {}", machinery::field::show_str(name))),
            },
            Operand::Constant(value) => Ok(Some(value.clone())),
            Operand::Function(name) => call(name, &[]).map(Some),
            Operand::Group(pipeline, path) => match self.pipeline(pipeline, dot)? {
                Some(value) => walk(&value, path),
                None => Ok(None),
            },
        }
    }
}

fn walk(value: &Value, path: &[String]) -> Result<Option<Value>, String> {
    let mut at = value;
    for name in path {
        match at {
            Value::Object(members) => match members.get(name) {
                Some(next) => at = next,
                None => return Ok(None),
            },
            Value::Null => {
                return Err(format!("nil data; no entry for key {}", machinery::field::show_str(name)));
            }
            _ => return Err(format!("can't evaluate field {name} in type interface {{}}")),
        }
    }
    Ok(Some(at.clone()))
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// The element of nested lists and maps that the keys select.
fn index(first: &Value, keys: &[Value]) -> Result<Value, String> {
    let mut at = first.clone();
    for key in keys {
        at = match (&at, key) {
            (Value::Array(items), key) => {
                let index = key.as_u64().and_then(|index| usize::try_from(index).ok());
                let found = index.and_then(|index| items.get(index)).cloned();
                found.ok_or_else(|| format!("error calling index: index out of range: {key}"))?
            }
            (Value::Object(members), Value::String(key)) => members.get(key).cloned().unwrap_or_default(),
            _ => return Err("error calling index: index of untyped nil".to_owned()),
        };
    }
    Ok(at)
}

fn exists(first: &Value, keys: &[Value]) -> bool {
    let mut at = Some(first);
    for key in keys {
        at = at.and_then(|value| match key {
            Value::String(key) => value.get(key),
            key => value.get(usize::try_from(key.as_u64()?).ok()?),
        });
    }
    at.is_some()
}

/// Calls a function of [`FUNCTIONS`].
fn call(name: &str, arguments: &[Value]) -> Result<Value, String> {
    let few = || format!("wrong number of args for {name}: got {}", arguments.len());
    let compare = || -> Result<std::cmp::Ordering, String> {
        match arguments {
            [Value::String(left), Value::String(right)] => Ok(left.cmp(right)),
            [left, right] => match (left.as_f64(), right.as_f64()) {
                (Some(left), Some(right)) => Ok(left.total_cmp(&right)),
                _ => Err(format!("error calling {name}: incompatible types for comparison")),
            },
            _ => Err(few()),
        }
    };
    Ok(match name {
        "and" => {
            arguments.iter().find(|value| !is_true(value)).or(arguments.last()).cloned().ok_or_else(few)?
        }
        "or" => {
            arguments.iter().find(|value| is_true(value)).or(arguments.last()).cloned().ok_or_else(few)?
        }
        "not" => Value::Bool(!is_true(arguments.first().ok_or_else(few)?)),
        "eq" => {
            let (first, rest) = arguments.split_first().ok_or_else(few)?;
            let same = |other: &Value| match (first.as_f64(), other.as_f64()) {
                (Some(left), Some(right)) => left == right,
                _ => first == other,
            };
            Value::Bool(rest.iter().any(same))
        }
        "ne" => Value::Bool(arguments.first() != arguments.get(1)),
        "lt" => Value::Bool(compare()?.is_lt()),
        "le" => Value::Bool(compare()?.is_le()),
        "gt" => Value::Bool(compare()?.is_gt()),
        "ge" => Value::Bool(compare()?.is_ge()),
        "len" => match arguments.first().ok_or_else(few)? {
            Value::String(text) => text.len().into(),
            Value::Array(items) => items.len().into(),
            Value::Object(members) => members.len().into(),
            _ => return Err("error calling len: len of untyped nil".to_owned()),
        },
        "index" => {
            let (first, keys) = arguments.split_first().ok_or_else(few)?;
            index(first, keys)?
        }
        "exists" => {
            let (first, keys) = arguments.split_first().ok_or_else(few)?;
            Value::Bool(exists(first, keys))
        }
        "print" | "html" | "js" => Value::String(arguments.iter().map(go_value).collect()),
        "println" => Value::String(arguments.iter().map(go_value).collect::<Vec<_>>().join(" ") + "\n"),
        "printf" => Value::String(printf(arguments)),
        "base64decode" => {
            let text = arguments.first().and_then(Value::as_str).unwrap_or_default();
            let bytes = base64::prelude::BASE64_STANDARD.decode(text);
            let bytes = bytes.map_err(|error| format!("base64 decode failed: {error}"))?;
            Value::String(String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => return Err(few()),
    })
}

/// `%s`, `%d`, `%v` and `%q`; widths are kept for strings.
fn printf(arguments: &[Value]) -> String {
    let (format, mut rest) = match arguments {
        [Value::String(format), rest @ ..] => (format.as_str(), rest.iter()),
        _ => return String::new(),
    };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut width, mut left) = (0_usize, false);
        let verb = loop {
            match chars.next() {
                Some('-') => left = true,
                Some(digit) if digit.is_ascii_digit() => {
                    width = width.saturating_mul(10).saturating_add(digit as usize - '0' as usize).min(1000);
                }
                other => break other,
            }
        };
        let shown = match verb {
            Some('%') => "%".to_owned(),
            Some('q') => {
                rest.next().map(|value| machinery::field::show_str(&go_value(value))).unwrap_or_default()
            }
            Some(verb) => rest.next().map_or_else(|| format!("%!{verb}(MISSING)"), go_value),
            None => "%!(NOVERB)".to_owned(),
        };
        let text = if left { format!("{shown:<width$}") } else { format!("{shown:>width$}") };
        out.push_str(&text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_of_scripts_are_executed() {
        let value = json!({"items": [{"metadata": {"name": "a", "labels": {"x": "1"}}, "n": 2}, {"metadata": {"name": "b"}, "n": 0}],
            "data": {"p": "aGk="}});
        let rows = [
            ("{{range .items}}{{.metadata.name}}{{\"\\n\"}}{{end}}", "a\nb\n"),
            ("{{range $i, $e := .items}}{{$i}}={{$e.metadata.name}} {{end}}", "0=a 1=b "),
            ("{{ range .items -}} {{ if .n }}{{.n}}{{else}}none{{end}};{{ end }}", "2;none;"),
            ("{{.data.p | base64decode}} {{len .items}} {{index .items 1 \"metadata\" \"name\"}}", "hi 2 b"),
            ("{{(index .items 0).metadata.labels.x}} {{.gone}}", "1 <no value>"),
            ("{{if and (eq 1 1) (not .gone)}}y{{end}}{{with .data}}{{.p}}{{end}}{{/* c */}}", "yaGk="),
            ("{{if eq .data.p \"x\"}}1{{else if gt 2 1}}2{{else}}3{{end}}", "2"),
            ("{{printf \"%-4s|%d|%q\" \"a\" 3 \"b\"}}", "a   |3|\"b\""),
            ("{{range .gone}}x{{else}}empty{{end}}", "empty"),
        ];
        for (template, want) in rows {
            let got = GoTemplate::parse(template).and_then(|template| template.execute(&value));
            assert_eq!(got, Ok(want.to_owned()), "{template}");
        }
    }

    #[test]
    fn wrong_templates_are_refused() {
        for template in ["{{", "{{nope}}", "{{range .a}}", "{{end}}", "{{(}}", "{{)}}", "{{\"a}}", "{{|}}"] {
            assert!(GoTemplate::parse(template).is_err(), "{template}");
        }
        let deep = "{{if 1}}".repeat(1000);
        assert!(GoTemplate::parse(&deep).is_err());
        assert!(GoTemplate::parse("{{.a.b}}").expect("parsed").execute(&json!({"a": 1})).is_err());
    }
}
