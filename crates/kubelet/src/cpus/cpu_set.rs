//! Sets of CPUs in the kernel's list format, such as `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;

/// Highest CPU number, which bounds the memory of a list.
const MAX_CPU: usize = 1 << 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<usize>);

/// A list that is not in the kernel's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid list of CPUs {0:?}")]
pub struct CpuSetError(String);

impl CpuSet {
    /// Parses a list; empty text is the empty set.
    pub fn parse(text: &str) -> Result<Self, CpuSetError> {
        let wrong = || CpuSetError(text.to_owned());
        let number = |part: &str| part.parse::<usize>().ok().filter(|cpu| *cpu <= MAX_CPU).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|next| *next == last.saturating_add(1)) {
                last = next;
            }
            write!(out, "{separator}{first}")?;
            if last > first {
                write!(out, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_and_written() {
        for (text, written) in [
            ("", ""),
            ("0", "0"),
            ("0-3,8\n", "0-3,8"),
            ("8,0,1", "0-1,8"),
            ("1-1,2", "1-2"),
            ("0,2,4", "0,2,4"),
        ] {
            assert_eq!(CpuSet::parse(text).expect("a list").to_string(), written);
        }
        for wrong in ["a", "3-1", "-1", "1-", "0-99999999", "18446744073709551616", "1 2"] {
            CpuSet::parse(wrong).expect_err("no list");
        }
    }
}
