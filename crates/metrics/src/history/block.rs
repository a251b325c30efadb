//! A compressed run of points of one series: timestamps as differences of differences, values as the bits in which they
//! differ from the value before, both as in Facebook's Gorilla.

use super::bits::{BitReader, BitWriter};

/// One point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPoint {
    /// Seconds since the epoch.
    pub at: i64,
    /// Thousandths of a core.
    pub cpu: u64,
    /// Bytes.
    pub memory: u64,
}

/// Sizes of differences of differences, by their prefixes: bits of the prefix, its length, bits of the value.
const SPANS: [(u64, u8, u8); 3] = [(0b10, 2, 7), (0b110, 3, 12), (0b1110, 4, 32)];

/// A block being written.
#[derive(Clone, Debug, Default)]
pub struct BlockWriter {
    bits: BitWriter,
    count: u16,
    last: Option<(HistoryPoint, i64)>,
    cpu: Window,
    memory: Window,
}

/// The significant bits of the last difference of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    leading: u8,
    significant: u8,
}

impl BlockWriter {
    /// Appends a point. One that is not after the last is left out.
    pub fn push(&mut self, point: HistoryPoint) {
        if self.count == u16::MAX {
            return;
        }
        let Some((last, step)) = self.last else {
            self.bits.bits(point.at.cast_unsigned(), 64);
            self.bits.bits(point.cpu, 64);
            self.bits.bits(point.memory, 64);
            self.last = Some((point, 0));
            self.count = 1;
            return;
        };
        let Some(delta) = point.at.checked_sub(last.at).filter(|delta| *delta > 0) else { return };
        let Some(change) = delta.checked_sub(step) else { return };
        if i32::try_from(change).is_err() {
            return;
        }
        self.time(change);
        value(&mut self.bits, &mut self.cpu, point.cpu ^ last.cpu);
        value(&mut self.bits, &mut self.memory, point.memory ^ last.memory);
        self.last = Some((point, delta));
        self.count = self.count.saturating_add(1);
    }

    fn time(&mut self, change: i64) {
        if change == 0 {
            return self.bits.bit(false);
        }
        for (prefix, length, size) in SPANS {
            let half = 1_i64 << (size - 1);
            if (-half..half).contains(&change) {
                self.bits.bits(prefix, length);
                self.bits.bits(change.cast_unsigned(), size);
                return;
            }
        }
    }

    /// The points so far, encoded: their number, then their bits.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.count.to_be_bytes().to_vec();
        bytes.extend_from_slice(self.bits.bytes());
        bytes
    }
}

fn value(bits: &mut BitWriter, window: &mut Window, difference: u64) {
    if difference == 0 {
        return bits.bit(false);
    }
    bits.bit(true);
    let leading = u8::try_from(difference.leading_zeros()).unwrap_or(0).min(63);
    let trailing = u8::try_from(difference.trailing_zeros()).unwrap_or(0);
    let kept = 64_u8.saturating_sub(window.leading).saturating_sub(window.significant);
    if window.significant > 0 && leading >= window.leading && trailing >= kept {
        bits.bit(false);
        bits.bits(difference >> kept, window.significant);
        return;
    }
    let significant = 64_u8.saturating_sub(leading).saturating_sub(trailing);
    bits.bit(true);
    bits.bits(u64::from(leading), 6);
    bits.bits(u64::from(significant.saturating_sub(1)), 6);
    bits.bits(difference >> trailing, significant);
    *window = Window { leading, significant };
}

/// Points of an encoded block; fewer than it claims if it is damaged.
pub fn points(block: &[u8]) -> Points<'_> {
    let (count, bits) = match block {
        [high, low, bits @ ..] => (u16::from_be_bytes([*high, *low]), bits),
        _ => (0, &[][..]),
    };
    Points {
        bits: BitReader::new(bits),
        left: count,
        last: None,
        cpu: Window::default(),
        memory: Window::default(),
    }
}

/// Iterator over the points of a block.
#[derive(Clone, Debug)]
pub struct Points<'a> {
    bits: BitReader<'a>,
    left: u16,
    last: Option<(HistoryPoint, i64)>,
    cpu: Window,
    memory: Window,
}

