//! Field paths and validation errors, with Kubernetes' message texts.

use serde_json::Value;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// A path such as `spec.containers[0].ports[1].name`, built from the root down.
///
/// A child borrows its parent, so building one costs nothing until an error needs its text.
///
/// ```
/// use machinery::field::{FieldError, Path};
///
/// let (spec, index) = (Path::new("spec"), 0);
/// let containers = spec.child("containers");
/// let container = containers.index(index);
/// let error = FieldError::required(&container.child("name"), "");
/// assert_eq!(error.to_string(), "spec.containers[0].name: Required value");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The empty path: the object itself.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    /// True for the empty path.
    pub fn is_root(&self) -> bool {
        matches!((self.parent, self.step), (None, Step::Root))
    }

    pub fn new(name: &'a str) -> Path<'a> {
        Path { parent: None, step: Step::Name(name) }
    }

    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent_is_root = match self.parent {
            Some(parent) => {
                parent.fmt(f)?;
                parent.is_root()
            }
            None => true,
        };
        match self.step {
            Step::Root => Ok(()),
            Step::Name(name) if parent_is_root => f.write_str(name),
            Step::Name(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// Type of a field error; the wire form is the cause's `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorKind {
    /// The `reason` of the cause in a Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

/// One rejected field. `Display` is the full message: `spec.x: Invalid value: "y": must …`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    /// The value in the form of the message, already formatted; `None` where none is shown.
    pub value: Option<String>,
    pub detail: String,
}

/// Errors of one object, in the order in which Kubernetes reports them.
pub type ErrorList = Vec<FieldError>;

thread_local! {
    /// Remaining bytes for errors created on this thread.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Limits the memory of errors created on this thread while it is alive. Errors beyond the limit have no text and are
/// omitted ([`FieldError::is_omitted`]). An object of many small invalid values has errors many times its size.
#[must_use]
pub struct ErrorBudget {
    before: usize,
    /// The limit is per thread, so the value must not be sent to another.
    _thread: PhantomData<*const ()>,
}

impl ErrorBudget {
    /// Sufficient for any error list that people read.
    const BYTES: usize = 4 << 20;

    pub fn begin() -> Self {
        Self { before: LEFT.replace(Self::BYTES), _thread: PhantomData }
    }

    /// Reports whether further errors would have no text, so that lists need not be validated any further.
    pub fn is_spent() -> bool {
        LEFT.get() == 0
    }
}

impl Drop for ErrorBudget {
    fn drop(&mut self) {
        LEFT.set(self.before);
    }
}

impl FieldError {
    fn new(
        kind: ErrorKind,
        path: &Path<'_>,
        value: impl FnOnce() -> Option<String>,
        detail: impl Into<String>,
    ) -> Self {
        let left = LEFT.get();
        if left == 0 {
            return Self { kind, field: String::new(), value: None, detail: String::new() };
        }
        let error = Self { kind, field: path.to_string(), value: value(), detail: detail.into() };
        if left != usize::MAX {
            let value = error.value.as_ref().map_or(0, String::len);
            let size = size_of::<Self>() + error.field.len() + value + error.detail.len();
            LEFT.set(left.saturating_sub(size));
        }
        error
    }

    /// Reports whether the text was omitted because of too many earlier errors.
    pub fn is_omitted(&self) -> bool {
        self.field.is_empty() && self.value.is_none() && self.detail.is_empty()
    }

    pub fn not_found(path: &Path<'_>, value: &Value) -> Self {
        Self::new(ErrorKind::NotFound, path, || Some(show(value)), "")
    }

    pub fn required(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, || None, detail)
    }

    pub fn duplicate(path: &Path<'_>, value: &Value) -> Self {
        Self::new(ErrorKind::Duplicate, path, || Some(show(value)), "")
    }

    pub fn invalid(path: &Path<'_>, value: &Value, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, || Some(show(value)), detail)
    }

    /// An invalid string, the most common case.
    pub fn invalid_str(path: &Path<'_>, value: &str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, || Some(show_str(value)), detail)
    }

    /// An invalid value of a named string type.
    pub fn invalid_named(path: &Path<'_>, named: &str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, || Some(show_named(named)), detail)
    }

    /// An invalid value that the caller has formatted.
    pub fn invalid_shown(path: &Path<'_>, shown: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, || Some(shown.into()), detail)
    }

    /// `Unsupported value: "x": supported values: "a", "b"`; the list is in display order.
    ///
    /// For named string types, which most enumerations are.
    pub fn not_supported(path: &Path<'_>, value: &Value, supported: &[&str]) -> Self {
        let shown = match value {
            Value::String(named) => show_named(named),
            other => show(other),
        };
        Self::not_supported_shown(path, shown, supported)
    }

    /// The same for a plain string.
    pub fn not_supported_str(path: &Path<'_>, value: &str, supported: &[&str]) -> Self {
        Self::not_supported_shown(path, show_str(value), supported)
    }

    fn not_supported_shown(path: &Path<'_>, shown: String, supported: &[&str]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorKind::NotSupported, path, || Some(shown), detail)
    }

    pub fn forbidden(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, || None, detail)
    }

    /// `Too long: may not be more than N bytes`.
    pub fn too_long(path: &Path<'_>, max_bytes: usize) -> Self {
        let noun = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::new(ErrorKind::TooLong, path, || None, format!("may not be more than {max_bytes} {noun}"))
    }

    /// `Too many: N: must have at most M items`.
    pub fn too_many(path: &Path<'_>, actual: usize, max: usize) -> Self {
        let noun = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorKind::TooMany,
            path,
            || Some(actual.to_string()),
            format!("must have at most {max} {noun}"),
        )
    }

    pub fn internal(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, || None, detail)
    }

    /// The message without the field, as in a cause of a Status.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(value);
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Formats a value for messages: strings quoted, scalars plain, the rest as JSON.
pub fn show(value: &Value) -> String {
    match value {
        Value::String(text) => show_str(text),
        other => json(other),
    }
}

