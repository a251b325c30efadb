//! Limit of the label values that clients can invent.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

const OTHER: &str = "other";

/// The first values of a label; further ones share `other`.
#[derive(Clone, Debug)]
pub struct LabelLimit {
    known: Arc<Mutex<HashSet<String>>>,
    limit: usize,
}

impl LabelLimit {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { known: Arc::default(), limit }
    }

    /// `value`, or `other` if there are too many values.
    #[must_use]
    pub fn bound<'a>(&self, value: &'a str) -> &'a str {
        let mut known = self.known.lock();
        if known.contains(value) {
            return value;
        }
        if known.len() >= self.limit {
            return OTHER;
        }
        known.insert(value.to_owned());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_values_share_one() {
        let limit = LabelLimit::new(2);
        assert_eq!(["a", "b", "c", "a"].map(|value| limit.bound(value)), ["a", "b", "other", "a"]);
    }
}
