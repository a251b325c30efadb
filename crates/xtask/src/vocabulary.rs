//! Checks comments, messages and identifiers against the words that `docs/glossary.md` excludes.

use std::fs;
use std::path::PathBuf;

use crate::sources::{files, is_test_file, repository, tests_start};

/// Heading of the table in the glossary.
const HEADING: &str = "## Words not used";
/// Words that open an indirect question.
const QUESTIONS: &[&str] = &["What", "Whether", "Who", "Whom", "Whose", "How", "Why", "Where"];
/// Code before the string literal of a message, of any length.
const MESSAGES: &[&str] = &[
    "trace!(", "debug!(", "info!(", "warn!(", "error!(", "bail!(", "anyhow!(", "context(", "#[error(",
    "help =",
];
/// Code before the text of an error.
const ERRORS: &[&str] = &["#[error(", "context("];
/// Words with the ending of a gerund that may open an error.
const NO_GERUNDS: &[&str] = &["missing", "nothing", "blocking", "beginning"];
/// Words that make a string literal a message.
const SENTENCE: usize = 3;
/// Uses in which an excluded word is a technical term, or part of a text of Kubernetes: part of the path, and the word.
const ALLOWED: &[(&str, &str)] = &[
    // The user of `/etc/passwd`.
    ("ferry/tests/rootless/", "nobody"),
    // Users of tests that have no permissions.
    ("cluster/tests/server/", "nobody"),
    // The flag `--audit-trail`.
    ("ferry/src/audit_flags.rs", "trail"),
    ("docs/audit.md", "trail"),
    ("docs/flag-reference.md", "trail"),
    // Texts of Kubernetes.
    ("controllers/src/horizontal_pod_autoscaler/metrics.rs", "asked"),
    ("api/src/tables/doc.rs", "tells"),
    ("scheduler/src/devices/allocator", "asks"),
    ("apiserver/src/encryption/config.rs", "makes no sense"),
    // The list of words.
    ("docs/glossary.md", ""),
    // This check names the words.
    ("xtask/src/vocabulary.rs", ""),
];

/// Part of a source file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Comment,
    Message,
    /// The text of an error, which is a message, too.
    Error,
    Identifier,
}

/// Excluded words by the parts they are excluded from, in lower case.
#[derive(Default, Debug)]
struct Vocabulary {
    /// Excluded from comments and messages; may be phrases.
    text: Vec<String>,
    /// Excluded from identifiers.
    names: Vec<String>,
}

impl Vocabulary {
    /// Reads the table: `| words | text, names or review | replacement |`. Rows with `review` are not checked.
    fn parse(glossary: &str) -> Self {
        let mut vocabulary = Self::default();
        let table = glossary.split_once(HEADING).map_or("", |(_, table)| table);
        for line in table.lines().filter(|line| line.starts_with('|')).skip(2) {
            let columns: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [words, scope, _] = columns.as_slice() else { panic!("malformed row: {line}") };
            for word in words.split(',').map(|word| word.trim().to_lowercase()) {
                match *scope {
                    "text" => vocabulary.text.push(word),
                    "names" => vocabulary.names.push(word),
                    "all" => {
                        vocabulary.text.push(word.clone());
                        vocabulary.names.push(word);
                    }
                    "review" => {}
                    other => panic!("unknown scope {other}: {line}"),
                }
            }
        }
        vocabulary
    }

    /// Excluded word in a part of a file, if any.
    fn excluded(&self, part: Part, text: &str) -> Option<String> {
        match part {
            Part::Comment if opens_with_question(text) => Some("a question".to_owned()),
            Part::Error if opens_with_gerund(text) => Some("a gerund".to_owned()),
            Part::Comment | Part::Message | Part::Error => {
                let text = format!(" {} ", words_of(text).join(" "));
                self.text.iter().find(|word| text.contains(&format!(" {word} "))).cloned()
            }
            Part::Identifier => {
                let parts = identifier_parts(text);
                self.names.iter().find(|word| parts.contains(word)).cloned()
            }
        }
    }

    /// `line: word` of all findings in a Markdown document.
    fn check_document(&self, document: &str) -> Vec<(usize, String)> {
        let lines = document.lines().enumerate();
        lines.filter_map(|(at, line)| Some((at + 1, self.excluded(Part::Message, line)?))).collect()
    }

