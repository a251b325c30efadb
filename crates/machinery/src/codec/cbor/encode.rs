//! Values to CBOR, deterministically.

use super::{ARRAY, BYTES, LATER_BASE64, MAP, NEGATIVE, SELF_DESCRIBED, TAG, UNSIGNED};
use crate::codec::leaf;
use crate::schema::{SchemaRef, Shape};
use serde_json::{Map, Number, Value};

/// Encodes a value. Its type, if known, distinguishes bytes from text and floats from integers.
pub fn encode(value: &Value, schema: Option<SchemaRef<'_>>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&SELF_DESCRIBED);
    item(&mut out, value, schema);
    out
}

/// One watch event, an item of a CBOR sequence; `object` is already encoded.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + event.len() + 24);
    out.extend_from_slice(&SELF_DESCRIBED);
    head(&mut out, MAP, 2);
    string(&mut out, b"type");
    string(&mut out, event.as_bytes());
    string(&mut out, b"object");
    out.extend_from_slice(object);
    out
}

fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    match argument {
        0..24 => out.push(major | bytes[7]),
        24..=0xff => out.extend_from_slice(&[major | 24, bytes[7]]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, BYTES, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn item(out: &mut Vec<u8>, value: &Value, schema: Option<SchemaRef<'_>>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(flag) => out.push(if *flag { 0xf5 } else { 0xf4 }),
        Value::Number(number) => self::number(out, number, schema),
        Value::String(text) => match schema.map(SchemaRef::shape) {
            Some(Shape::Bytes) => {
                head(out, TAG, LATER_BASE64);
                string(out, &leaf::decode_base64(text.as_bytes()).unwrap_or_default());
            }
            _ => string(out, text.as_bytes()),
        },
        Value::Array(items) => {
            head(out, ARRAY, items.len() as u64);
            let element = schema.and_then(SchemaRef::element);
            for value in items {
                item(out, value, element);
            }
        }
        Value::Object(map) => self::map(out, map, schema),
    }
}

fn number(out: &mut Vec<u8>, number: &Number, schema: Option<SchemaRef<'_>>) {
    let typed_float = schema.is_some_and(|schema| schema.shape() == Shape::Number);
    match number.as_i64() {
        Some(integer) if !typed_float && integer >= 0 => head(out, UNSIGNED, integer.unsigned_abs()),
        Some(integer) if !typed_float => head(out, NEGATIVE, (!integer).unsigned_abs()),
        _ => float(out, number.as_f64().unwrap_or(0.0)),
    }
}

/// The shortest float that is exact.
fn float(out: &mut Vec<u8>, value: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "compared with the original right after")]
    let single = value as f32;
    if f64::from(single) != value {
        out.push(0xfb);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Some(half) = half(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

/// A float in 16 bits, if it fits exactly.
fn half(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = u16::try_from(bits >> 31).unwrap_or(0) << 15;
    if bits << 1 == 0 {
        return Some(sign);
    }
    let exponent = i32::try_from(bits >> 23 & 0xff).unwrap_or(0) - 127;
    let mantissa = bits & 0x7f_ffff;
    match exponent {
        -14..=15 if mantissa.trailing_zeros() >= 13 => {
            let exponent = u16::try_from(exponent + 15).unwrap_or(0);
            Some(sign | exponent << 10 | u16::try_from(mantissa >> 13).unwrap_or(0))
        }
        -24..=-15 => {
            let full = mantissa | 0x80_0000;
            let shift = u32::try_from(-1 - exponent).unwrap_or(0);
            (full.trailing_zeros() >= shift).then(|| sign | u16::try_from(full >> shift).unwrap_or(0))
        }
        _ => None,
    }
}

/// Keys in the order of their encoded bytes: shorter ones first.
fn map(out: &mut Vec<u8>, map: &Map<String, Value>, schema: Option<SchemaRef<'_>>) {
    head(out, MAP, map.len() as u64);
    let mut entries: Vec<(&String, &Value)> = map.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    for (key, value) in entries {
        string(out, key.as_bytes());
        item(out, value, schema.and_then(|schema| schema.child(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_are_the_shortest_possible() {
        for (value, want) in [
            (json!(0), "00"),
            (json!(23), "17"),
            (json!(24), "1818"),
            (json!(1000), "1903e8"),
            (json!(-1), "20"),
            (json!(-1000), "3903e7"),
            (json!(i64::MIN), "3b7fffffffffffffff"),
            (json!(1.5), "f93e00"),
            (json!(100000.5), "fa47c35040"),
            (json!(1.1), "fb3ff199999999999a"),
            (json!(5.960464477539063e-8), "f90001"),
            (json!(0.00006103515625), "f90400"),
            (json!("a"), "4161"),
            (json!([true, null]), "82f5f6"),
            (json!({"bb": 1, "a": 2}), "a241610242626201"),
        ] {
            let bytes = encode(&value, None);
            let shown: String = bytes[3..].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, want, "{value}");
            assert_eq!(super::super::decode(&bytes), Ok(value));
        }
    }
}
