//! How much a request costs: seats while it runs, and seats that stay taken after it for what it leaves behind.

use std::time::Duration;

/// Seats times nanoseconds: the unit in which flows are compared. Wide enough for any life of a process.
pub type SeatTime = i128;

/// What a request is taken to last before anybody knows.
pub const ESTIMATED_SERVICE: Duration = Duration::from_millis(3);

/// The work in a request, as far as it can be told beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Seats taken while the request is handled.
    pub initial_seats: usize,
    /// Seats taken after it, for `additional_latency`: its watchers have to be told.
    pub final_seats: usize,
    pub additional_latency: Duration,
}

impl Work {
    pub const ONE_SEAT: Self = Self::seats(1);

    pub const fn seats(initial_seats: usize) -> Self {
        Self { initial_seats, final_seats: 0, additional_latency: Duration::ZERO }
    }

    /// What is reserved for the whole time.
    pub fn max_seats(&self) -> usize {
        self.initial_seats.max(self.final_seats)
    }

    pub fn total(&self) -> SeatTime {
        seat_time(self.initial_seats, ESTIMATED_SERVICE) + self.final_work()
    }

    fn final_work(&self) -> SeatTime {
        seat_time(self.final_seats, self.additional_latency)
    }

    /// The same work after the request on at most `seats`: narrower, and longer for it.
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

/// As Kubernetes prints it: seconds with eight decimals.
pub fn printed(time: SeatTime) -> String {
    let time = time.max(0);
    format!("{}.{:08}ss", time / 1_000_000_000, time % 1_000_000_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrower_work_lasts_longer() {
        let work = Work { initial_seats: 1, final_seats: 20, additional_latency: Duration::from_millis(5) };
        let narrow = work.narrowed(10);
        assert_eq!((narrow.final_seats, narrow.additional_latency), (10, Duration::from_millis(10)));
        assert_eq!(narrow.total(), work.total());
        assert_eq!(work.narrowed(30), work);
        assert_eq!(printed(seat_time(3, Duration::from_millis(1500))), "4.50000000ss");
    }
}