impl Iterator for Points<'_> {
    type Item = HistoryPoint;

    fn next(&mut self) -> Option<HistoryPoint> {
        self.left = self.left.checked_sub(1)?;
        let found = self.read();
        if found.is_none() {
            self.left = 0;
        }
        found
    }
}

impl Points<'_> {
    fn read(&mut self) -> Option<HistoryPoint> {
        let Some((last, step)) = self.last else {
            let at = self.bits.bits(64)?.cast_signed();
            let point = HistoryPoint { at, cpu: self.bits.bits(64)?, memory: self.bits.bits(64)? };
            self.last = Some((point, 0));
            return Some(point);
        };
        let step = step.checked_add(self.change()?)?;
        let cpu = last.cpu ^ difference(&mut self.bits, &mut self.cpu)?;
        let memory = last.memory ^ difference(&mut self.bits, &mut self.memory)?;
        let point = HistoryPoint { at: last.at.checked_add(step)?, cpu, memory };
        self.last = Some((point, step));
        Some(point)
    }

    fn change(&mut self) -> Option<i64> {
        if !self.bits.bit()? {
            return Some(0);
        }
        let mut size = 7;
        for (_, _, next) in SPANS.iter().skip(1) {
            if !self.bits.bit()? {
                return self.signed(size);
            }
            size = *next;
        }
        // The last prefix ends with a zero, too.
        if self.bits.bit()? { None } else { self.signed(size) }
    }

    fn signed(&mut self, size: u8) -> Option<i64> {
        let unused = 64_u32.checked_sub(u32::from(size))?;
        Some((self.bits.bits(size)? << unused).cast_signed() >> unused)
    }
}

fn difference(bits: &mut BitReader<'_>, window: &mut Window) -> Option<u64> {
    if !bits.bit()? {
        return Some(0);
    }
    if bits.bit()? {
        let leading = u8::try_from(bits.bits(6)?).ok()?;
        let significant = u8::try_from(bits.bits(6)?).ok()?.saturating_add(1);
        *window = Window { leading, significant };
    }
    let kept = 64_u8.checked_sub(window.leading)?.checked_sub(window.significant)?;
    Some(bits.bits(window.significant)?.checked_shl(u32::from(kept)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(all: &[HistoryPoint]) -> Vec<u8> {
        let mut writer = BlockWriter::default();
        all.iter().for_each(|point| writer.push(*point));
        let bytes = writer.bytes();
        assert_eq!(points(&bytes).collect::<Vec<_>>(), all);
        bytes
    }

    #[test]
    fn encoded_points_decode_unchanged() {
        let point = |at, cpu, memory| HistoryPoint { at, cpu, memory };
        round_trip(&[]);
        round_trip(&[point(1_767_225_600, 5, 1 << 30)]);
        round_trip(&[
            point(0, 0, 0),
            point(15, 0, 0),
            point(30, u64::MAX, 1),
            point(46, 0, u64::MAX),
            point(47, 1, 1 << 63),
            point(4000, 3, 12_345_678),
            point(1_000_000, 3, 12_345_679),
            point(1_000_001, 250, 4096),
        ]);
        let regular: Vec<_> = (0..240)
            .map(|n| point(1_767_225_600 + n * 15, 20 + n as u64 % 7, (50 << 20) + ((n as u64 % 5) << 12)))
            .collect();
        let bytes = round_trip(&regular);
        assert!(bytes.len() < regular.len() * 4, "{} bytes", bytes.len());
    }

    #[test]
    fn points_out_of_order_are_left_out() {
        let mut writer = BlockWriter::default();
        for at in [100, 115, 115, 90, i64::MAX, 130] {
            writer.push(HistoryPoint { at, cpu: 1, memory: 1 });
        }
        let times: Vec<i64> = points(&writer.bytes()).map(|point| point.at).collect();
        assert_eq!(times, [100, 115, 130]);
    }

    #[test]
    fn damaged_blocks_end_early() {
        let mut writer = BlockWriter::default();
        for n in 0..50_i64 {
            writer.push(HistoryPoint {
                at: n * 15,
                cpu: n.unsigned_abs() * 7919,
                memory: n.unsigned_abs() << 20,
            });
        }
        let bytes = writer.bytes();
        for end in 0..bytes.len() {
            assert!(points(&bytes[..end]).count() <= 50);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = points(&damaged).count();
        }
    }
}
