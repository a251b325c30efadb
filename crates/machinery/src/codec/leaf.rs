//! Converts scalars of a document to the canonical form that Kubernetes writes.

use super::time;
use crate::quantity;
use crate::schema::{SchemaRef, Shape};
use serde_json::{Number, Value};

/// Reason why a scalar does not match its type.
pub(crate) enum Problem {
    /// `cannot unmarshal <what> into … of type <of>`; decoding continues, the first one is reported.
    Type { what: String, of: String },
    /// Another message that is reported if it is the first.
    Text(String),
    /// The same as `Type`, but decoding stops.
    FatalType { what: String, of: &'static str },
    /// A message that stops decoding.
    Fatal(String),
}

type Leaf = Result<Value, Problem>;

fn mismatch(schema: SchemaRef<'_>, what: &str) -> Problem {
    match schema.shape() {
        Shape::Time | Shape::MicroTime | Shape::Duration => {
            Problem::FatalType { what: what.to_owned(), of: "string" }
        }
        Shape::IntOrString => Problem::FatalType { what: what.to_owned(), of: "int32" },
        Shape::Quantity => Problem::Fatal(quantity::QuantityError::Format.to_string()),
        _ => Problem::Type { what: what.to_owned(), of: schema.type_name() },
    }
}

pub(crate) fn boolean(schema: SchemaRef<'_>, value: bool) -> Leaf {
    match schema.shape() {
        Shape::Boolean => Ok(Value::Bool(value)),
        _ => Err(mismatch(schema, "bool")),
    }
}

/// An array or object in place of a scalar.
pub(crate) fn container(schema: SchemaRef<'_>, what: &str) -> Problem {
    mismatch(schema, what)
}

pub(crate) fn string(schema: SchemaRef<'_>, text: String) -> Leaf {
    match schema.shape() {
        Shape::String | Shape::IntOrString => Ok(Value::String(text)),
        Shape::Bytes => base64(text),
        Shape::Time => instant(text, false),
        Shape::MicroTime => instant(text, true),
        Shape::Duration => duration(text),
        Shape::Quantity => quantity(text),
        _ => Err(mismatch(schema, "string")),
    }
}

/// A number from its text.
pub(crate) fn number(schema: SchemaRef<'_>, text: &str) -> Leaf {
    let out_of_range = || Problem::Type { what: format!("number {text}"), of: schema.type_name() };
    match schema.shape() {
        Shape::Int32 => text.parse::<i32>().map(Value::from).map_err(|_| out_of_range()),
        Shape::Int64 => text.parse::<i64>().map(Value::from).map_err(|_| out_of_range()),
        Shape::Number => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(float(number)),
            _ => Err(out_of_range()),
        },
        Shape::IntOrString => text
            .parse::<i32>()
            .map(Value::from)
            .map_err(|_| Problem::FatalType { what: format!("number {text}"), of: "int32" }),
        Shape::Quantity => quantity(text.to_owned()),
        _ => Err(mismatch(schema, "number")),
    }
}

/// An untyped number: an integer if it is one that fits, else a float.
pub(crate) fn any_number(text: &str) -> Leaf {
    if let Ok(integer) = text.parse::<i64>() {
        return Ok(Value::from(integer));
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(float(number)),
        _ => Err(Problem::Type { what: format!("number {text}"), of: "float64".to_owned() }),
    }
}

/// A float in Go's format: whole numbers have no fraction.
pub(crate) fn float(number: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and within range")]
    if number.fract() == 0.0 && number.abs() < 9.0e18 {
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// A number's text in Go's format.
pub(crate) fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => {
            if float != 0.0 && (float.abs() < 1e-6 || float.abs() >= 1e21) {
                let text = format!("{float:e}");
                match text.split_once('e') {
                    Some((mantissa, exponent)) if !exponent.starts_with('-') => {
                        format!("{mantissa}e+{exponent:0>2}")
                    }
                    _ => text,
                }
            } else {
                format!("{float}")
            }
        }
        _ => number.to_string(),
    }
}

/// Spaces around a quantity are ignored; other whitespace is escaped in JSON, and is an error.
fn quantity(text: String) -> Leaf {
    let canonical = match quantity::canonical(text.trim_matches(' ')) {
        Ok(canonical) => canonical,
        Err(error) => return Err(Problem::Fatal(error.to_string())),
    };
    if canonical.as_ref() == text {
        return Ok(Value::String(text));
    }
    Ok(Value::String(canonical.into_owned()))
}

/// A time; year 1 is the zero value.
fn instant(text: String, micros: bool) -> Leaf {
    if time::is_canonical(&text, micros) {
        return Ok(Value::String(text));
    }
    match time::parse(&text, micros) {
        Ok(time::ZERO) => Ok(Value::Null),
        Ok(instant) => Ok(Value::String(time::format(instant, micros))),
        Err(message) => Err(Problem::Fatal(message)),
    }
}

fn duration(text: String) -> Leaf {
    match time::parse_duration(&text) {
        Ok(nanos) => Ok(Value::String(time::format_duration(nanos))),
        Err(message) => Err(Problem::Fatal(message)),
    }
}

