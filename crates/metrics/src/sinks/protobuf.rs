//! Writes protobuf messages and Snappy blocks, as far as remote write needs them.

/// The sum and message of a partial success in a response of OTLP, `ExportMetricsServiceResponse`; `None` if all was
/// accepted.
pub fn rejected_points(response: &[u8]) -> Option<(u64, String)> {
    let partial =
        Fields(response).find_map(|field| matches!(field, (1, FieldValue::Bytes(_))).then_some(field.1))?;
    let FieldValue::Bytes(partial) = partial else { return None };
    let (mut rejected, mut message) = (0, String::new());
    for field in Fields(partial) {
        match field {
            (1, FieldValue::Number(number)) => rejected = number,
            (2, FieldValue::Bytes(text)) => message = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (rejected > 0).then_some((rejected, message))
}

/// The value of a field.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message, up to one that is damaged or has another type.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                FieldValue::Bytes(bytes)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

/// A message being written.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn varint(bytes: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            bytes.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap_or(0));
    }

    fn tag(&mut self, field: u64, wire: u64) {
        Self::varint(&mut self.0, field << 3 | wire);
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) {
        self.tag(field, 2);
        Self::varint(&mut self.0, u64::try_from(value.len()).unwrap_or(u64::MAX));
        self.0.extend_from_slice(value);
    }

    pub fn message(&mut self, field: u64, value: &Self) {
        self.bytes(field, &value.0);
    }

    pub fn double(&mut self, field: u64, value: f64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn integer(&mut self, field: u64, value: i64) {
        self.tag(field, 0);
        Self::varint(&mut self.0, value.cast_unsigned());
    }

    /// A number of eight bytes.
    pub fn fixed(&mut self, field: u64, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A packed list of unsigned numbers.
    pub fn packed(&mut self, field: u64, values: impl IntoIterator<Item = u32>) {
        let mut list = Vec::new();
        values.into_iter().for_each(|value| Self::varint(&mut list, u64::from(value)));
        self.bytes(field, &list);
    }
}

/// Length of a literal, at most.
const LITERAL: usize = 65_536;
/// Bytes that a copy is found by.
const HASHED: usize = 4;
const TABLE: usize = 1 << 14;

/// Compresses into the block format of Snappy: literals, and copies of what came up to 64 KiB before.
pub fn snappy(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len() / 3 + 16);
    Message::varint(&mut out, u64::try_from(input.len()).unwrap_or(u64::MAX));
    let mut table = vec![usize::MAX; TABLE];
    let (mut at, mut literal) = (0_usize, 0_usize);
    while let Some(word) = input.get(at..at.saturating_add(HASHED)) {
        let word: [u8; HASHED] = word.try_into().unwrap_or_default();
        let hash = u32::from_le_bytes(word).wrapping_mul(0x1e35_a7bd) >> 18;
        let slot = usize::try_from(hash).unwrap_or(0) % TABLE;
        let before = std::mem::replace(&mut table[slot], at);
        let is_near = before < at && at - before < LITERAL;
        if !is_near || input.get(before..before.saturating_add(HASHED)) != Some(&word[..]) {
            at = at.saturating_add(1);
            continue;
        }
        let mut length = HASHED;
        while length < 64
            && input
                .get(at.saturating_add(length))
                .is_some_and(|byte| input.get(before + length) == Some(byte))
        {
            length += 1;
        }
        literals(&mut out, input.get(literal..at).unwrap_or_default());
        // A copy with an offset of two bytes.
        out.push(u8::try_from((length - 1) << 2 | 2).unwrap_or(0));
        out.extend_from_slice(&u16::try_from(at - before).unwrap_or(0).to_le_bytes());
        at = at.saturating_add(length);
        literal = at;
    }
    literals(&mut out, input.get(literal..).unwrap_or_default());
    out
}

fn literals(out: &mut Vec<u8>, bytes: &[u8]) {
    for piece in bytes.chunks(LITERAL) {
        let length = piece.len() - 1;
        if length < 60 {
            out.push(u8::try_from(length << 2).unwrap_or(0));
        } else {
            out.push(61 << 2);
            out.extend_from_slice(&u16::try_from(length).unwrap_or(0).to_le_bytes());
        }
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Decompresses a block, for tests.
    pub fn unsnappy(mut block: &[u8]) -> Option<Vec<u8>> {
        let mut length = 0_usize;
        for shift in (0..).step_by(7) {
            let (byte, rest) = block.split_first()?;
            block = rest;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut out: Vec<u8> = Vec::new();
        while let Some((tag, rest)) = block.split_first() {
            block = rest;
            if tag & 3 == 0 {
                let mut size = usize::from(tag >> 2);
                if size == 61 {
                    size = usize::from(u16::from_le_bytes(block.get(..2)?.try_into().ok()?));
                    block = block.get(2..)?;
                }
                out.extend_from_slice(block.get(..=size)?);
                block = block.get(size + 1..)?;
            } else {
                assert_eq!(tag & 3, 2);
                let offset = usize::from(u16::from_le_bytes(block.get(..2)?.try_into().ok()?));
                block = block.get(2..)?;
                for _ in 0..=usize::from(tag >> 2) {
                    out.push(*out.get(out.len().checked_sub(offset)?)?);
                }
            }
        }
        (out.len() == length).then_some(out)
    }

    #[test]
    fn partial_success_is_read_and_damage_is_not() {
        let mut partial = Message::default();
        partial.integer(1, 300);
        partial.bytes(2, b"too old");
        let mut response = Message::default();
        response.message(1, &partial);
        assert_eq!(rejected_points(&response.0), Some((300, "too old".to_owned())));
        for damaged in [&b""[..], &[0x0a], &[0x0a, 0xff], &[0xff; 20], b"{\"partialSuccess\":{}}"] {
            assert_eq!(rejected_points(damaged), None);
        }
    }

    #[test]
    fn snappy_blocks_come_back_and_are_smaller() {
        for input in [&b""[..], b"a", b"abcabcabcabcabcabcabc", &[7; 200_000], b"no repetition 0123456789"] {
            assert_eq!(unsnappy(&snappy(input)).as_deref(), Some(input));
        }
        let text: String =
            (0..5000).map(|n| format!("memory_working_set{{pod=\"web-{}\"}} {n}\n", n % 100)).collect();
        let block = snappy(text.as_bytes());
        assert_eq!(unsnappy(&block).as_deref(), Some(text.as_bytes()));
        assert!(block.len() * 3 < text.len(), "{} of {}", block.len(), text.len());
    }
}
