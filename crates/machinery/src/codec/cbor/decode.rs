//! CBOR to values: the subset that JSON can represent.

use super::{ARRAY, BYTES, CborError, LATER_BASE64, MAP, NEGATIVE, SELF_DESCRIBED, TAG, TEXT, UNSIGNED};
use crate::codec::budget::{Budget, MAP_BYTES, VALUE_BYTES};
use crate::codec::{MAX_DEPTH, leaf, time};
use serde_json::{Map, Value};

type Read<T> = Result<T, CborError>;

/// Decodes one item without trailing data.
pub fn decode(bytes: &[u8]) -> Read<Value> {
    // The self-describing tag is not a nesting level: items read without it are written with it.
    let at = if bytes.starts_with(&SELF_DESCRIBED) { SELF_DESCRIBED.len() } else { 0 };
    let mut reader = Reader { bytes, at, budget: Budget::of_compact(bytes.len()) };
    let value = reader.item(0)?;
    match bytes.len() - reader.at {
        0 => Ok(value),
        count => Err(CborError::Trailing { count, index: reader.at }),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    budget: Budget,
}

/// Head of an item: major type, and its argument unless the length is indefinite.
struct Head {
    major: u8,
    minor: u8,
    argument: Option<u64>,
    initial: u8,
}

const BREAK: u8 = 0xff;

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| CborError::Truncated)?;
        let end = self.at.checked_add(count).ok_or(CborError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(CborError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    fn head(&mut self) -> Read<Head> {
        let initial = self.take(1)?[0];
        let (major, minor) = (initial >> 5, initial & 31);
        let argument = match minor {
            0..24 => Some(u64::from(minor)),
            24..28 => {
                let bytes = self.take(1 << (minor - 24))?;
                Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            }
            31 if matches!(major, BYTES | TEXT | ARRAY | MAP) => None,
            _ => return Err(CborError::Malformed(initial)),
        };
        Ok(Head { major, minor, argument, initial })
    }

    fn at_break(&mut self) -> bool {
        let found = self.bytes.get(self.at) == Some(&BREAK);
        self.at += usize::from(found);
        found
    }

    fn item(&mut self, depth: usize) -> Read<Value> {
        if depth > MAX_DEPTH {
            return Err(CborError::Depth(MAX_DEPTH));
        }
        self.budget.spend(VALUE_BYTES)?;
        let head = self.head()?;
        match (head.major, head.argument) {
            (UNSIGNED, Some(value)) => i64::try_from(value).map(Value::from).map_err(|_| CborError::Integer),
            (NEGATIVE, Some(value)) => {
                i64::try_from(value).map(|n| Value::from(!n)).map_err(|_| CborError::Integer)
            }
            (BYTES | TEXT, _) => Ok(Value::String(text(self.string(&head)?)?)),
            (ARRAY, length) => self.array(length, depth),
            (MAP, length) => self.map(length, depth),
            (TAG, Some(tag)) => self.tagged(tag, depth),
            _ => simple(&head),
        }
    }

    /// The bytes of a string, in one or several chunks.
    fn string(&mut self, head: &Head) -> Read<Vec<u8>> {
        if let Some(length) = head.argument {
            return Ok(self.take(length)?.to_vec());
        }
        let mut whole = Vec::new();
        while !self.at_break() {
            let chunk = self.head()?;
            match chunk.argument {
                Some(length) if chunk.major == head.major => whole.extend_from_slice(self.take(length)?),
                _ => return Err(CborError::Malformed(chunk.initial)),
            }
        }
        Ok(whole)
    }

    fn array(&mut self, length: Option<u64>, depth: usize) -> Read<Value> {
        let mut items = Vec::new();
        let mut count = 0;
        while length.map_or_else(|| !self.at_break(), |length| count < length) {
            items.push(self.item(depth + 1)?);
            count += 1;
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, length: Option<u64>, depth: usize) -> Read<Value> {
        let mut map = Map::new();
        let mut count = 0;
        if length != Some(0) {
            self.budget.spend(MAP_BYTES)?;
        }
        while length.map_or_else(|| !self.at_break(), |length| count < length) {
            let head = self.head()?;
            let key = match head.major {
                BYTES | TEXT => text(self.string(&head)?)?,
                UNSIGNED | NEGATIVE => return Err(CborError::Key("an integer")),
                TAG => return Err(CborError::Key("a tagged item")),
                ARRAY | MAP => return Err(CborError::Key("a container")),
                _ => return Err(CborError::Key("a simple value")),
            };
            let value = self.item(depth + 1)?;
            if map.contains_key(&key) {
                return Err(CborError::DuplicateKey {
                    key,
                    index: usize::try_from(count).unwrap_or(usize::MAX),
                });
            }
            map.insert(key, value);
            count += 1;
        }
        Ok(Value::Object(map))
    }

    fn tagged(&mut self, tag: u64, depth: usize) -> Read<Value> {
        match tag {
            2 | 3 => Err(CborError::Bignum),
            LATER_BASE64 => {
                let head = self.head()?;
                match head.major {
                    BYTES => Ok(Value::String(leaf::encode_base64(&self.string(&head)?))),
                    _ => Err(CborError::Malformed(head.initial)),
                }
            }
            // Seconds since the epoch.
            1 => match self.item(depth + 1)? {
                Value::Number(number) => {
                    let seconds = number.as_i64().ok_or(CborError::Integer)?;
                    if !(time::ZERO.seconds..=253_402_300_799).contains(&seconds) {
                        return Err(CborError::Integer);
                    }
                    Ok(Value::String(time::format(time::Instant { seconds, nanos: 0 }, false)))
                }
                _ => Err(CborError::Malformed(0xc1)),
            },
            _ => self.item(depth + 1),
        }
    }
}

fn text(bytes: Vec<u8>) -> Read<String> {
    String::from_utf8(bytes).map_err(|_| CborError::Utf8)
}

fn simple(head: &Head) -> Read<Value> {
    let argument = head.argument.unwrap_or(0);
    let float = match head.minor {
        20 => return Ok(Value::Bool(false)),
        21 => return Ok(Value::Bool(true)),
        22 => return Ok(Value::Null),
        25 => half(u16::try_from(argument).unwrap_or(0)),
        26 => f64::from(f32::from_bits(u32::try_from(argument).unwrap_or(0))),
        27 => f64::from_bits(argument),
        _ => return Err(CborError::Simple(u8::try_from(argument).unwrap_or(u8::MAX))),
    };
    if float.is_finite() { Ok(leaf::float(float)) } else { Err(CborError::Float) }
}

/// A 16-bit float.
fn half(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 31);
    let mantissa = f64::from(bits & 0x3ff);
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 => f64::INFINITY,
        _ => (mantissa + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deepest_value_round_trips() {
        let deepest = [vec![0x81; MAX_DEPTH], vec![0x01]].concat();
        let value = decode(&deepest).expect("as deep as may be");
        assert_eq!(decode(&super::super::encode(&value, None)), Ok(value));
        assert!(decode(&[vec![0x81; MAX_DEPTH + 1], vec![0x01]].concat()).is_err());
    }

    #[test]
    fn json_values_are_decoded() {
        for (bytes, want) in [
            (&[0xd9, 0xd9, 0xf7, 0xa1, 0x61, b'a', 0x01][..], json!({"a": 1})),
            (&[0xbf, 0x41, b'a', 0x9f, 0x01, 0xff, 0xff], json!({"a": [1]})),
            (&[0x5f, 0x41, b'a', 0x41, b'b', 0xff], json!("ab")),
            (&[0xd6, 0x42, b'h', b'i'], json!("aGk=")),
            (&[0xc1, 0x00], json!("1970-01-01T00:00:00Z")),
            (&[0xf9, 0x3c, 0x00], json!(1)),
            (&[0x3b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], json!(i64::MIN)),
        ] {
            assert_eq!(decode(bytes), Ok(want), "{bytes:x?}");
        }
    }

    #[test]
    fn values_outside_json_are_rejected() {
        for bytes in [
            &[][..],
            &[0x01, 0x02],
            &[0xa2, 0x41, b'a', 0x01, 0x61, b'a', 0x02],
            &[0xa1, 0x01, 0x02],
            &[0xf7],
            &[0xe0],
            &[0xf9, 0x7e, 0x00],
            &[0xf9, 0x7c, 0x00],
            &[0xc2, 0x41, 0x01],
            &[0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0xff],
            &[0xff],
            &[0x5f, 0x61, b'a', 0xff],
            &[0x81; 100_000],
            &[0xc6; 100_000],
        ] {
            assert!(decode(bytes).is_err(), "{:x?}", &bytes[..bytes.len().min(16)]);
        }
    }
}