/// Checks base64 and drops line breaks and stray bits; canonical text is retained.
fn base64(text: String) -> Leaf {
    match scan_base64(text.as_bytes()) {
        Ok(true) => Ok(Value::String(text)),
        Ok(false) => {
            let compact: Vec<u8> =
                text.into_bytes().into_iter().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
            Ok(Value::String(encode_base64(&decode_base64(&compact).unwrap_or_default())))
        }
        Err(at) => Err(Problem::Text(format!("illegal base64 data at input byte {at}"))),
    }
}

/// Bytes as a list of numbers.
pub(crate) fn octets(items: &[Value]) -> Leaf {
    let mut bytes = Vec::with_capacity(items.len());
    for item in items {
        let octet = match item {
            Value::Null => Some(0),
            Value::Number(number) => number.as_u64().and_then(|number| u8::try_from(number).ok()),
            _ => None,
        };
        bytes.push(octet.ok_or_else(|| {
            let what = match item {
                Value::Number(number) => format!("number {}", number_text(number)),
                other => super::typed::kind_of(other).to_owned(),
            };
            Problem::Type { what, of: "uint8".to_owned() }
        })?);
    }
    Ok(Value::String(encode_base64(&bytes)))
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// The base64 alphabet.
const SEXTETS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/');
        byte += 1;
    }
    table
};

/// True if base64 text is canonical by a cheap test: only the alphabet, correct padding, no stray bits.
fn is_plain_base64(text: &[u8]) -> bool {
    let Some(body) = text.len().checked_sub(2).map(|two| &text[..two]) else { return false };
    let (body, stray) = match &text[body.len()..] {
        b"==" => (body, 0x0f),
        [_, b'='] => (&text[..text.len() - 1], 0x03),
        _ => (text, 0),
    };
    let canonical_end = body.last().and_then(|last| sextet(*last)).is_some_and(|bits| bits & stray == 0);
    text.len().is_multiple_of(4) && canonical_end && body.iter().all(|byte| SEXTETS[usize::from(*byte)])
}

/// Checks that base64 text is canonical; the error is the offset that Go reports.
fn scan_base64(text: &[u8]) -> Result<bool, usize> {
    if is_plain_base64(text) {
        return Ok(true);
    }
    look_through_base64(text)
}

fn look_through_base64(text: &[u8]) -> Result<bool, usize> {
    let skip = |mut at: usize| {
        while matches!(text.get(at), Some(b'\r' | b'\n')) {
            at += 1;
        }
        at
    };
    let mut canonical = true;
    let mut at = 0;
    loop {
        let mut last = 0;
        for position in 0..4 {
            let next = skip(at);
            canonical &= next == at;
            at = next;
            let Some(&byte) = text.get(at) else {
                return if position == 0 { Ok(canonical) } else { Err(at - position) };
            };
            at += 1;
            if let Some(bits) = sextet(byte) {
                last = bits;
                continue;
            }
            if byte != b'=' || position < 2 {
                return Err(at - 1);
            }
            if position == 2 {
                let next = skip(at);
                canonical &= next == at;
                match text.get(next) {
                    None => return Err(text.len()),
                    Some(b'=') => at = next + 1,
                    Some(_) => return Err(next),
                }
            }
            canonical &= last & (if position == 2 { 0x0f } else { 0x03 }) == 0;
            let end = skip(at);
            canonical &= end == at;
            return if end < text.len() { Err(end) } else { Ok(canonical) };
        }
    }
}

const LENIENT: base64::engine::GeneralPurpose = base64::engine::GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    base64::engine::GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    base64::Engine::decode(&LENIENT, text).ok()
}

pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    base64::Engine::encode(&LENIENT, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_error_reports_offset_of_kubernetes() {
        for (text, want) in [
            ("aGk=", Ok(true)),
            ("aGk", Err(0)),
            ("aGkh", Ok(true)),
            ("aG k", Err(2)),
            ("not base64!", Err(3)),
            ("aGl=", Ok(false)),
            ("aG\nk=", Ok(false)),
            ("aGk=x", Err(4)),
            ("a===", Err(1)),
            ("", Ok(true)),
        ] {
            assert_eq!(scan_base64(text.as_bytes()), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn plain_base64_is_canonical(text in "[A-Za-z0-9+/]{0,8}[A-Da-d=\n]{0,4}={0,2}") {
            if is_plain_base64(text.as_bytes()) {
                prop_assert_eq!(look_through_base64(text.as_bytes()), Ok(true), "{}", text);
            }
        }

        #[test]
        fn encoded_base64_is_plain(bytes in prop::collection::vec(any::<u8>(), 1..40)) {
            prop_assert!(is_plain_base64(encode_base64(&bytes).as_bytes()));
        }
    }

    #[test]
    fn floats_decode_like_kubernetes() {
        for (text, want) in
            [("1.0", "1"), ("1e3", "1000"), ("0.5", "0.5"), ("1e25", "1e+25"), ("1.5e-9", "1.5e-9")]
        {
            let Ok(Value::Number(number)) = any_number(text) else { panic!("{text}") };
            assert_eq!(number_text(&number), want);
        }
    }
}
