//! One line of a log: `<time> <stdout|stderr> <F|P> <text>`.

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A log line; `partial` ones continue in the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// Timestamp text as written.
    pub time: &'a str,
    pub stream: Stream,
    pub partial: bool,
    pub content: &'a [u8],
}

impl Line<'_> {
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

/// Parses a line without its newline; `None` if malformed.
#[must_use]
pub fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let tags = parts.next()?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Line { time, stream, partial, content: parts.next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_parse() {
        let line = parse_line(b"2026-01-02T03:04:05.000000006Z stdout F hello  world").expect("a line");
        assert_eq!((line.stream, line.partial, line.content), (Stream::Stdout, false, &b"hello  world"[..]));
        assert_eq!(line.timestamp().map(|t| t.as_second()), Some(1_767_323_045));
        assert!(parse_line(b"2026-01-02T03:04:05Z stderr P x").expect("a line").partial);
        assert_eq!(parse_line(b"2026-01-02T03:04:05Z stderr F ").expect("a line").content, b"");
        assert_eq!(parse_line(b"nonsense"), None);
        assert_eq!(parse_line(b"2026-01-02T03:04:05Z other F x"), None);
    }
}
