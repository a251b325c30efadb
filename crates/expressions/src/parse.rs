//! Parses texts into syntax trees with macros expanded, and renders errors with their position in the text.

use crate::macros;
use cel::common::ast::{IdedExpr, SourceInfo};
use cel::parser::Macro;
use cel::{Env, ParseErrors};
use std::sync::LazyLock;

/// Maximum length of an expression, in characters.
pub const MAX_CHARACTERS: usize = 100_000;
/// Texts up to this length and estimated depth need little stack: each pair of brackets recurses through all grammar
/// rules of the parser.
const SMALL: usize = 256;
const SHALLOW: usize = 6;
/// Stack size for parsing a longer one. Memory is committed on use.
const STACK: usize = 256 * 1024 * 1024;

/// Parser environment: it only declares the macros.
static LANGUAGE: LazyLock<Option<Env>> = LazyLock::new(|| with_macros(macros::all()));
/// Parser environment with `cel.bind`.
static LANGUAGE_WITH_BINDINGS: LazyLock<Option<Env>> =
    LazyLock::new(|| with_macros(macros::all().into_iter().chain([macros::bindings()])));

fn with_macros(all: impl IntoIterator<Item = Macro>) -> Option<Env> {
    let mut env = Env::stdlib();
    for made in all {
        env.add_macro(made).ok()?;
    }
    Some(env)
}

/// Maximum number of errors shown per expression.
pub const MAX_SHOWN: usize = 100;

/// An error and its position: line from 1, column from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// Positions of the nodes of a tree in its text.
pub struct Positions {
    info: SourceInfo,
    /// Start of each line, in characters.
    lines: Vec<usize>,
}

impl Positions {
    fn new(info: SourceInfo) -> Self {
        let breaks = info.source.chars().enumerate().filter(|(_, c)| *c == '\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        Self { info, lines }
    }

    /// Line from 1 and column from 0.
    pub fn of(&self, id: u64) -> (usize, usize) {
        let offset = self.info.offset_for(id).map_or(0, |(start, _)| start as usize);
        let line = self.lines.partition_point(|begin| *begin <= offset);
        (line, offset - self.lines.get(line.wrapping_sub(1)).unwrap_or(&0))
    }
}

/// Maximum estimated depth of a tree; deeper texts are not parsed. The checker rejects a quarter of it, and the
/// parser needs stack for each level.
const MAX_ESTIMATED_DEPTH: usize = 1000;

/// Depth of the tree inside one pair of brackets, or of the whole text.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Depth of the operands so far, left of an operator.
    left: Option<usize>,
    /// Depth of the current operand: selections, calls, negations.
    operand: usize,
    /// Depth of the part before the last comma or logical operator, whose trees are balanced.
    most: usize,
}

impl Level {
    fn whole(self) -> usize {
        self.left.map_or(self.operand, |left| 1 + left.max(self.operand))
    }

    fn operator(&mut self) {
        *self = Self { left: Some(self.whole()), operand: 0, most: self.most };
    }

    fn separator(&mut self) {
        *self = Self { left: None, operand: 0, most: self.most.max(self.whole()) };
    }
}

/// Upper bound of the depth of a text's tree; all binary operators count as if they had one precedence.
fn estimated_depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut levels, mut level, mut deepest, mut at) = (Vec::new(), Level::default(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match byte {
            b'"' | b'\'' => at = end_of_string(bytes, at),
            b'/' if next == Some(&b'/') => {
                at += bytes[at..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - at);
            }
            b'(' | b'[' | b'{' => {
                levels.push(level);
                level = Level::default();
            }
            b')' | b']' | b'}' => {
                let inner = level.most.max(level.whole()) + 1;
                level = levels.pop().unwrap_or_default();
                level.operand = level.operand.max(inner);
            }
            b'.' | b'!' if next != Some(&b'=') => level.operand += 1,
            b'&' | b'|' if next == Some(byte) => {
                level.separator();
                at += 1;
            }
            b',' => level.separator(),
            b'=' | b'<' | b'>' | b'!' if next == Some(&b'=') => {
                level.operator();
                at += 1;
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'?' | b':' => level.operator(),
            _ => {}
        }
        deepest = deepest.max(level.most.max(level.whole()) + levels.len());
        at += 1;
    }
    deepest
}

/// Index of the quote that ends the string starting at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let is_raw = at > 0 && matches!(bytes[at - 1], b'r' | b'R');
    let mark = if bytes[at..].starts_with(&[quote; 3]) { 3 } else { 1 };
    let mut byte_index = at + mark;
    while byte_index < bytes.len() {
        if bytes[byte_index] == b'\\' && !is_raw {
            byte_index += 2;
            continue;
        }
        if bytes[byte_index..].starts_with(&[quote; 3][..mark]) {
            return byte_index + mark - 1;
        }
        byte_index += 1;
    }
    bytes.len()
}