/// JSON as Go writes it, with HTML characters escaped.
pub fn json(value: &Value) -> String {
    let mut text = value.to_string();
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        if text.contains(c) {
            text = text.replace(c, &format!("\\u{:04x}", c as u32));
        }
    }
    text
}

/// Formats a string for messages: quoted with Go's escapes.
pub fn show_str(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if crate::names::is_printable(c) => out.push(c),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// Formats a floating-point number as Go does.
pub fn show_float(number: f64) -> String {
    if number == 0.0 || (1e-4..1e21).contains(&number.abs()) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

/// Formats a value of a named string type (an operator, a policy) for messages: as JSON.
pub fn show_named(named: &str) -> String {
    json(&Value::from(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_beyond_budget_have_no_text() {
        let make = || FieldError::invalid_str(&Path::new("x"), "y", "z".repeat(1000));
        let budget = ErrorBudget::begin();
        let errors: Vec<FieldError> = (0..10_000).map(|_| make()).collect();
        let bytes: usize = errors.iter().map(|error| error.field.len() + error.detail.len()).sum();
        assert!((ErrorBudget::BYTES / 2..ErrorBudget::BYTES + 2000).contains(&bytes), "{bytes}");
        assert!(!errors[0].is_omitted() && errors[9_999].is_omitted());
        drop(budget);
        assert!(!make().is_omitted());
    }

    #[test]
    fn strings_are_formatted_with_escapes_of_their_type() {
        for (text, plain, named) in [
            ("a", r#""a""#, r#""a""#),
            ("a\u{0}b", r#""a\x00b""#, r#""a\u0000b""#),
            ("<b>&\"", r#""<b>&\"""#, r#""\u003cb\u003e\u0026\"""#),
            ("\u{feff}", r#""\ufeff""#, "\"\u{feff}\""),
            ("\u{a0}", r#""\u00a0""#, "\"\u{a0}\""),
            ("ünï😀e\u{301}", "\"ünï😀e\u{301}\"", "\"ünï😀e\u{301}\""),
            ("\u{f0000}", r#""\U000f0000""#, "\"\u{f0000}\""),
        ] {
            assert_eq!((show_str(text).as_str(), show_named(text).as_str()), (plain, named));
        }
    }

    #[test]
    fn floats_are_formatted_with_go_exponents() {
        for (number, shown) in [(0.0, "0"), (1000.0, "1000"), (0.5, "0.5"), (1e21, "1e+21"), (1e-7, "1e-07")]
        {
            assert_eq!(show_float(number), shown);
        }
    }

    #[test]
    fn other_values_are_formatted_as_json() {
        assert_eq!(
            show(&serde_json::json!({"a": "<b>&", "c": null})),
            r#"{"a":"\u003cb\u003e\u0026","c":null}"#
        );
    }

    #[test]
    fn paths_and_messages_match_kubernetes() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let name = first.child("name");
        assert_eq!(name.to_string(), "spec.containers[0].name");
        assert_eq!(Path::ROOT.child("a").to_string(), "a");
        let error = FieldError::invalid_str(&name, "A\"b", "must be lower case");
        assert_eq!(
            error.to_string(),
            r#"spec.containers[0].name: Invalid value: "A\"b": must be lower case"#
        );
        let error = FieldError::not_supported(&name, &Value::from("x"), &["a", "b"]);
        assert_eq!(error.body(), r#"Unsupported value: "x": supported values: "a", "b""#);
    }
}
