//! Values to YAML in Kubernetes' format: natural key order, block style, quotes only where needed, long lines folded.

use super::resolve::{Resolved, is_base_60, is_timestamp, resolve};
use serde_json::{Map, Number, Value};
use std::cmp::Ordering;
use std::fmt::Write as _;

/// Writes one document.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut emitter = Emitter { out: String::new(), line_start: 0 };
    match value {
        Value::Object(map) if !map.is_empty() => emitter.mapping(map, 0, false),
        Value::Array(items) if !items.is_empty() => emitter.sequence(items, 0, false),
        other => {
            emitter.scalar(other, 0, false);
            emitter.newline();
        }
    }
    emitter.out.into_bytes()
}

/// Column after which lines are folded at the next space.
const WIDTH: usize = 80;
/// Keys longer than this are written with an explicit `?`.
const LONG_KEY: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

struct Emitter {
    out: String,
    line_start: usize,
}

impl Emitter {
    fn newline(&mut self) {
        self.out.push('\n');
        self.line_start = self.out.len();
    }

    fn indent(&mut self, spaces: usize) {
        self.out.extend(std::iter::repeat_n(' ', spaces));
    }

    fn column(&self) -> usize {
        self.out[self.line_start..].chars().count()
    }

    /// A block mapping at `indent`; `inline` when its first key continues a `- `.
    fn mapping(&mut self, map: &Map<String, Value>, indent: usize, inline: bool) {
        for (position, key) in sorted(map.keys().collect()).into_iter().enumerate() {
            if position > 0 || !inline {
                self.indent(indent);
            }
            let value = &map[key.as_str()];
            let long = key.len() > LONG_KEY || key.contains('\n');
            if long {
                self.out.push_str("? ");
                self.text(key, indent + 2, false);
                self.newline();
                self.indent(indent);
            } else {
                self.text(key, indent, true);
            }
            self.out.push(':');
            match value {
                Value::Object(inner) if !inner.is_empty() && long => {
                    self.out.push(' ');
                    self.mapping(inner, indent + 2, true);
                }
                Value::Array(items) if !items.is_empty() && long => {
                    self.out.push(' ');
                    self.sequence(items, indent + 2, true);
                }
                Value::Object(inner) if !inner.is_empty() => {
                    self.newline();
                    self.mapping(inner, indent + 2, false);
                }
                Value::Array(items) if !items.is_empty() => {
                    self.newline();
                    self.sequence(items, indent, false);
                }
                other => {
                    self.out.push(' ');
                    self.scalar(other, indent + 2, false);
                    self.newline();
                }
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize, inline: bool) {
        for (position, item) in items.iter().enumerate() {
            if position > 0 || !inline {
                self.indent(indent);
            }
            self.out.push_str("- ");
            match item {
                Value::Object(map) if !map.is_empty() => self.mapping(map, indent + 2, true),
                Value::Array(inner) if !inner.is_empty() => self.sequence(inner, indent + 2, true),
                other => {
                    self.scalar(other, indent + 2, false);
                    self.newline();
                }
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize, key: bool) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(flag) => self.out.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) => self.out.push_str(&number_text(number)),
            Value::String(text) => self.text(text, indent, key),
            Value::Array(_) => self.out.push_str("[]"),
            Value::Object(_) => self.out.push_str("{}"),
        }
    }

    fn text(&mut self, text: &str, indent: usize, key: bool) {
        match style_of(text, key) {
            Style::Plain => self.folded(text, indent, key),
            Style::Single => {
                self.out.push('\'');
                self.folded(&text.replace('\'', "''"), indent, key);
                self.out.push('\'');
            }
            Style::Double => self.double_quoted(text, indent, key),
            Style::Literal => self.literal(text, indent),
        }
    }

    /// Text whose spaces may become line breaks.
    fn folded(&mut self, text: &str, indent: usize, key: bool) {
        let mut after_space = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            let next_is_space = chars.peek().is_some_and(|(_, next)| *next == ' ');
            let inside = at > 0 && chars.peek().is_some();
            if c == ' ' && !key && inside && !after_space && !next_is_space && self.column() > WIDTH {
                self.newline();
                self.indent(indent);
            } else {
                self.out.push(c);
            }
            after_space = c == ' ';
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, key: bool) {
        self.out.push('"');
        let mut after_space = false;
        let mut chars = text.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            if c == ' ' {
                let next_is_space = chars.peek().is_some_and(|(_, next)| *next == ' ');
                let inside = at > 0 && chars.peek().is_some();
                if !key && inside && !after_space && self.column() > WIDTH {
                    self.newline();
                    self.indent(indent);
                    if next_is_space {
                        self.out.push('\\');
                    }
                } else {
                    self.out.push(' ');
                }
                after_space = true;
                continue;
            }
            after_space = false;
            self.escaped(c);
        }
        self.out.push('"');
    }

