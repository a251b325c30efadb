//! The parser: a scanner over characters that follows client-go's.

use super::{Filter, Node, Operator, ParseError, Slice};
use serde_json::Value;

/// Nesting limit of paths inside unions and filters.
const MAX_DEPTH: usize = 16;

pub(super) fn parse(text: &str) -> Result<Vec<Node>, ParseError> {
    parse_at(text, 0)
}

fn parse_at(text: &str, depth: usize) -> Result<Vec<Node>, ParseError> {
    if depth > MAX_DEPTH {
        return fail("expression is nested too deeply");
    }
    let mut parser = Parser { input: text, at: 0, depth };
    let mut nodes = Vec::new();
    while let Some(open) = parser.rest().find('{') {
        if open > 0 {
            nodes.push(Node::Text(parser.take(open).into()));
        }
        parser.take(1);
        let mut list = Vec::new();
        parser.action(&mut list)?;
        nodes.push(Node::List(list));
    }
    if !parser.rest().is_empty() {
        nodes.push(Node::Text(parser.rest().into()));
    }
    Ok(nodes)
}

/// Parses the content of one pair of braces.
fn parse_action(text: &str, depth: usize) -> Result<Vec<Node>, ParseError> {
    match parse_at(&format!("{{{text}}}"), depth + 1)?.into_iter().next() {
        Some(Node::List(nodes)) => Ok(nodes),
        _ => fail("unclosed action"),
    }
}

fn fail<T>(message: impl Into<String>) -> Result<T, ParseError> {
    Err(ParseError(message.into()))
}

