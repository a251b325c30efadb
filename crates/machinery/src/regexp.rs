//! Converts Go's regular expressions to the syntax of the `regex` crate.
//!
//! The dialects are close. In Go, `\d`, `\w`, `\s` and `\b` are ASCII-only, `[`, `&&`, `--` and `~~` have no meaning
//! in a class, a brace that begins no repetition is literal, and `\Q…\E` quotes.

/// The same expression for the `regex` crate. Expressions that Go rejects stay invalid.
///
/// ```
/// assert_eq!(machinery::regexp::from_go(r"^\d+$"), "^[0-9]+$");
/// ```
#[must_use]
pub fn from_go(pattern: &str) -> String {
    let mut translation = Translation { rest: pattern, out: String::with_capacity(pattern.len()) };
    translation.run();
    translation.out
}

struct Translation<'p> {
    rest: &'p str,
    out: String,
}

/// Content of a class for an escape that is ASCII-only in Go.
fn ascii_class(escape: char) -> Option<&'static str> {
    Some(match escape.to_ascii_lowercase() {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => r"\t\n\x0c\r ",
        _ => return None,
    })
}

impl<'p> Translation<'p> {
    fn take(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn run(&mut self) {
        while let Some(c) = self.take() {
            match c {
                '\\' => self.escape(),
                '[' => self.class(),
                '{' if !begins_repetition(self.rest) => self.out.push_str(r"\{"),
                '}' => self.out.push('}'),
                c => self.out.push(c),
            }
        }
    }

    fn escape(&mut self) {
        match self.take() {
            None => self.out.push('\\'),
            Some('Q') => {
                let end = self.rest.find(r"\E");
                let (quoted, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest.strip_prefix(r"\E").unwrap_or("");
                for c in quoted.chars() {
                    if !c.is_alphanumeric() && c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
                        self.out.push('\\');
                    }
                    self.out.push(c);
                }
            }
            Some('b') => self.out.push_str(r"(?-u:\b)"),
            Some(c) => match ascii_class(c) {
                Some(class) if c.is_ascii_lowercase() => self.out.push_str(&format!("[{class}]")),
                Some(class) => self.out.push_str(&format!("[^{class}]")),
                None => {
                    self.out.push('\\');
                    self.out.push(c);
                }
            },
        }
    }

    /// A class, after its opening bracket.
    fn class(&mut self) {
        self.out.push('[');
        if self.rest.starts_with('^') {
            self.take();
            self.out.push('^');
        }
        // A dash here would begin a range.
        let mut after_atom = false;
        let mut is_first = true;
        while let Some(c) = self.take() {
            match c {
                ']' if !is_first => {
                    self.out.push(']');
                    return;
                }
                '-' if after_atom && !self.rest.starts_with(']') => {
                    self.out.push('-');
                    after_atom = false;
                    is_first = false;
                    continue;
                }
                '[' if self.rest.starts_with(':') && self.rest.contains(":]") => {
                    let end = self.rest.find(":]").unwrap_or(0) + 2;
                    let (name, rest) = self.rest.split_at(end);
                    self.out.push('[');
                    self.out.push_str(name);
                    self.rest = rest;
                }
                '[' | ']' | '&' | '~' | '-' => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                '\\' => match self.take() {
                    None => self.out.push('\\'),
                    Some(escape) => match ascii_class(escape) {
                        Some(class) if escape.is_ascii_lowercase() => self.out.push_str(class),
                        Some(class) => self.out.push_str(&format!("[^{class}]")),
                        None => {
                            self.out.push('\\');
                            self.out.push(escape);
                        }
                    },
                },
                c => self.out.push(c),
            }
            after_atom = true;
            is_first = false;
        }
    }
}

/// True if the text after a brace makes it a repetition: `{2}`, `{2,}`, `{2,3}`.
fn begins_repetition(rest: &str) -> bool {
    let Some((counts, _)) = rest.split_once('}') else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match counts.split_once(',') {
        None => is_number(counts),
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_syntax_is_translated() {
        for (go, want) in [
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", r"^[a-z0-9]([\-a-z0-9]*[a-z0-9])?$"),
            (r"^\d+\w*\s\D$", r"^[0-9]+[0-9A-Za-z_]*[\t\n\x0c\r ][^0-9]$"),
            (r"[\d\-_\W]", r"[0-9\-_[^0-9A-Za-z_]]"),
            (r"[[]&&~~]", r"[\[]&&~~]"),
            (r"[[]x", r"[\[]x"),
            (r"[a&&b]", r"[a\&\&b]"),
            (r"[+--]", r"[+-\-]"),
            (r"[--9]", r"[\--9]"),
            (r"[^]a]", r"[^\]a]"),
            (r"[a-]", r"[a\-]"),
            (r"[[:alpha:]_]", r"[[:alpha:]_]"),
            (r"a{2,3}{,4}{x}", r"a{2,3}\{,4}\{x}"),
            (r"\Qa.b*\E+", r"a\.b\*+"),
            (r"\bx", r"(?-u:\b)x"),
            (r"\.\[\pL\x41", r"\.\[\pL\x41"),
            ("(", "("),
            ("a\\", "a\\"),
            ("[a", "[a"),
        ] {
            assert_eq!(from_go(go), want, "{go}");
        }
    }
}