/// Runs a function that recurses as deep as its text is nested, on a thread with a large stack if necessary.
#[expect(clippy::disallowed_methods, reason = "a thread with a large stack; this crate cannot use `base`")]
pub fn with_stack<T: Send>(text: &str, work: impl FnOnce() -> T + Send) -> Option<T> {
    if text.len() <= SMALL && estimated_depth(text) <= SHALLOW {
        return Some(work());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("expression".to_owned()).stack_size(STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

pub fn parse(text: &str, has_bindings: bool) -> Result<(IdedExpr, Positions), Vec<Issue>> {
    let at_start = |message: String| vec![Issue { line: 1, column: 0, message }];
    let size = text.chars().count();
    if size > MAX_CHARACTERS {
        return Err(at_start(format!(
            "expression code point size exceeds limit: size: {size}, limit {MAX_CHARACTERS}"
        )));
    }
    if estimated_depth(text) > MAX_ESTIMATED_DEPTH {
        return Err(at_start("expression is nested too deeply".to_owned()));
    }
    let language = if has_bindings { &LANGUAGE_WITH_BINDINGS } else { &LANGUAGE };
    let Some(language) = &**language else {
        return Err(at_start("failed to set up the parser".to_owned()));
    };
    match language.parser().parse_with_source_info(text) {
        Ok((tree, info)) => Ok((tree, Positions::new(info))),
        Err(errors) => Err(issues(&errors)),
    }
}

fn issues(errors: &ParseErrors) -> Vec<Issue> {
    let found = errors.errors.iter().map(|error| Issue {
        line: usize::try_from(error.pos.0).unwrap_or(1).max(1),
        column: usize::try_from(error.pos.1).unwrap_or(1).saturating_sub(1),
        message: normalize_expected_eof(&error.msg),
    });
    found.collect()
}

/// Rewrites a parser message: at the possible end of an expression Kubernetes expects only the end of input.
fn normalize_expected_eof(message: &str) -> String {
    match message.split_once(" expecting {<EOF>, ") {
        Some((what, _)) => format!("{what} expecting <EOF>"),
        None => message.to_owned(),
    }
}

/// Renders all errors in Kubernetes' form, each with its source line and a caret below it.
pub fn show(text: &str, issues: &[Issue]) -> String {
    let mut sorted: Vec<&Issue> = issues.iter().collect();
    sorted.sort_by_key(|issue| (issue.line, issue.column));
    let shown = sorted.iter().take(MAX_SHOWN).map(|issue| {
        let line = text.split('\n').nth(issue.line - 1).unwrap_or("").replace('\t', " ");
        let wide = |c: char| c.len_utf8() > 1;
        let dots: String =
            line.chars().take(issue.column).map(|c| if wide(c) { '\u{ff0e}' } else { '.' }).collect();
        let mark = if line.chars().nth(issue.column).is_some_and(wide) { '\u{ff3e}' } else { '^' };
        format!(
            "ERROR: <input>:{}:{}: {}\n | {line}\n | {dots}{mark}",
            issue.line,
            issue.column + 1,
            issue.message
        )
    });
    let mut lines: Vec<String> = shown.collect();
    if let Some(more) = sorted.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
        lines.push(format!("{more} more errors were truncated"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_line_and_caret() {
        for (text, want) in [
            (
                "bad.",
                "ERROR: <input>:1:5: Syntax error: no viable alternative at input '.'\n | bad.\n | ....^",
            ),
            (
                "10.0.0.1",
                "ERROR: <input>:1:5: Syntax error: mismatched input '.0' expecting <EOF>\n | 10.0.0.1\n | ....^",
            ),
            (
                "Object{",
                "ERROR: <input>:1:8: Syntax error: mismatched input '<EOF>' expecting {'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}\n | Object{\n | .......^",
            ),
        ] {
            let found = parse(text, false).map(|_| ()).expect_err(text);
            assert_eq!(show(text, &found), want);
        }
    }

    #[test]
    fn tree_depth_is_estimated_from_text() {
        for (text, depth) in [
            ("a", 0),
            ("a.b.c", 2),
            ("a + b + c", 2),
            ("a.b + c.d.e + f", 4),
            ("f(x, y.z)", 2),
            ("((a))", 2),
            ("a && b && c || d", 0),
            ("'((((' == \"[[\" // ((((", 1),
            ("r'\\' + '''it's ((( ''' + b\"\\\"((\"", 2),
            ("!!!a", 3),
            ("a ? b : c ? d : e", 4),
        ] {
            assert_eq!(estimated_depth(text), depth, "{text}");
        }
        let legitimate = (0..200).map(|n| format!("object.spec.a{n} == 'x.y.z' && (a.b + c.d > {n})"));
        assert!(estimated_depth(&legitimate.collect::<Vec<_>>().join(" || ")) < 20);
        for text in ["(", "[", "!", "-", "a.", "1+", "a?b:", "f({"] {
            let parsed = parse(&text.repeat(90_000 / text.len()), false).map(drop).expect_err(text);
            assert_eq!(parsed[0].message, "expression is nested too deeply", "{text}");
        }
    }

    #[test]
    fn deep_trees_do_not_overflow_stack() {
        for text in [
            format!("a{}", ".a".repeat(20_000)),
            format!("{}a{}", "(".repeat(4000), ")".repeat(4000)),
            format!("1{}", "+1".repeat(20_000)),
            "[".repeat(30_000),
            "!".repeat(50_000) + "a",
        ] {
            let depth = with_stack(&text, || match parse(&text, false) {
                Ok((tree, _)) => {
                    // Dropping a deep tree needs stack, too.
                    drop(tree);
                    1
                }
                Err(_) => 0,
            });
            assert!(depth.is_some());
        }
    }
}