    fn escaped(&mut self, c: char) {
        let escape = match c {
            '\0' => "\\0",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\t' => "\\t",
            '\n' => "\\n",
            '\u{b}' => "\\v",
            '\u{c}' => "\\f",
            '\r' => "\\r",
            '\u{1b}' => "\\e",
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{85}' => "\\N",
            '\u{a0}' => "\\_",
            '\u{2028}' => "\\L",
            '\u{2029}' => "\\P",
            c if is_printable(c) => {
                self.out.push(c);
                return;
            }
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(self.out, "\\x{code:02X}"),
                    0x100..=0xffff => write!(self.out, "\\u{code:04X}"),
                    _ => write!(self.out, "\\U{code:08X}"),
                };
                return;
            }
        };
        self.out.push_str(escape);
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.out.push('|');
        let mut indent = indent;
        if text.starts_with([' ', '\n']) {
            self.out.push('2');
            // Matches the indentation indicator, also where this text is the whole document.
            indent = indent.max(2);
        }
        if !text.ends_with('\n') {
            self.out.push('-');
        } else if text == "\n" || text.ends_with("\n\n") {
            self.out.push('+');
        }
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.newline();
            if !line.is_empty() {
                self.indent(indent);
                self.out.push_str(line);
            }
        }
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn style_of(text: &str, key: bool) -> Style {
    let ambiguous = resolve(text) != Resolved::Text || is_base_60(text) || is_timestamp(text);
    let analysis = Analysis::of(text);
    let mut style = if text.contains('\n') {
        Style::Literal
    } else if ambiguous {
        Style::Double
    } else {
        Style::Plain
    };
    if key && analysis.multiline {
        style = Style::Double;
    }
    if style == Style::Plain && !analysis.plain {
        style = Style::Single;
    }
    if style == Style::Single && !analysis.single {
        style = Style::Double;
    }
    if style == Style::Literal && (!analysis.block || key) {
        style = Style::Double;
    }
    style
}

/// Styles that a text allows.
struct Analysis {
    multiline: bool,
    plain: bool,
    single: bool,
    block: bool,
}

impl Analysis {
    fn of(text: &str) -> Self {
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut breaks, mut break_space, mut space_break) = (false, false, false, false);
        let mut previous = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let before_blank = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            let after_blank = previous.is_none_or(|p| matches!(p, ' ' | '\t') || is_break(p));
            indicators |= match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                | '`'
                    if previous.is_none() =>
                {
                    true
                }
                '?' | '-' if previous.is_none() => before_blank,
                ':' => before_blank,
                '#' => after_blank,
                _ => false,
            };
            special |= !is_printable(c);
            breaks |= is_break(c);
            break_space |= c == ' ' && previous.is_some_and(is_break);
            space_break |= is_break(c) && previous == Some(' ');
            previous = Some(c);
        }
        let edge = |c: Option<char>| c.is_some_and(|c| c == ' ' || is_break(c));
        let trailing_space = text.ends_with(' ');
        let edges = edge(text.chars().next()) || edge(text.chars().next_back());
        Self {
            multiline: breaks,
            plain: !(indicators || special || breaks || edges || break_space || space_break),
            single: !(special || break_space || space_break),
            block: !(special || space_break || trailing_space),
        }
    }
}