struct Parser<'t> {
    input: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.input.get(self.at..).unwrap_or("")
    }

    fn take(&mut self, bytes: usize) -> &'t str {
        let taken = self.rest().get(..bytes).unwrap_or("");
        self.at += bytes;
        taken
    }

    /// The content of braces up to the closing one.
    fn action(&mut self, nodes: &mut Vec<Node>) -> Result<(), ParseError> {
        loop {
            let rest = self.rest();
            if rest.starts_with('}') {
                self.take(1);
                return Ok(());
            }
            if rest.starts_with("[?(") {
                self.take(3);
                nodes.push(self.filter()?);
                continue;
            }
            if rest.starts_with("..") {
                if matches!(nodes.last(), Some(Node::Recursive)) {
                    return fail("invalid multiple recursive descent");
                }
                self.take(2);
                nodes.push(Node::Recursive);
                if self.rest().starts_with(is_alphanumeric) {
                    nodes.push(self.field());
                }
                continue;
            }
            match rest.chars().next() {
                None | Some('\r' | '\n') => return fail("unclosed action"),
                // Every path begins at the current value.
                Some(' ' | '@' | '$') => {
                    self.take(1);
                }
                Some('[') => self.array(nodes)?,
                Some(quote @ ('"' | '\'')) => nodes.push(self.quoted(quote)?),
                Some('.') => {
                    self.take(1);
                    nodes.push(self.field());
                }
                Some(c) if matches!(c, '+' | '-') || c.is_numeric() => nodes.push(self.number()?),
                Some(c) if is_alphanumeric(c) => nodes.push(self.identifier()),
                Some(c) => {
                    return fail(format!("unrecognized character in action: U+{:04X} '{c}'", u32::from(c)));
                }
            }
        }
    }

    /// `range`, `end`, `true`, `false`.
    fn identifier(&mut self) -> Node {
        let end = self.rest().find(is_terminator).unwrap_or(self.rest().len());
        match self.take(end) {
            "range" => Node::Range,
            "end" => Node::End,
            "true" => Node::Constant(true.into()),
            "false" => Node::Constant(false.into()),
            other => Node::Unknown(other.into()),
        }
    }

    fn number(&mut self) -> Result<Node, ParseError> {
        let rest = self.rest();
        let signed = usize::from(rest.starts_with(['+', '-']));
        let digits = rest.get(signed..).unwrap_or("");
        let end = digits.find(|c: char| c != '.' && !c.is_numeric()).unwrap_or(digits.len());
        let text = self.take(signed + end);
        let plain = text.strip_prefix('+').unwrap_or(text);
        if let Ok(integer) = plain.parse::<i64>() {
            return Ok(Node::Constant(integer.into()));
        }
        match plain.parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
            Some(number) => Ok(Node::Constant(Value::Number(number))),
            None => fail(format!("cannot parse number {text}")),
        }
    }

    /// A name up to the next terminator that is not escaped.
    fn field(&mut self) -> Node {
        let mut end = self.rest().len();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if is_terminator(c) {
                end = at;
                break;
            }
        }
        match self.take(end) {
            "*" => Node::Wildcard,
            name => Node::Field(name.replace('\\', "").into()),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<Node, ParseError> {
        let rest = self.rest();
        let mut before = quote;
        for (at, c) in rest.char_indices().skip(1) {
            if c == '\n' {
                break;
            }
            if c == quote && before != '\\' {
                let text = self.take(at + 1);
                let inner = text.get(1..at).unwrap_or("");
                return match unquote(inner, quote) {
                    Some(value) => Ok(Node::Text(value.into())),
                    None => fail(format!("unquote string {text} error invalid syntax")),
                };
            }
            before = c;
        }
        fail("unterminated quoted string")
    }

    /// `[…]`: an index, a slice, a key or a union of these.
    fn array(&mut self, nodes: &mut Vec<Node>) -> Result<(), ParseError> {
        let rest = self.rest();
        let end = rest.find([']', '\n']).filter(|end| rest.as_bytes().get(*end) == Some(&b']'));
        let Some(end) = end else { return fail("unterminated array") };
        let text = self.take(end + 1).get(1..end).unwrap_or("");
        let parts: Vec<&str> = text.split(',').collect();
        if parts.len() > 1 {
            let part = |part: &&str| parse_action(&format!("[{}]", part.trim_matches(' ')), self.depth);
            nodes.push(Node::Union(parts.iter().map(part).collect::<Result<_, _>>()?));
            return Ok(());
        }
        let key = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
        if let Some(key) = key.filter(|key| !key.contains('\'')) {
            nodes.extend(parse_action(&format!(".{key}"), self.depth)?);
            return Ok(());
        }
        nodes.push(Node::Slice(slice(if text == "*" { ":" } else { text })?));
        Ok(())
    }

    fn filter(&mut self) -> Result<Node, ParseError> {
        let rest = self.rest();
        let (mut quote, mut is_closed, mut before) = (None, false, ' ');
        let mut end = None;
        for (at, c) in rest.char_indices() {
            match (c, quote) {
                ('\n', _) => break,
                ('"' | '\'', None) => quote = Some(c),
                ('"' | '\'', Some(open)) if before != '\\' && c == open => is_closed = true,
                (')', _) if quote.is_some() == is_closed => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
            before = c;
        }
        let Some(end) = end else { return fail("unterminated filter") };
        let text = self.take(end + 1).get(..end).unwrap_or("");
        if !self.rest().starts_with(']') {
            return fail("unclosed array expect ]");
        }
        self.take(1);
        let (left, operator, right) = match comparison(text) {
            None => (parse_action(text, self.depth)?, Operator::Exists, Vec::new()),
            Some((left, operator, right)) => {
                let operator = match operator {
                    "==" => Operator::Equal,
                    "!=" => Operator::NotEqual,
                    "<" => Operator::Less,
                    "<=" => Operator::LessOrEqual,
                    ">" => Operator::Greater,
                    ">=" => Operator::GreaterOrEqual,
                    other => Operator::Unknown(other.into()),
                };
                (parse_action(left, self.depth)?, operator, parse_action(right, self.depth)?)
            }
        };
        Ok(Node::Filter(Box::new(Filter { left, right, operator })))
    }
}

/// The operands and the operator of a comparison.
fn comparison(text: &str) -> Option<(&str, &str, &str)> {
    let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let start = text.find(is_operator).filter(|start| *start > 0)?;
    let rest = text.get(start..)?;
    let length = rest.find(|c| !is_operator(c))?;
    Some((text.get(..start)?, rest.get(..length)?, rest.get(length..)?))
}

fn slice(text: &str) -> Result<Slice, ParseError> {
    let invalid = || ParseError(format!("invalid array index {text}"));
    let parts: Vec<&str> = text.split(':').collect();
    let is_number = |part: &str| part.strip_prefix('-').unwrap_or(part).bytes().all(|b| b.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(|part| is_number(part)) {
        return Err(invalid());
    }
    let number = |index: usize| match parts.get(index) {
        None | Some(&"") => Ok(None),
        Some(part) => {
            let wrong = || ParseError(format!("array index {part} is not a number"));
            part.parse::<i64>().map(Some).map_err(|_| wrong())
        }
    };
    Ok(Slice { start: number(0)?, end: number(1)?, is_index: parts.len() == 1, step: number(2)? })
}

fn is_terminator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Decodes the escapes of a string, which are Go's.
fn unquote(text: &str, quote: char) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == quote {
            return None;
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let number = |chars: &mut std::str::Chars<'_>, digits: usize| {
            let text: String = chars.by_ref().take(digits).collect();
            (text.len() == digits).then(|| u32::from_str_radix(&text, 16).ok()).flatten()
        };
        out.push(match chars.next()? {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' => '\\',
            c @ ('"' | '\'') if c == quote => c,
            'x' => char::from_u32(number(&mut chars, 2)?)?,
            'u' => char::from_u32(number(&mut chars, 4)?)?,
            'U' => char::from_u32(number(&mut chars, 8)?)?,
            digit @ '0'..='7' => {
                let rest: String = chars.by_ref().take(2).collect();
                let octal = u32::from_str_radix(&format!("{digit}{rest}"), 8).ok()?;
                (rest.len() == 2).then(|| char::from_u32(octal)).flatten()?
            }
            _ => return None,
        });
    }
    Some(out)
}
