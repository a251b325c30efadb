//! YAML to values. Uses a stack instead of recursion, and limits nesting and alias expansion.

use super::YamlError;
use super::resolve::{Resolved, resolve};
use crate::codec::budget::{Budget, MAP_BYTES, VALUE_BYTES};
use crate::codec::json::Decoded;
use crate::codec::{MAX_DEPTH, leaf};
use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Decodes the first document. Duplicate keys are one strict error with a line for each; the last one wins.
pub fn decode(bytes: &[u8]) -> Result<Decoded, YamlError> {
    let text = std::str::from_utf8(bytes).map_err(|_| YamlError::Encoding)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder {
        stack: Vec::new(),
        anchors: HashMap::new(),
        root: None,
        duplicates: Vec::new(),
        made: 0,
        aliased: 0,
        alias_bytes: ALIAS_FLOOR.max(text.len().saturating_mul(ALIAS_FACTOR)),
        budget: Budget::of(text.len()),
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(text, &error))?;
        if builder.event(event, span)? {
            break;
        }
    }
    let mut strict = Vec::new();
    if !builder.duplicates.is_empty() {
        strict.push(format!("yaml: unmarshal errors:\n  {}", builder.duplicates.join("\n  ")));
    }
    Ok(Decoded { value: builder.root.unwrap_or(Value::Null), strict, emptied: Vec::new() })
}

/// Stage that detects an error in Kubernetes' parser, which determines the reported line.
#[derive(Clone, Copy)]
enum Stage {
    /// The scanner counts from 1 and omits the first line.
    Scanner,
    /// The parser counts from 0.
    Parser,
    /// The same two, at the end of the text.
    ScannerAtEnd,
    ParserAtEnd,
}

/// Error text of this parser, that of Kubernetes, and the stage that reports it there.
const ERROR_TEXTS: [(&str, &str, Stage); 8] = [
    ("tabs disallowed", "found character that cannot start any token", Stage::Scanner),
    ("mapping values are not", "mapping values are not allowed in this context", Stage::Scanner),
    ("did not find expected hexadecimal", "did not find expected hexdecimal number", Stage::Scanner),
    ("high surrogate", "found invalid Unicode character escape code", Stage::Scanner),
    ("did not find expected key", "did not find expected key", Stage::Parser),
    ("unclosed bracket '{'", "did not find expected ',' or '}'", Stage::ParserAtEnd),
    ("unclosed bracket '['", "did not find expected ',' or ']'", Stage::ParserAtEnd),
    ("multiline quoted scalar", "found unexpected end of stream", Stage::ScannerAtEnd),
];

fn syntax(text: &str, error: &ScanError) -> YamlError {
    let (line, info) = (error.marker().line(), error.info());
    if info.contains("unknown anchor") {
        let name = text.lines().nth(line.saturating_sub(1)).and_then(|line| line.rsplit_once('*'));
        let name = name.and_then(|(_, after)| after.split([' ', ',', ']', '}']).next());
        return YamlError::UnknownAnchor(name.unwrap_or("").to_owned());
    }
    let Some((_, message, stage)) = ERROR_TEXTS.iter().find(|(own, ..)| info.contains(own)) else {
        return YamlError::Syntax { line, what: info };
    };
    // The end of the text is a line of its own.
    let end = text.lines().count();
    let line = match stage {
        Stage::Scanner if line <= 1 => 0,
        Stage::Scanner => line,
        Stage::Parser => line.saturating_sub(1),
        Stage::ScannerAtEnd => end + 1,
        Stage::ParserAtEnd => end,
    };
    YamlError::Syntax { line, what: (*message).to_owned() }
}

/// Memory limit of aliases: this multiple of the document, and at least the floor. Documents written by people and by
/// templates stay far below it.
const ALIAS_FACTOR: usize = 8;
const ALIAS_FLOOR: usize = 1 << 20;

/// A scalar costs more than its memory: decoding one takes several times as long as in other encodings.
const SCALAR_BYTES: usize = 2 * VALUE_BYTES;

