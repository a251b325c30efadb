//! Sets of completion indexes, stored as ordered intervals and written as `1,3-5,7`.

use std::collections::BTreeSet;
use std::fmt;

/// A set of indexes; intervals include both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(u32, u32)>);

impl Indexes {
    /// Parses the text form. Invalid parts and indexes from `limit` on are skipped.
    #[must_use]
    pub fn parse(text: &str, limit: u32) -> Self {
        let mut result = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else { continue };
            if first >= limit {
                break;
            }
            let last = last.min(limit - 1);
            if last >= first {
                result.push(first, last);
            }
        }
        result
    }

    #[must_use]
    pub fn from_set(indexes: &BTreeSet<u32>) -> Self {
        let mut result = Self::default();
        for &index in indexes {
            result.push(index, index);
        }
        result
    }

    /// Adds an interval that begins no earlier than the existing ones.
    fn push(&mut self, first: u32, last: u32) {
        match self.0.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => self.0.push((first, last)),
        }
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut result = Self::default();
        for (first, last) in all {
            result.push(first, last);
        }
        result
    }

    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let at = self.0.partition_point(|interval| interval.1 < index);
        self.0.get(at).is_some_and(|interval| interval.0 <= index)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of indexes in both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> usize {
        let (mut a, mut b, mut count) = (0, 0, 0);
        while let (Some(x), Some(y)) = (self.0.get(a), other.0.get(b)) {
            let (first, last) = (x.0.max(y.0), x.1.min(y.1));
            if first <= last {
                count += (last - first) as usize + 1;
            }
            if x.1 <= y.1 {
                a += 1;
            }
            if y.1 <= x.1 {
                b += 1;
            }
        }
        count
    }

    /// First `count` indexes below `limit` that are not in the set.
    #[must_use]
    pub fn first_missing(&self, count: usize, limit: u32) -> Vec<u32> {
        let mut result = Vec::new();
        let mut candidate = 0;
        for &(first, last) in self.0.iter().chain(&[(limit, limit)]) {
            while candidate < first.min(limit) && result.len() < count {
                result.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(last.saturating_add(1));
        }
        result
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, &(first, last)) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_text_round_trips() {
        for (text, limit, expected) in [
            ("", 5, ""),
            ("0,2-4,6", 7, "0,2-4,6"),
            ("0,1", 7, "0,1"),
            ("0,1,2", 7, "0-2"),
            ("0-9", 5, "0-4"),
            ("3,x,5-y,6", 9, "3,6"),
            ("7", 7, ""),
        ] {
            assert_eq!(Indexes::parse(text, limit).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn index_sets_union_and_intersection() {
        let a = Indexes::parse("0-2,6", 10);
        let b = Indexes::parse("3,5,8", 10);
        let both = a.union(&b);
        assert_eq!(both.to_string(), "0-3,5,6,8");
        assert_eq!(both.len(), 7);
        assert!(both.contains(5) && !both.contains(4) && !both.contains(9));
        assert_eq!(both.common(&Indexes::parse("2-5", 10)), 3);
        assert_eq!(both.first_missing(5, 10), [4, 7, 9]);
        assert_eq!(both.first_missing(2, 10), [4, 7]);
        assert_eq!(Indexes::default().first_missing(2, 10), [0, 1]);
        assert_eq!(Indexes::from_set(&[4, 5].into()).to_string(), "4,5");
    }
}
