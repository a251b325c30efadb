//! Computes `Retry-After`: it grows with the number of rejected requests.

use std::collections::VecDeque;

const MAX_RETRY_AFTER: u64 = 32;

/// Recent rejections of a level.
#[derive(Debug)]
pub struct Dropped {
    /// Rejections per second; the last entry is the current second.
    history: VecDeque<(u64, u64)>,
    retry_after: u64,
    raised: Option<u64>,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { history: VecDeque::new(), retry_after: 1, raised: None }
    }
}

impl Dropped {
    /// Counts a rejection in this second and returns the client's `Retry-After` in seconds.
    pub fn refuse(&mut self, second: u64) -> u64 {
        match self.history.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => {
                self.adjust(second);
                self.history.push_back((second, 1));
            }
        }
        self.retry_after
    }

    /// Doubles the delay after many rejections within it, shortens it by a second after few.
    fn adjust(&mut self, second: u64) {
        while self.history.front().is_some_and(|(old, _)| second.saturating_sub(*old) > MAX_RETRY_AFTER) {
            self.history.pop_front();
        }
        let wait = self.retry_after;
        let recent = self.history.iter().filter(|(old, _)| second.saturating_sub(*old) <= wait);
        let refused: u64 = recent.map(|(_, count)| count).sum();
        let may_rise = self.raised.is_none_or(|raised| second.saturating_sub(raised) >= wait);
        if may_rise && refused >= 3 * wait {
            self.retry_after = (2 * wait).min(MAX_RETRY_AFTER);
            self.raised = Some(second);
        } else if refused < wait && wait > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_doubles_under_load_and_recovers() {
        let mut dropped = Dropped::default();
        let mut many = |second| (0..100).fold(0, |_, _| dropped.refuse(second));
        let rising: Vec<u64> = (0..70).map(&mut many).collect();
        assert_eq!(rising[..8], [1, 2, 2, 4, 4, 4, 4, 8]);
        assert_eq!(rising.last(), Some(&32));
        assert_eq!(dropped.refuse(200), 31);
        assert_eq!(dropped.refuse(201), 30);
    }
}
