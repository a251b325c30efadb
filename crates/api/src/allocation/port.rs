//! Node ports: a range in two bands. Dynamic allocation uses the upper band first, so that the lower one remains free
//! for explicit requests.

use super::random::Random;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("range is full")]
    Full,
    #[error("provided port is already allocated")]
    Allocated,
    #[error("provided port is not in the valid range. The range of valid ports is {0}")]
    NotInRange(PortRange),
}

/// An inclusive range of ports: `30000-32767`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub const DEFAULT: PortRange = PortRange { first: 30000, last: 32767 };

    /// Number of the lowest ports that are reserved for explicit requests while others are free.
    fn static_band(self) -> usize {
        match self.size() {
            size if size <= 16 => 0,
            size => (size / 32).clamp(16, 128),
        }
    }

    fn size(self) -> usize {
        usize::from(self.last.saturating_sub(self.first)) + 1
    }

    fn offset(self, port: i64) -> Option<usize> {
        let offset = usize::try_from(port.checked_sub(i64::from(self.first))?).ok()?;
        (offset < self.size()).then_some(offset)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Allocated node ports.
#[derive(Clone, Debug)]
pub struct PortAllocator {
    range: PortRange,
    used: Vec<u64>,
    free: usize,
    random: Random,
}

impl PortAllocator {
    pub fn new(range: PortRange, seed: u64) -> Self {
        let used = vec![0; range.size().div_ceil(64)];
        Self { range, used, free: range.size(), random: Random::new(seed) }
    }

    pub fn used(&self) -> usize {
        self.range.size() - self.free
    }

    pub fn free(&self) -> usize {
        self.free
    }

    pub fn has(&self, port: i64) -> bool {
        self.range.offset(port).is_some_and(|offset| self.is_used(offset))
    }

    /// Allocates this port.
    pub fn allocate(&mut self, port: i64) -> Result<(), PortError> {
        let offset = self.range.offset(port).ok_or(PortError::NotInRange(self.range))?;
        if self.is_used(offset) {
            return Err(PortError::Allocated);
        }
        self.take(offset);
        Ok(())
    }

    /// Allocates any free port, from the upper band while it has one.
    pub fn allocate_next(&mut self) -> Result<i64, PortError> {
        let band = self.range.static_band();
        let offset =
            self.find(band, self.range.size()).or_else(|| self.find(0, band)).ok_or(PortError::Full)?;
        self.take(offset);
        Ok(i64::from(self.range.first) + i64::try_from(offset).unwrap_or(0))
    }

    /// Releases a port; releasing one that is free or out of range is not an error.
    pub fn release(&mut self, port: i64) {
        if let Some(offset) = self.range.offset(port)
            && self.is_used(offset)
        {
            self.used[offset / 64] &= !(1 << (offset % 64));
            self.free += 1;
        }
    }

    fn find(&mut self, from: usize, to: usize) -> Option<usize> {
        let size = to.checked_sub(from).filter(|size| *size > 0)?;
        let start = usize::try_from(self.random.below(size as u128)).unwrap_or(0);
        (0..size).map(|step| from + (start + step) % size).find(|offset| !self.is_used(*offset))
    }

    fn is_used(&self, offset: usize) -> bool {
        self.used[offset / 64] & (1 << (offset % 64)) != 0
    }

    fn take(&mut self, offset: usize) {
        self.used[offset / 64] |= 1 << (offset % 64);
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocate_next_uses_upper_band_first_and_each_port_once() {
        let mut ports = PortAllocator::new(PortRange::DEFAULT, 7);
        let mut seen = std::collections::BTreeSet::new();
        for nth in 0..2768 {
            let port = ports.allocate_next().expect("ports are left");
            assert!(seen.insert(port));
            assert!(port >= 30086 || nth >= 2768 - 86, "{port} at {nth}");
        }
        assert_eq!(ports.allocate_next(), Err(PortError::Full));
        ports.release(30001);
        assert_eq!(ports.allocate_next(), Ok(30001));
        assert_eq!(ports.free(), 0);
    }

    #[test]
    fn allocate_explicit_port_checks_range_and_use() {
        let mut ports = PortAllocator::new(PortRange::DEFAULT, 7);
        assert_eq!(ports.allocate(30000), Ok(()));
        assert_eq!(ports.allocate(30000), Err(PortError::Allocated));
        assert!(ports.has(30000) && !ports.has(30001) && !ports.has(-1));
        let error = ports.allocate(22).expect_err("out of range");
        assert_eq!(
            error.to_string(),
            "provided port is not in the valid range. The range of valid ports is 30000-32767"
        );
        ports.release(22);
        ports.release(30000);
        ports.release(30000);
        assert_eq!(ports.free(), 2768);
    }
}
