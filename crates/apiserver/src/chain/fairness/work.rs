//! Cost of a request: seats while it executes, and seats that stay taken after it for the events it causes.

use std::time::Duration;

/// Seats times nanoseconds: the unit in which flows are compared. Wide enough for any process lifetime.
pub type SeatTime = i128;

/// Assumed execution time of a request before it is known.
pub const ESTIMATED_SERVICE: Duration = Duration::from_millis(3);

/// Estimated work of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Seats taken while the request is handled.
    pub initial_seats: usize,
    /// Seats taken after it, for `additional_latency`, while its watchers are sent events.
    pub final_seats: usize,
    pub additional_latency: Duration,
}

impl Work {
    pub const ONE_SEAT: Self = Self::seats(1);

    pub const fn seats(initial_seats: usize) -> Self {
        Self { initial_seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    /// Seats reserved for the whole time.
    pub fn max_seats(&self) -> usize {
        self.initial_seats.max(self.final_seats)
    }

    pub fn total(&self) -> SeatTime {
        seat_time(self.initial_seats, ESTIMATED_SERVICE) + self.final_work()
    }

    fn final_work(&self) -> SeatTime {
        seat_time(self.final_seats, self.additional_latency)
    }

    /// The same work after the request on at most `seats`: fewer seats for a longer time.
    pub fn narrowed(mut self, seats: usize) -> Self {
        if seats > 0 && self.final_seats > seats {
            let nanos = self.final_work() / seats as SeatTime;
            self.additional_latency = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.final_seats = seats;
        }
        self
    }
}

pub fn seat_time(seats: usize, time: Duration) -> SeatTime {
    seats as SeatTime * SeatTime::try_from(time.as_nanos()).unwrap_or(SeatTime::MAX / (1 << 32))
}

/// Seconds with eight decimals, as Kubernetes prints it.
pub fn printed(time: SeatTime) -> String {
    let time = time.max(0);
    format!("{}.{:08}ss", time / 1_000_000_000, time % 1_000_000_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowed_work_lasts_longer() {
        let work = Work { initial_seats: 1, final_seats: 20, additional_latency: Duration::from_millis(5) };
        let narrow = work.narrowed(10);
        assert_eq!((narrow.final_seats, narrow.additional_latency), (10, Duration::from_millis(10)));
        assert_eq!(narrow.total(), work.total());
        assert_eq!(work.narrowed(30), work);
        assert_eq!(printed(seat_time(3, Duration::from_millis(1500))), "4.50000000ss");
    }
}
