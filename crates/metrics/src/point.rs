//! One measurement of a node or container, and the usage between two of them.

use jiff::Timestamp;

/// A measurement. Times are nanoseconds since the epoch, of the clock of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Start of the container, at which its CPU time was zero; [`UNKNOWN_START`] if the node reports none.
    pub start: i64,
    pub at: i64,
    /// CPU time since the start, in nanoseconds.
    pub cpu: u64,
    /// Working set, in bytes.
    pub memory: u64,
}

/// Earlier than every other time.
pub const UNKNOWN_START: i64 = i64::MIN;

/// Usage of a node or container over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Billionths of a core.
    pub cpu: u64,
    pub memory: u64,
    /// End of the window, nanoseconds since the epoch.
    pub at: i64,
    /// Length of the window, in nanoseconds.
    pub window: i64,
}

impl Usage {
    /// The end of the window; the epoch if no timestamp can represent it.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(self.at)).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// Reason why two points have no usage between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("unexpected decrease in startTime of node/container")]
    Start,
    #[error("unexpected decrease in cumulative CPU usage value")]
    Cpu,
    #[error("the later point is not after the earlier one")]
    Window,
}

/// Usage between two points: the rate of CPU time, and the memory of the later one.
pub fn usage(last: &Point, prev: &Point) -> Result<Usage, UsageError> {
    if last.start < prev.start {
        return Err(UsageError::Start);
    }
    let spent = last.cpu.checked_sub(prev.cpu).ok_or(UsageError::Cpu)?;
    let window = last.at.checked_sub(prev.at).filter(|window| *window > 0).ok_or(UsageError::Window)?;
    let cores = u128::from(spent) * 1_000_000_000 / u128::from(window.unsigned_abs());
    let cpu = u64::try_from(cores).unwrap_or(u64::MAX);
    Ok(Usage { cpu, memory: last.memory, at: last.at, window })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn point(at: i64, cpu: u64) -> Point {
        Point { start: UNKNOWN_START, at: at * SECOND, cpu, memory: 7 }
    }

    #[test]
    fn usage_is_cpu_time_per_second_of_the_window() {
        let used = usage(&point(30, 8_000_000_000), &point(10, 3_000_000_000)).expect("a usage");
        assert_eq!(used, Usage { cpu: 250_000_000, memory: 7, at: 30 * SECOND, window: 20 * SECOND });
    }

    #[test]
    fn usage_of_contradicting_points_is_an_error() {
        assert_eq!(usage(&point(30, 1), &point(10, 2)), Err(UsageError::Cpu));
        assert_eq!(usage(&point(10, 2), &point(10, 1)), Err(UsageError::Window));
        assert_eq!(usage(&point(5, 2), &point(10, 1)), Err(UsageError::Window));
        let started = Point { start: 5, ..point(10, 1) };
        assert_eq!(usage(&point(30, 2), &started), Err(UsageError::Start));
        let extremes = Point { at: i64::MAX, cpu: u64::MAX, ..point(0, 0) };
        assert_eq!(usage(&extremes, &Point { at: i64::MIN, ..point(0, 0) }), Err(UsageError::Window));
        assert_eq!(usage(&Point { at: 1, ..extremes }, &point(0, 0)).map(|used| used.cpu), Ok(u64::MAX));
    }
}
