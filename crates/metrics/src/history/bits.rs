//! Reads and writes single bits.

/// Bits being written, the highest of a byte first.
#[derive(Clone, Debug, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    /// Bits of the last byte that are in use; zero if it is full.
    used: u8,
}

impl BitWriter {
    pub fn bit(&mut self, bit: bool) {
        self.bits(u64::from(bit), 1);
    }

    /// Writes the lowest `count` bits of `value`, 64 at most.
    pub fn bits(&mut self, value: u64, count: u8) {
        let mut left = count.min(64);
        while left > 0 {
            if self.used == 0 {
                self.bytes.push(0);
            }
            let room = 8_u8.saturating_sub(self.used);
            let taken = room.min(left);
            left = left.saturating_sub(taken);
            let piece = value.checked_shr(u32::from(left)).unwrap_or(0) & ((1_u64 << taken) - 1);
            let piece = u8::try_from(piece).unwrap_or(0);
            if let Some(last) = self.bytes.last_mut() {
                *last |= piece.checked_shl(u32::from(room.saturating_sub(taken))).unwrap_or(0);
            }
            self.used = self.used.saturating_add(taken) % 8;
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bits being read.
#[derive(Clone, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn bit(&mut self) -> Option<bool> {
        let byte = *self.bytes.get(self.at / 8)?;
        let bit = byte >> (7 - self.at % 8) & 1;
        self.at = self.at.saturating_add(1);
        Some(bit == 1)
    }

    /// The next `count` bits, 64 at most.
    pub fn bits(&mut self, count: u8) -> Option<u64> {
        let mut value = 0_u64;
        for _ in 0..count.min(64) {
            value = value << 1 | u64::from(self.bit()?);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_in_order() {
        let mut writer = BitWriter::default();
        let written = [(1, 1), (5, 3), (0x1234_5678_9abc_def0, 64), (0, 7), (u64::MAX, 64), (3, 2)];
        for (value, count) in written {
            writer.bits(value, count);
        }
        let mut reader = BitReader::new(writer.bytes());
        for (value, count) in written {
            assert_eq!(reader.bits(count), Some(value));
        }
        assert_eq!(writer.bytes().len(), (1 + 3 + 64 + 7 + 64 + 2_usize).div_ceil(8));
        assert_eq!(reader.bits(8), None);
    }
}
