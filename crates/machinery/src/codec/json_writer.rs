//! JSON strings: search for characters that need escapes, and encoding of strings and values.

use serde_json::Value;

/// Marks quotes, backslashes and control characters among eight bytes. A match may cause false marks in later bytes,
/// but never in earlier ones.
fn marks(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let marks = (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | (word.wrapping_sub(ONES * b' ' as u64) & !word);
    marks & HIGH
}

/// Number of bytes before the first quote, backslash or control character.
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    let found = |at: usize| {
        let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        Some(marks(word).trailing_zeros() as usize / 8)
    };
    let mut at = 0;
    while let Some(plain) = found(at) {
        at += plain;
        if plain < 8 {
            return at;
        }
        if at == 32 {
            at += plain_blocks(&bytes[at..]);
        }
    }
    // Checks the last eight bytes; those that overlap with earlier ones are known to be plain.
    if let Some(start) = bytes.len().checked_sub(8)
        && let Some(plain) = found(start)
    {
        return start + plain;
    }
    bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' ')).unwrap_or(bytes.len())
}

/// Number of plain bytes at the start of a long text, checked four words at a time; a multiple of 32.
fn plain_blocks(bytes: &[u8]) -> usize {
    let is_plain = |block: &&[u8; 32]| {
        block.as_chunks::<8>().0.iter().fold(0, |found, word| found | marks(u64::from_le_bytes(*word))) == 0
    };
    32 * bytes.as_chunks::<32>().0.iter().take_while(is_plain).count()
}

/// Writes a value as compact JSON.
pub fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        // Writing to memory cannot fail.
        Value::Number(number) => serde_json::to_writer(out, number).unwrap_or_default(),
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_value(out, item);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            out.push(b'{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(out, key);
                out.push(b':');
                write_value(out, item);
            }
            out.push(b'}');
        }
    }
}

/// Writes a string with its quotes.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    out.reserve(rest.len() + 2);
    out.push(b'"');
    while !is_plain(rest) {
        let plain = plain_length(rest);
        let Some(&byte) = rest.get(plain) else { break };
        out.extend_from_slice(&rest[..plain]);
        escape(out, byte);
        rest = &rest[plain + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// True if a short text needs no escapes; `false` also where this would require a search.
fn is_plain(bytes: &[u8]) -> bool {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return bytes.len() <= 16
            && marks(u64::from_le_bytes(*first)) == 0
            && marks(u64::from_le_bytes(*last)) == 0;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return marks(u64::from(first) | u64::from(last) << 32) == 0;
    }
    !bytes.iter().any(|byte| matches!(byte, b'"' | b'\\' | 0..b' '))
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn values_encode_like_serde() {
        let value = json!({
            "": null, "a\"b\\c": [true, false, 1, -5, 1.5, 1e25, u64::MAX], "control": "\u{0}\u{1}\u{1f}\u{7f}\u{8}\u{c}\r\n\t",
            "list": [[], {}, [1], {"x": {"y": "ü€𝄞/"}}],
        });
        let mut out = Vec::new();
        write_value(&mut out, &value);
        assert_eq!(String::from_utf8_lossy(&out), value.to_string());
    }

    proptest! {
        #[test]
        fn any_text_encodes_like_serde(text in "[a-z\"\\\\\u{0}-\u{20}üß€\u{7f}\u{ff}]{0,40}|[a-zü€]{0,99}[a-z\"\n]{0,9}") {
            let mut out = Vec::new();
            write_text(&mut out, &text);
            prop_assert_eq!(String::from_utf8_lossy(&out), serde_json::to_string(&text).unwrap_or_default());
            let plain = text.bytes().position(|b| b < 0x20 || b == b'"' || b == b'\\').unwrap_or(text.len());
            prop_assert_eq!(plain_length(text.as_bytes()), plain);
        }
    }
}
