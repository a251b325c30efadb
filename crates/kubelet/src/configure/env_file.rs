//! Environment files that containers write for others: `NAME='value'`, line by line.

/// Syntax error of an environment file; parsing is strict.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct FileError {
    line: usize,
    problem: &'static str,
}

/// Returns the value of a variable; `None` if it is missing or empty. Values are single-quoted and may span lines;
/// blank lines and text after `#` are ignored. Content after the variable is not parsed.
pub fn value(text: &str, key: &str) -> Result<Option<String>, FileError> {
    let blank = [' ', '\t'];
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let wrong = |problem| FileError { line: at + 1, problem };
        let line = line.trim_start_matches(blank);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        if name.trim_end_matches(blank).is_empty() {
            return Err(wrong("empty variable name"));
        }
        if name.ends_with(blank) {
            return Err(wrong("whitespace before '=' is not allowed"));
        }
        if rest.starts_with(blank) {
            // `NAME= …` sets nothing, as in a shell.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let mut rest =
            rest.strip_prefix('\'').ok_or_else(|| wrong("value must be enclosed in single quotes"))?;
        let mut value = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            rest = lines.next().ok_or_else(|| wrong("unclosed single quote"))?.1;
        };
        let after = after.trim_start_matches(blank);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(wrong("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_file_values_and_errors() {
        let text = "# about\n\n  A='one' # first\nB='two\nlines'\nC= 'none'\nD=''\nE='a=b#c'\n";
        for (key, want) in [
            ("A", Some("one")),
            ("B", Some("two\nlines")),
            ("C", None),
            ("D", None),
            ("E", Some("a=b#c")),
            ("F", None),
        ] {
            assert_eq!(value(text, key), Ok(want.map(str::to_owned)), "{key}");
        }
        for (text, line, problem) in [
            ("A", 1, "missing '='"),
            ("\n='x'", 2, "empty variable name"),
            ("A ='x'", 1, "whitespace before '=' is not allowed"),
            ("A=x", 1, "value must be enclosed in single quotes"),
            ("A='x'y", 1, "unexpected content after closing quote"),
            ("A='x", 1, "unclosed single quote"),
        ] {
            assert_eq!(value(text, "Z"), Err(FileError { line, problem }), "{text:?}");
        }
        assert_eq!(value("A='x'\nnot looked at", "A"), Ok(Some("x".to_owned())));
    }
}