    /// `line: word` of all findings in a source file.
    fn check(&self, source: &str, is_test: bool) -> Vec<(usize, String)> {
        let tests = if is_test { 0 } else { tests_start(source) };
        let found = parts(source, tests).into_iter();
        found.filter_map(|(line, part, text)| Some((line, self.excluded(part, text)?))).collect()
    }
}

/// True for a doc comment that opens with a question, and so does not say what the item is.
fn opens_with_question(comment: &str) -> bool {
    let text = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")).unwrap_or("").trim_start();
    text.split(|c: char| !c.is_alphanumeric()).next().is_some_and(|first| QUESTIONS.contains(&first))
}

/// True for an error that opens with its operation instead of the failure.
fn opens_with_gerund(literal: &str) -> bool {
    let (_, text) = literal.split_once('"').unwrap_or_default();
    let first = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    first.ends_with("ing") && first.starts_with(char::is_lowercase) && !NO_GERUNDS.contains(&first)
}

/// True for a string literal that reads as a sentence.
fn is_sentence(literal: &str) -> bool {
    let words =
        literal.split_whitespace().filter(|word| word.chars().filter(|c| c.is_alphabetic()).count() > 1);
    words.count() >= SENTENCE
}

fn words_of(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_');
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// `kept`, `line` of `KEPT_LINE`, `kept_line` or `KeptLine`.
fn identifier_parts(identifier: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in identifier.split('_') {
        let is_upper = !part.chars().any(|c| c.is_ascii_lowercase());
        let mut current = String::new();
        for c in part.chars() {
            if c.is_ascii_uppercase() && !is_upper && !current.is_empty() {
                parts.push(std::mem::take(&mut current));
            }
            current.push(c.to_ascii_lowercase());
        }
        if !current.is_empty() {
            parts.push(current);
        }
    }
    parts
}

/// End of the string literal that begins at `start`, if there is one: plain, byte or raw.
fn string_end(source: &str, start: usize) -> Option<usize> {
    let rest = &source[start..];
    let body = rest.strip_prefix('b').unwrap_or(rest);
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let content = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", &raw[..hashes]);
        let length = content.find(&end).unwrap_or(content.len().saturating_sub(end.len()));
        return Some(source.len() - content.len() + length + end.len());
    }
    let content = body.strip_prefix('"')?;
    let mut escaped = false;
    for (at, c) in content.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(source.len() - content.len() + at + 1),
            _ => {}
        }
    }
    Some(source.len())
}

/// Comments, messages and identifiers of a source file with their line numbers. String literals from `tests` on are
/// messages only where a macro makes them one.
fn parts(source: &str, tests: usize) -> Vec<(usize, Part, &str)> {
    let mut found = Vec::new();
    let (mut at, mut statement, mut line, mut counted) = (0, 0, 1, 0);
    while let Some(c) = source[at..].chars().next() {
        line += source[counted..at].matches('\n').count();
        counted = at;
        let rest = &source[at..];
        if rest.starts_with("//") {
            let end = at + rest.find('\n').unwrap_or(rest.len());
            found.push((line, Part::Comment, &source[at..end]));
            at = end;
        } else if let Some(end) = string_end(source, at) {
            let head = &source[statement..at];
            let follows = |list: &[&str]| list.iter().any(|code| head.contains(code));
            let literal = &source[at..end];
            if at < tests && follows(ERRORS) {
                found.push((line, Part::Error, literal));
            } else if follows(MESSAGES) || (at < tests && is_sentence(literal)) {
                found.push((line, Part::Message, literal));
            }
            at = end;
        } else if c == '_' || c.is_ascii_alphabetic() {
            let length = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            found.push((line, Part::Identifier, &rest[..length]));
            at += length;
        } else if c == '\'' {
            // A character literal; otherwise a lifetime, whose name is an identifier.
            let mut characters = rest.chars().skip(1);
            let is_escape = characters.next() == Some('\\');
            let closing = rest.get(1..).and_then(|rest| rest.find('\''));
            let is_short = closing.is_some_and(|length| rest[1..=length].chars().count() <= 1);
            at += if is_escape {
                2 + rest.get(3..).and_then(|rest| rest.find('\'')).map_or(1, |length| length + 2)
            } else if is_short {
                closing.unwrap_or(0) + 2
            } else {
                1
            };
        } else {
            if matches!(c, ';' | '{' | '}') {
                statement = at + 1;
            }
            at += c.len_utf8();
        }
    }
    found
}

