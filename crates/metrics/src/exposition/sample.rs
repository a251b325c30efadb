//! One line of a page: a sample, a comment or nothing.

use super::Format;
use std::borrow::Cow;

/// Labels of one sample, at most.
const MAX_LABELS: usize = 128;

/// Names and values of labels.
pub type SampleLabels<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// A measured value of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    pub name: Cow<'a, str>,
    pub labels: SampleLabels<'a>,
    pub value: f64,
    /// Milliseconds since the epoch.
    pub timestamp: Option<i64>,
}

impl Sample<'_> {
    /// The value of a label; empty if absent.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// Reason why a line is no sample. It never quotes the line: messages reach readers who may not read the page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error("the line is not UTF-8")]
    Utf8,
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("expected a number")]
    Number,
    #[error("more than {MAX_LABELS} labels")]
    TooManyLabels,
}

/// Parses a line; `None` for comments and empty lines.
pub fn sample(line: &[u8], format: Format) -> Result<Option<Sample<'_>>, SampleError> {
    let text = std::str::from_utf8(line).map_err(|_| SampleError::Utf8)?;
    let text = text.trim_matches([' ', '\t', '\r']);
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let mut scan = Scan { rest: text };
    let mut name: Cow<'_, str> = Cow::Borrowed(scan.identifier(true));
    let labels = if scan.take('{') { scan.labels(&mut name)? } else { Vec::new() };
    if name.is_empty() {
        return Err(SampleError::Expected("a metric name"));
    }
    // Exemplars follow a hash sign that no value or timestamp contains.
    let after = match format {
        Format::OpenMetrics => scan.rest.split('#').next().unwrap_or_default(),
        Format::Text => scan.rest,
    };
    let mut words = after.split_ascii_whitespace();
    let value = number(words.next().ok_or(SampleError::Expected("a value"))?)?;
    let timestamp = words.next().map(|word| timestamp(word, format)).transpose()?;
    if words.next().is_some() {
        return Err(SampleError::Expected("the end of the line"));
    }
    Ok(Some(Sample { name, labels, value, timestamp }))
}

/// The metric name and type of a `# TYPE` line.
pub fn type_of(line: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(line).ok()?.strip_prefix('#')?.trim_start_matches([' ', '\t']);
    let mut words = text.strip_prefix("TYPE")?.split_ascii_whitespace();
    let (name, kind) = (words.next()?, words.next()?);
    Some((name.trim_matches('"'), kind))
}

fn number(word: &str) -> Result<f64, SampleError> {
    // Rust's parser takes every spelling of infinity and of no number that the formats allow; hexadecimal is not used.
    word.parse().map_err(|_| SampleError::Number)
}

fn timestamp(word: &str, format: Format) -> Result<i64, SampleError> {
    match format {
        Format::Text => word.parse().map_err(|_| SampleError::Number),
        Format::OpenMetrics => {
            let seconds = number(word)?;
            if !seconds.is_finite() {
                return Err(SampleError::Expected("a timestamp"));
            }
            #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
            Ok((seconds * 1000.0) as i64)
        }
    }
}

struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn take(&mut self, wanted: char) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name; those of metrics may have colons.
    fn identifier(&mut self, is_metric: bool) -> &'a str {
        self.skip_blanks();
        let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_' || (is_metric && c == ':');
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            return "";
        }
        self.rest = rest;
        name
    }

    /// A quoted text whose opening quote has been taken.
    fn quoted(&mut self) -> Result<Cow<'a, str>, SampleError> {
        let end = memchr::memchr2(b'"', b'\\', self.rest.as_bytes());
        let end = end.ok_or(SampleError::Expected("a closing quote"))?;
        if self.rest.as_bytes().get(end) == Some(&b'"') {
            let (text, rest) = self.rest.split_at(end);
            self.rest = rest.get(1..).unwrap_or_default();
            return Ok(Cow::Borrowed(text));
        }
        let (mut text, mut chars) = (String::new(), self.rest.char_indices());
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = self.rest.get(at.saturating_add(1)..).unwrap_or_default();
                    return Ok(Cow::Owned(text));
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, escaped)) => text.push(escaped),
                    None => break,
                },
                c => text.push(c),
            }
        }
        Err(SampleError::Expected("a closing quote"))
    }

    /// Labels up to the closing brace. A quoted text without a value is the name of the metric.
    fn labels(&mut self, metric: &mut Cow<'a, str>) -> Result<SampleLabels<'a>, SampleError> {
        let mut labels = Vec::with_capacity(4);
        loop {
            if self.take('}') {
                return Ok(labels);
            }
            let is_quoted = self.take('"');
            let name = if is_quoted { self.quoted()? } else { Cow::Borrowed(self.identifier(false)) };
            if self.take('=') {
                if !self.take('"') {
                    return Err(SampleError::Expected("an opening quote"));
                }
                if labels.len() == MAX_LABELS {
                    return Err(SampleError::TooManyLabels);
                }
                labels.push((name, self.quoted()?));
            } else if is_quoted && metric.is_empty() {
                *metric = name;
            } else {
                return Err(SampleError::Expected("an equals sign"));
            }
            if !self.take(',') && !self.rest.starts_with('}') {
                return Err(SampleError::Expected("a comma or a closing brace"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Sample<'_>>, SampleError> {
        sample(line.as_bytes(), Format::Text)
    }

    #[test]
    fn samples_of_the_text_format() {
        let found =
            parse("http_requests_total{method=\"post\",code=\"200\"} 1027 1395066363000").expect("parses");
        let found = found.expect("a sample");
        assert_eq!(
            (&*found.name, found.value, found.timestamp),
            ("http_requests_total", 1027.0, Some(1395066363000))
        );
        assert_eq!((found.label("code"), found.label("method"), found.label("x")), ("200", "post", ""));
        let odd = r#"msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9"#;
        let found = parse(odd).expect("parses").expect("a sample");
        assert_eq!(found.label("path"), "C:\\DIR\\FILE.TXT");
        assert_eq!(found.label("error"), "Cannot find file:\n\"FILE.TXT\"");
        assert!(parse("x +Inf -3982045").expect("parses").is_some_and(|found| found.value == f64::INFINITY));
        assert!(parse("x{} NaN").expect("parses").is_some_and(|found| found.value.is_nan()));
        assert!(
            parse("  x { a = \"b\" , } 1\r").expect("parses").is_some_and(|found| found.label("a") == "b")
        );
        let found = parse("{\"my.metric\",\"my.label\"=\"v\"} 1").expect("parses").expect("a sample");
        assert_eq!((&*found.name, found.label("my.label")), ("my.metric", "v"));
        assert_eq!(parse("# HELP x y"), Ok(None));
        assert_eq!(parse("  "), Ok(None));
    }

    #[test]
    fn samples_of_openmetrics() {
        let line = b"foo_bucket{le=\"0.1\"} 8 1520879607.789 # {trace_id=\"a # b\"} 0.67 1.5";
        let found = sample(line, Format::OpenMetrics).expect("parses").expect("a sample");
        assert_eq!((found.value, found.timestamp), (8.0, Some(1520879607789)));
        assert_eq!(sample(b"# EOF", Format::OpenMetrics), Ok(None));
        assert_eq!(
            Format::of_content_type(Some("application/openmetrics-text; version=1.0.0")),
            Format::OpenMetrics
        );
        assert_eq!(Format::of_content_type(Some("text/plain; version=0.0.4")), Format::Text);
    }

    #[test]
    fn malformed_lines_are_errors() {
        for bad in [
            "1x 2",
            "x",
            "x{a=\"b\" 1",
            "x{a=b} 1",
            "x{a} 1",
            "x{a=\"b} 1",
            "x{a=\"b\\",
            "x{a=\"b\"c=\"d\"} 1",
            "x one",
            "x 1 2.5",
            "x 1 2 3",
            "{} 1",
            "{",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(sample(b"x{a=\"\xff\"} 1", Format::Text), Err(SampleError::Utf8));
        let many: Vec<String> = (0..200).map(|number| format!("l{number}=\"\"")).collect();
        assert_eq!(parse(&format!("x{{{}}} 1", many.join(","))), Err(SampleError::TooManyLabels));
    }

    #[test]
    fn type_lines_name_metric_and_type() {
        assert_eq!(type_of(b"# TYPE http_requests_total counter"), Some(("http_requests_total", "counter")));
        assert_eq!(type_of(b"# HELP http_requests_total help"), None);
    }
}