/// A complete value, with the number of values in it and the memory of a copy.
#[derive(Clone)]
struct Node {
    value: Value,
    count: usize,
    bytes: usize,
    line: usize,
    /// A plain `<<`, which is a merge key.
    merge: bool,
}

enum Frame {
    List { items: Vec<Value>, count: usize, bytes: usize, anchor: usize, line: usize },
    Map { map: Map<String, Value>, key: Option<Key>, count: usize, bytes: usize, anchor: usize, line: usize },
}

enum Key {
    Merge,
    Name(String, String),
}

struct Builder {
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    root: Option<Value>,
    duplicates: Vec<String>,
    /// Values created in total, and by aliases.
    made: usize,
    aliased: usize,
    /// Remaining memory for aliases.
    alias_bytes: usize,
    budget: Budget,
}

/// Limit of listed duplicates.
const MAX_DUPLICATES: usize = 100;

impl Builder {
    /// Handles an event; returns whether the document is complete.
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<bool, YamlError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.budget.spend(SCALAR_BYTES)?;
                let node = scalar(&text, style, tag.as_deref(), line)?;
                self.finish(node, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.budget.spend(VALUE_BYTES)?;
                self.push(Frame::List { items: Vec::new(), count: 1, bytes: VALUE_BYTES, anchor, line })?;
            }
            Event::MappingStart(_, anchor, _) => {
                self.budget.spend(VALUE_BYTES)?;
                let bytes = VALUE_BYTES;
                self.push(Frame::Map { map: Map::new(), key: None, count: 1, bytes, anchor, line })?;
            }
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(Frame::List { items, count, bytes, anchor, line }) => {
                    let value = Value::Array(items);
                    self.finish(Node { value, count, bytes, line, merge: false }, anchor)?;
                }
                Some(Frame::Map { map, count, bytes, anchor, line, .. }) => {
                    let value = Value::Object(map);
                    self.finish(Node { value, count, bytes, line, merge: false }, anchor)?;
                }
                None => {}
            },
            Event::Alias(anchor) => {
                let unknown = || YamlError::UnknownAnchor(String::new());
                let size = self.anchors.get(&anchor).map(|node| (node.count, node.bytes));
                let (count, bytes) = size.ok_or_else(unknown)?;
                self.charge(count, bytes)?;
                let node = self.anchors.get(&anchor).cloned().ok_or_else(unknown)?;
                self.add(Node { line, ..node })?;
            }
            Event::DocumentEnd => return Ok(true),
            _ => {}
        }
        Ok(false)
    }

    /// Accounts for a copy of a value before it is made.
    fn charge(&mut self, count: usize, bytes: usize) -> Result<(), YamlError> {
        self.aliased += count;
        self.made += count;
        self.alias_bytes = self.alias_bytes.checked_sub(bytes).ok_or(YamlError::Aliasing)?;
        if self.is_excessive() { Err(YamlError::Aliasing) } else { Ok(()) }
    }

    /// Small documents may consist of aliases almost entirely, large ones hardly at all.
    fn is_excessive(&self) -> bool {
        let (low, high) = (400_000, 4_000_000);
        let allowed = match self.made {
            made if made <= low => 99,
            made if made >= high => 10,
            made => 99 - 89 * (made - low) / (high - low),
        };
        self.aliased > 100 && self.made > 1_000 && self.aliased * 100 > self.made * allowed
    }

    fn push(&mut self, frame: Frame) -> Result<(), YamlError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(YamlError::Depth(MAX_DEPTH));
        }
        self.stack.push(frame);
        Ok(())
    }

    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), YamlError> {
        self.made += 1;
        if anchor != 0 {
            // The copy for an anchor costs as much as an alias does.
            self.charge(node.count, node.bytes)?;
            self.anchors.insert(anchor, node.clone());
        }
        self.add(node)
    }

    fn add(&mut self, node: Node) -> Result<(), YamlError> {
        match self.stack.last_mut() {
            None => {
                self.root.get_or_insert(node.value);
            }
            Some(Frame::List { items, count, bytes, .. }) => {
                *count += node.count;
                *bytes = bytes.saturating_add(node.bytes);
                items.push(node.value);
            }
            Some(Frame::Map { map, key, count, bytes, .. }) => {
                *count += node.count;
                *bytes = bytes.saturating_add(node.bytes);
                match key.take() {
                    None => {
                        if map.is_empty() {
                            self.budget.spend(MAP_BYTES)?;
                            *bytes = bytes.saturating_add(MAP_BYTES);
                        }
                        *key = Some(key_of(node)?);
                    }
                    Some(Key::Merge) => merge(map, node.value)?,
                    Some(Key::Name(name, shown)) => {
                        if map.insert(name, node.value).is_some() && self.duplicates.len() < MAX_DUPLICATES {
                            self.duplicates
                                .push(format!("line {}: key {shown} already set in map", node.line));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn key_of(node: Node) -> Result<Key, YamlError> {
    if node.merge {
        return Ok(Key::Merge);
    }
    Ok(match node.value {
        Value::String(text) => {
            let shown = crate::field::show_str(&text);
            Key::Name(text, shown)
        }
        Value::Bool(flag) => Key::Name(flag.to_string(), flag.to_string()),
        Value::Number(number) => {
            let text = leaf::number_text(&number);
            Key::Name(text.clone(), text)
        }
        other => return Err(YamlError::Key(other.to_string())),
    })
}

fn merge(map: &mut Map<String, Value>, value: Value) -> Result<(), YamlError> {
    match value {
        Value::Object(merged) => map.extend(merged),
        Value::Array(maps) => {
            // The first of several wins.
            for item in maps.into_iter().rev() {
                match item {
                    Value::Object(merged) => map.extend(merged),
                    _ => return Err(YamlError::Merge),
                }
            }
        }
        _ => return Err(YamlError::Merge),
    }
    Ok(())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Node, YamlError> {
    let tag = tag.map(|tag| (tag.core_suffix(), tag));
    let node = |value: Value| {
        let text = value.as_str().map_or(0, str::len);
        Ok(Node { value, count: 1, bytes: VALUE_BYTES + text, line, merge: false })
    };
    let wanted = match tag {
        None if style == ScalarStyle::Plain => None,
        None | Some((None | Some("str"), _)) => return node(Value::String(text.to_owned())),
        Some((Some("binary"), _)) => {
            let bytes: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
            let decoded = leaf::decode_base64(&bytes);
            let decoded =
                decoded.ok_or_else(|| YamlError::Tag { text: text.to_owned(), tag: "binary".to_owned() })?;
            return node(Value::String(String::from_utf8_lossy(&decoded).into_owned()));
        }
        Some((Some(suffix), _)) => Some(suffix),
    };
    let resolved = resolve(text);
    let mismatch = |tag: &str| Err(YamlError::Tag { text: text.to_owned(), tag: tag.to_owned() });
    match wanted {
        Some("int") if !matches!(resolved, Resolved::Integer(_) | Resolved::Large(_)) => {
            return mismatch("int");
        }
        Some("float") if !matches!(resolved, Resolved::Integer(_) | Resolved::Float(_)) => {
            return mismatch("float");
        }
        Some("bool") if !matches!(resolved, Resolved::Bool(_)) => return mismatch("bool"),
        Some("null") if resolved != Resolved::Null => return mismatch("null"),
        _ => {}
    }
    match resolved {
        Resolved::Null => node(Value::Null),
        Resolved::Bool(flag) => node(Value::Bool(flag)),
        Resolved::Integer(integer) => node(Value::from(integer)),
        Resolved::Large(integer) => node(Value::from(integer)),
        Resolved::Float(float) if float.is_nan() => Err(YamlError::Number("NaN".to_owned())),
        Resolved::Float(float) if float.is_infinite() => {
            Err(YamlError::Number(if float > 0.0 { "+Inf" } else { "-Inf" }.to_owned()))
        }
        Resolved::Float(float) => node(leaf::float(float)),
        Resolved::Merge => Ok(Node { merge: true, ..node(Value::String(text.to_owned()))? }),
        Resolved::Text => node(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        decode(text.as_bytes()).unwrap().value
    }

    #[test]
    fn documents_decode_to_values() {
        assert_eq!(
            value("a: 1\nb: [x, 'y', \"on\", on]\n1: 2\ntrue: 3\n"),
            json!({"a": 1, "b": ["x", "y", "on", true], "1": 2, "true": 3})
        );
        assert_eq!(value(""), Value::Null);
        assert_eq!(value("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(value("{\"a\": {\"b\": [1, 2.5, null]}}"), json!({"a": {"b": [1, 2.5, null]}}));
        assert_eq!(
            value("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\n"),
            json!({"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}})
        );
        assert_eq!(value("a: |\n  x\n  y\n"), json!({"a": "x\ny\n"}));
        assert_eq!(value("a: !!str 5\nb: !!int '5'\n"), json!({"a": "5", "b": 5}));
    }

    #[test]
    fn duplicate_keys_are_reported_and_last_wins() {
        let decoded = decode(b"a: 1\nb:\n  c: 1\n  c: 2\na: 2\n").unwrap();
        assert_eq!(decoded.value, json!({"a": 2, "b": {"c": 2}}));
        let want = "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  line 5: key \"a\" already set in map";
        assert_eq!(decoded.strict, [want]);
    }

    #[test]
    fn syntax_errors_match_kubernetes() {
        for (text, message) in [
            ("a: 1\nb:\n\tc: 1\n", "yaml: line 3: found character that cannot start any token"),
            ("a: b: c\n", "yaml: mapping values are not allowed in this context"),
            ("a: 1\nb: {c: d\n", "yaml: line 2: did not find expected ',' or '}'"),
            ("a: 1\nb: \"c\n", "yaml: line 3: found unexpected end of stream"),
            ("a: 1\nb: *x\n", "yaml: unknown anchor 'x' referenced"),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap_err().to_string(), message, "{text:?}");
        }
    }

    #[test]
    fn hostile_documents_are_rejected() {
        let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..30 {
            let before = format!("*a{},", level - 1).repeat(10);
            laughs.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        assert_eq!(decode(laughs.as_bytes()), Err(YamlError::Aliasing));
        assert!(decode("[".repeat(100_000).as_bytes()).is_err());
        assert!(decode("- ".repeat(100_000).as_bytes()).is_err());
        assert!(decode(b"a: *b\n").is_err());
        assert!(decode(b"a: .inf\n").is_err());
        assert!(decode(b"\xff\xfe").is_err());
    }

    #[test]
    fn alias_expansion_beyond_byte_budget_returns_aliasing_error() {
        let long = "x".repeat(1 << 20);
        let aliases = |count: usize| "*a, ".repeat(count);
        let nested = (0..100).map(|level| format!("&n{level} [")).collect::<String>();
        for (case, document) in [
            ("values", format!("{{a: &a \"{long}\", b: [{}]}}", aliases(950))),
            ("keys", format!("a: &a \"{long}\"\nb: [{}]", "{*a : 1}, ".repeat(950))),
            ("merges", format!("a: &a {{k: \"{long}\"}}\nb: [{}]", "{<<: *a}, ".repeat(950))),
            ("copies of copies", {
                let mut text = format!("a0: &a0 \"{}\"\n", "y".repeat(1000));
                for level in 1..9 {
                    let before = format!("*a{}, ", level - 1).repeat(9);
                    text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
                }
                text
            }),
            ("nested anchors", format!("{nested}\"{long}\"{}", "]".repeat(100))),
            ("empty mappings", format!("a: &a [{}]\nb: [{}]", "{}, ".repeat(500), aliases(900))),
        ] {
            assert_eq!(decode(document.as_bytes()), Err(YamlError::Aliasing), "{case}");
        }
    }

    #[test]
    fn alias_expansion_within_byte_budget_is_decoded() {
        let labels = "labels: &labels {app: web, tier: front}\n";
        let document = format!("{labels}copies: [{}]\n", "*labels, ".repeat(80));
        let decoded = value(&document);
        assert_eq!(decoded["copies"].as_array().map(Vec::len), Some(80));
        assert_eq!(decoded["copies"][79], decoded["labels"]);
    }
}
