//! `'…%s…'.format([…])`.

use super::Row;
use super::conversions::{double_text, to_string};
use super::strings::quote;
use super::time::seconds_text;
use crate::value::{Fault, List, Value};

const DEFAULT_PRECISION: usize = 6;
const MAX_PRECISION: usize = 1000;

pub const ROWS: &[Row] = &[("format", &["string.(list(dyn)) -> string"], |values| match values {
    [Value::String(text), Value::List(list)] => format(text, list).map(Value::from),
    _ => Err(Fault::no_such_overload()),
})];

fn format(text: &str, arguments: &List<'_>) -> Result<String, Fault> {
    let mut made = String::new();
    let mut chars = text.chars();
    let mut used = 0;
    while let Some(c) = chars.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        let mut clause = chars.next();
        if clause == Some('%') {
            made.push('%');
            continue;
        }
        let mut precision = None;
        if clause == Some('.') {
            let mut digits = String::new();
            clause = chars.next();
            while let Some(digit) = clause.filter(char::is_ascii_digit) {
                digits.push(digit);
                clause = chars.next();
            }
            let wanted: usize =
                digits.parse().map_err(|_| Fault::new("error while converting precision to integer"))?;
            precision = Some(wanted.min(MAX_PRECISION));
        }
        let clause = clause.ok_or_else(|| Fault::new("unexpected end of string"))?;
        let argument = arguments.get(used).ok_or_else(|| Fault::new(format!("index {used} out of range")))?;
        used += 1;
        made.push_str(&clause_text(clause, precision, &argument)?);
    }
    if used < arguments.len() {
        let more = arguments.len() - used;
        return Err(Fault::new(format!(
            "too many arguments supplied to string.format (expected {used}, got {})",
            used + more
        )));
    }
    Ok(made)
}

fn clause_text(clause: char, precision: Option<usize>, value: &Value<'_>) -> Result<String, Fault> {
    let wrong = |clause: &str, takes: &str| {
        Fault::new(format!(
            "error during formatting: {clause} clause can only be used on {takes}, was given {}",
            value.type_name()
        ))
    };
    match (clause, value) {
        ('s', value) => shown(value, 0),
        ('d', Value::Int(int)) => Ok(int.to_string()),
        ('d', Value::Uint(uint)) => Ok(uint.to_string()),
        ('d', _) => Err(wrong("decimal", "integers")),
        ('f', value) => match float(value) {
            Some(double) => Ok(fixed(double, precision)),
            None => Err(wrong("fixed-point", "doubles")),
        },
        ('e', value) => match float(value) {
            Some(double) => Ok(scientific(double, precision)),
            None => Err(wrong("scientific", "doubles")),
        },
        ('b', Value::Int(int)) => Ok(signed(*int, |magnitude| format!("{magnitude:b}"))),
        ('b', Value::Uint(uint)) => Ok(format!("{uint:b}")),
        ('b', Value::Bool(flag)) => Ok(if *flag { "1" } else { "0" }.to_owned()),
        ('b', _) => Err(wrong("binary", "integers and bools")),
        ('x', Value::Int(int)) => Ok(signed(*int, |magnitude| format!("{magnitude:x}"))),
        ('X', Value::Int(int)) => Ok(signed(*int, |magnitude| format!("{magnitude:X}"))),
        ('x', Value::Uint(uint)) => Ok(format!("{uint:x}")),
        ('X', Value::Uint(uint)) => Ok(format!("{uint:X}")),
        ('x', Value::String(text)) => Ok(text.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ('X', Value::String(text)) => Ok(text.bytes().map(|byte| format!("{byte:02X}")).collect()),
        ('x', Value::Bytes(bytes)) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        ('X', Value::Bytes(bytes)) => Ok(bytes.iter().map(|byte| format!("{byte:02X}")).collect()),
        ('x' | 'X', _) => Err(wrong("hex", "integers, byte buffers, and strings")),
        ('o', Value::Int(int)) => Ok(signed(*int, |magnitude| format!("{magnitude:o}"))),
        ('o', Value::Uint(uint)) => Ok(format!("{uint:o}")),
        ('o', _) => Err(wrong("octal", "integers")),
        (other, _) => Err(Fault::new(format!(
            "could not parse formatting clause: unrecognized formatting clause {other:?}"
        ))),
    }
}

fn signed(int: i64, of: impl Fn(u64) -> String) -> String {
    let sign = if int < 0 { "-" } else { "" };
    format!("{sign}{}", of(int.unsigned_abs()))
}

fn float(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(double) => Some(*double),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn special(double: f64) -> Option<String> {
    if double.is_nan() {
        return Some("NaN".to_owned());
    }
    double.is_infinite().then(|| if double > 0.0 { "∞" } else { "-∞" }.to_owned())
}

fn fixed(double: f64, precision: Option<usize>) -> String {
    special(double).unwrap_or_else(|| {
        let text = format!("{:.*}", precision.unwrap_or(DEFAULT_PRECISION), double);
        let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(w, f)| (w, Some(f)));
        let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
        // Thousands are separated by commas.
        let mut grouped = String::new();
        for (index, c) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                grouped.push(',');
            }
            grouped.push(c);
        }
        let fraction = fraction.map(|fraction| format!(".{fraction}")).unwrap_or_default();
        format!("{sign}{grouped}{fraction}")
    })
}

fn scientific(double: f64, precision: Option<usize>) -> String {
    special(double).unwrap_or_else(|| {
        let text = format!("{:.*e}", precision.unwrap_or(DEFAULT_PRECISION), double);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        format!("{mantissa}\u{202f}×\u{202f}10{}", superscript(sign, digits))
    })
}

fn superscript(sign: char, digits: &str) -> String {
    let padded = format!("{digits:0>2}");
    let digit = |c: char| match c {
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => c.to_digit(10).and_then(|d| char::from_u32(0x2070 + d)).unwrap_or(c),
    };
    let sign = if sign == '-' { "⁻" } else { "" };
    format!("{sign}{}", padded.chars().map(digit).collect::<String>())
}

/// Text of a value for `%s`.
fn shown(value: &Value<'_>, depth: usize) -> Result<String, Fault> {
    match value {
        Value::List(_) | Value::Map(_) => literal(value, depth),
        Value::Null => Ok("null".to_owned()),
        value => to_string(value).map_err(|_| {
            Fault::new(format!(
                "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {}",
                value.type_name()
            ))
        }),
    }
}

/// Text of a value inside a list or map.
fn literal(value: &Value<'_>, depth: usize) -> Result<String, Fault> {
    if depth > 100 {
        return Err(Fault::new("value is nested too deeply"));
    }
    Ok(match value {
        Value::String(text) => quote(text),
        Value::Bytes(_) => format!("b{}", quote(&to_string(value)?)),
        Value::Double(double) if double.is_finite() => format!("{double:.DEFAULT_PRECISION$}"),
        Value::Double(double) => quote(&double_text(*double)),
        Value::Timestamp(at) => format!("timestamp({})", quote(&at.to_string())),
        Value::Duration(nanos) => format!("duration({})", quote(&seconds_text(*nanos))),
        Value::List(list) => {
            let items: Vec<String> =
                list.iter().map(|item| literal(&item, depth + 1)).collect::<Result<_, _>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut entries: Vec<String> = Vec::new();
            for (key, value) in map.iter() {
                entries.push(format!("{}:{}", literal(&key, depth + 1)?, literal(&value, depth + 1)?));
            }
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        other => shown(other, depth + 1)?,
    })
}