/// Markdown documents of the repository and its `docs` folder.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&repository().join("docs"), "md", &mut found);
    let top =
        fs::read_dir(repository()).expect("the repository").filter_map(Result::ok).map(|entry| entry.path());
    found.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    found
}

fn glossary() -> Vocabulary {
    Vocabulary::parse(&fs::read_to_string(repository().join("docs/glossary.md")).expect("the glossary"))
}

/// Fails with all findings in `files` that are not allowed.
fn assert_clean(paths: Vec<PathBuf>, check: impl Fn(&str, &str) -> Vec<(usize, String)>) {
    let mut found = Vec::new();
    for file in paths {
        let path = file.display().to_string();
        let is_allowed = |word: &str| {
            let mut rows = ALLOWED.iter().filter(|(part, _)| path.contains(part));
            rows.any(|(_, allowed)| allowed.is_empty() || *allowed == word)
        };
        let findings = check(&path, &fs::read_to_string(&file).expect("a file"));
        let findings = findings.into_iter().filter(|(_, word)| !is_allowed(word));
        found.extend(findings.map(|(line, word)| format!("{path}:{line}: {word}")));
    }
    assert!(found.is_empty(), "{} excluded words, see docs/glossary.md:\n{}", found.len(), found.join("\n"));
}

#[test]
fn sources_use_no_excluded_words() {
    let vocabulary = glossary();
    assert!(vocabulary.text.len() > 10 && vocabulary.names.len() > 5, "{vocabulary:?}");
    let mut sources = Vec::new();
    files(&repository().join("crates"), "rs", &mut sources);
    assert!(sources.len() > 500, "only {} files", sources.len());
    assert_clean(sources, |path, source| vocabulary.check(source, is_test_file(path)));
}

#[test]
fn documents_use_no_excluded_words() {
    let (vocabulary, documents) = (glossary(), documents());
    assert!(documents.len() > 20, "only {} documents", documents.len());
    assert_clean(documents, |_, document| vocabulary.check_document(document));
}

#[test]
fn planted_words_in_comments_messages_and_identifiers_are_found() {
    let vocabulary = Vocabulary::parse(&format!(
        "| term | meaning |\n{HEADING}\n| not | scope | but |\n|---|---|---|\n| nobody, for good | all | no client |\n\
         | asked | names | requested |\n| room | text | capacity |\n| place | review | prefix |\n"
    ));
    for (source, expected) in [
        ("// Nobody waits.", vec![(1, "nobody")]),
        ("\n/// Closed for good.\nfn a() {}", vec![(2, "for good")]),
        ("/// Whether it is open.", vec![(1, "a question")]),
        ("//! How it works.", vec![(1, "a question")]),
        ("fn f() {\n    warn!(pod = %p, \"no room for {p}\");\n}", vec![(2, "room")]),
        ("#[error(\"no room left\")]", vec![(1, "room")]),
        ("bail!(\n    r#\"no \"room\" left\"#\n)", vec![(2, "room")]),
        ("let text = problem(\"no room left\"); // fine", vec![(1, "room")]),
        ("fn f() {}\n#[cfg(test)]\nmod tests {\n    // no room\n}", vec![(4, "room")]),
        ("#[error(\"reading {path}\")]", vec![(1, "a gerund")]),
        ("let asked = 1;", vec![(1, "asked")]),
        ("struct RootAsked;", vec![(1, "asked")]),
        ("const ASKED_FOR: u8 = b'\\'';\nlet x = '\"'; // room", vec![(1, "asked"), (2, "room")]),
        ("fn f<'asked>(x: &'asked str) {}", vec![(1, "asked"), (1, "asked")]),
    ] {
        let expected: Vec<(usize, String)> =
            expected.into_iter().map(|(line, word)| (line, word.to_owned())).collect();
        assert_eq!(vocabulary.check(source, false), expected, "{source}");
    }
    for source in [
        "// Reports whether it is open; a mushroom has no place.",
        "let text = \"nobody asked\"; // data",
        "let room = unasked(tasked);",
        "/// `What` is a variant.",
        "#[error(\"missing {name}\")]",
        "#[cfg(test)]\nmod tests {\n    const DATA: &str = \"there is no room left\";\n}",
    ] {
        assert_eq!(vocabulary.check(source, false), [], "{source}");
    }
    assert_eq!(vocabulary.check("const DATA: &str = \"there is no room left\";", true), []);
    let found = vocabulary.check_document("# Title\n\nThere is no room left.\n");
    assert_eq!(found, [(3, "room".to_owned())]);
}