/// A number in Go's shortest format.
fn number_text(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Sorts in natural order. A merge sort of our own: that order is not total for unusual keys, on which the standard
/// library's sort may panic.
fn sorted(keys: Vec<&String>) -> Vec<&String> {
    let mut runs: Vec<Vec<&String>> = keys.into_iter().map(|key| vec![key]).collect();
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut pairs = runs.into_iter();
        while let Some(left) = pairs.next() {
            merged.push(match pairs.next() {
                Some(right) => merge(left, right),
                None => left,
            });
        }
        runs = merged;
    }
    runs.pop().unwrap_or_default()
}

fn merge<'a>(left: Vec<&'a String>, right: Vec<&'a String>) -> Vec<&'a String> {
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if natural(a, b) == Ordering::Greater { right.next() } else { left.next() };
        out.extend(next);
    }
    out.extend(left);
    out.extend(right);
    out
}

/// Letters after everything else, digits by numeric value: `a2` sorts before `a10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(x, y)| x != y) else {
        return a.len().cmp(&b.len());
    };
    let (x, y) = (a[at], b[at]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let inside_number =
        (x == '0' || y == '0') && a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
    let number = |chars: &[char]| {
        let digits = chars.iter().take_while(|c| c.is_ascii_digit());
        let start = (u64::from(inside_number), 0usize);
        digits.fold(start, |(value, count), c| {
            (value.wrapping_mul(10).wrapping_add(u64::from(c.to_digit(10).unwrap_or(0))), count + 1)
        })
    };
    number(&a[at..]).cmp(&number(&b[at..])).then(x.cmp(&y))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(value: &Value) -> String {
        String::from_utf8(encode(value)).unwrap()
    }

    #[test]
    fn objects_encode_like_kubectl() {
        let value = json!({
            "spec": {"list": [{"b": 1, "a": "x"}, [1, [2]], [], {}], "empty": {}, "none": null},
            "kind": "Pod", "yes": "yes", "10": "1", "n2": "0755", "quote": "it's: so", "text": "a\nb\n",
            "tail": "a\nb", "keep": "a\n\n", "sp": " x", "float": 0.5, "date": "2001-01-01", "tab": "a\tb",
        });
        let want = "\"10\": \"1\"\ndate: \"2001-01-01\"\nfloat: 0.5\nkeep: |+\n  a\n\nkind: Pod\nn2: \"0755\"\n\
            quote: 'it''s: so'\nsp: ' x'\nspec:\n  empty: {}\n  list:\n  - a: x\n    b: 1\n  - - 1\n    - - 2\n  - []\n  \
            - {}\n  none: null\ntab: \"a\\tb\"\ntail: |-\n  a\n  b\ntext: |\n  a\n  b\n\"yes\": \"yes\"\n";
        assert_eq!(written(&value), want);
    }

    #[test]
    fn document_of_indented_text_round_trips() {
        for text in ["\n x", " x\n", "\n\n  x\n y\n", " \n", "\n", "x\n y"] {
            let value = Value::from(text);
            for value in [value.clone(), json!([value.clone()]), json!({"a": [[value.clone()]], "b": value})]
            {
                let read = super::super::decode(&encode(&value)).map(|decoded| decoded.value);
                assert_eq!(read, Ok(value.clone()), "{}", written(&value));
            }
        }
    }

    #[test]
    fn keys_sort_naturally() {
        let keys = ["a10", "a2", "b", "B", "1", "a", "_", "a/b"].map(str::to_owned);
        let want = ["_", "1", "B", "a", "a/b", "a2", "a10", "b"];
        assert!(sorted(keys.iter().collect()).into_iter().eq(want.iter()));
    }
}
