//! Eviction thresholds, their grace periods and minimum reclaim.

use std::collections::BTreeMap;
use std::time::Duration;

use machinery::quantity::Quantity;

use super::signals::{Measured, Signal};

/// Absolute amount in bytes, inodes or processes, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Count(i64),
    Percent(f64),
}

impl Amount {
    #[must_use]
    pub fn of(self, total: i64) -> i64 {
        match self {
            Self::Count(count) => count,
            // Capacities are far below the range where this loses precision.
            Self::Percent(percent) => (total as f64 * percent / 100.0) as i64,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            return percent.parse().ok().filter(|p: &f64| (0.0..=100.0).contains(p)).map(Self::Percent);
        }
        Quantity::parse(text).ok().map(|quantity| Self::Count(quantity.value()))
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(out, "{count}"),
            Self::Percent(percent) => write!(out, "{percent}%"),
        }
    }
}

/// Eviction threshold of one signal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub least: Amount,
    /// Grace period; `None` for a hard threshold.
    pub grace: Option<Duration>,
}

impl Threshold {
    #[must_use]
    pub fn is_met(&self, measured: Measured) -> bool {
        measured.capacity > 0 && measured.available < self.least.of(measured.capacity)
    }
}

/// Eviction settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    pub thresholds: Vec<Threshold>,
    /// Minimum reclaim: amount above the threshold that must be available before eviction stops.
    pub reclaim: BTreeMap<Signal, Amount>,
    /// Time that a pressure condition persists after it has cleared, to prevent flapping.
    pub transition: Duration,
    /// Maximum termination grace period of pods evicted at a soft threshold, in seconds.
    pub max_pod_grace: i64,
}

impl Default for Eviction {
    /// Memory, inodes and processes as in Kubernetes. Disk has an absolute amount: a tenth of a large disk is plenty
    /// of free space.
    fn default() -> Self {
        let hard = |signal, least| Threshold { signal, least, grace: None };
        Self {
            thresholds: vec![
                hard(Signal::Memory, Amount::Count(100 << 20)),
                hard(Signal::NodeFs, Amount::Count(1 << 30)),
                hard(Signal::NodeFsInodes, Amount::Percent(5.0)),
                hard(Signal::ImageFs, Amount::Count(1 << 30)),
                hard(Signal::ImageFsInodes, Amount::Percent(5.0)),
            ],
            reclaim: BTreeMap::new(),
            transition: Duration::from_secs(5 * 60),
            max_pod_grace: 0,
        }
    }
}

/// Syntax error of a threshold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("invalid threshold {0:?}, expected SIGNAL<AMOUNT")]
    Form(String),
    #[error("threshold {0:?} has no amount")]
    Amount(String),
    #[error("unknown eviction signal {0:?}")]
    Signal(String),
    #[error("soft threshold of {0} has no grace period")]
    NoGrace(&'static str),
}

/// Parses `memory.available<100Mi,nodefs.available<10%` as in Kubernetes' flags; `=` separates in maps.
pub fn parse_amounts(text: &str, between: char) -> Result<BTreeMap<Signal, Amount>, ThresholdError> {
    let mut amounts = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (signal, amount) =
            part.split_once(between).ok_or_else(|| ThresholdError::Form(part.to_owned()))?;
        let known = Signal::parse(signal).ok_or_else(|| ThresholdError::Signal(signal.to_owned()))?;
        let amount = Amount::parse(amount).ok_or_else(|| ThresholdError::Amount(part.to_owned()))?;
        amounts.insert(known, amount);
    }
    Ok(amounts)
}

impl Eviction {
    /// Replaces the hard thresholds.
    pub fn set_hard(&mut self, amounts: &BTreeMap<Signal, Amount>) {
        self.thresholds.retain(|threshold| threshold.grace.is_some());
        let hard =
            amounts.iter().map(|(signal, least)| Threshold { signal: *signal, least: *least, grace: None });
        self.thresholds.extend(hard.filter(|threshold| threshold.least != Amount::Count(0)));
    }

    /// Replaces the soft thresholds; each needs a grace period.
    pub fn set_soft(
        &mut self,
        amounts: &BTreeMap<Signal, Amount>,
        graces: &BTreeMap<Signal, Duration>,
    ) -> Result<(), ThresholdError> {
        self.thresholds.retain(|threshold| threshold.grace.is_none());
        for (signal, least) in amounts {
            let grace = graces.get(signal).ok_or(ThresholdError::NoGrace(signal.name()))?;
            self.thresholds.push(Threshold { signal: *signal, least: *least, grace: Some(*grace) });
        }
        Ok(())
    }

    /// Amount of the hard threshold of a signal.
    #[must_use]
    pub fn hard(&self, signal: Signal) -> Option<Amount> {
        self.thresholds.iter().find(|t| t.signal == signal && t.grace.is_none()).map(|t| t.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_parse_flag_syntax() {
        let parsed = parse_amounts("memory.available<1Gi,nodefs.available<10%", '<').expect("thresholds");
        assert_eq!(parsed[&Signal::Memory], Amount::Count(1 << 30));
        assert_eq!(parsed[&Signal::NodeFs].of(1000), 100);
        assert!(matches!(parse_amounts("nonsense", '<'), Err(ThresholdError::Form(_))));
        assert!(matches!(parse_amounts("x.available<1", '<'), Err(ThresholdError::Signal(_))));
        assert!(matches!(parse_amounts("memory.available<x", '<'), Err(ThresholdError::Amount(_))));
        let mut eviction = Eviction::default();
        eviction.set_hard(&parsed);
        assert_eq!(eviction.thresholds.len(), 2);
        assert_eq!(eviction.hard(Signal::Pids), None);
        assert_eq!(
            eviction.set_soft(&parsed, &BTreeMap::new()),
            Err(ThresholdError::NoGrace("memory.available"))
        );
    }
}
