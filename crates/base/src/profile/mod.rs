//! CPU and heap profiles of this process in pprof's format, which `go tool pprof` reads.
//!
//! CPU: `SIGPROF` arrives each 10 ms of CPU time at a running thread, whose stack is recorded. Heap: one allocation per
//! [`heap::RATE`] bytes is recorded with its stack until it is freed. Neither costs anything between profiles but a load
//! of a flag per allocation, unless [`heap::record_continuously`] was called.

pub mod cpu;
mod encode;
pub mod heap;
mod pages;
mod stack;
mod symbols;

use std::time::Duration;

pub use encode::CONTENT_TYPE;
pub use pages::{Page, page};

/// The longest profile; a longer one is cut to it.
pub const LONGEST: Duration = Duration::from_secs(600);
/// Duration of a CPU profile if the request has none.
pub const DEFAULT: Duration = Duration::from_secs(30);
/// Duration of a heap profile if the request has none and recording is not continuous. It is within the timeout of
/// `go tool pprof`, a minute.
pub const DEFAULT_HEAP: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("another profile of this kind is being recorded; try again when it has ended")]
    Busy,
    #[error("failed to set the profile timer: {0}")]
    Timer(#[source] std::io::Error),
    #[error("heap profiles are not available: this build does not use Ferry's allocator")]
    NoAllocator,
}

/// One kind of value of each sample: its name and its unit.
#[derive(Clone, Copy, Debug)]
pub struct ValueType {
    pub name: &'static str,
    pub unit: &'static str,
}

/// Stacks with their values, the innermost frame first.
#[derive(Debug)]
pub struct Samples {
    pub types: &'static [ValueType],
    /// The bytes or nanoseconds between two samples.
    pub period: u64,
    pub period_type: ValueType,
    pub duration: Duration,
    pub stacks: Vec<(Vec<usize>, Vec<u64>)>,
}

impl Samples {
    /// The profile, compressed. Reads the symbols of the executable, so it takes a while: call it on a blocking thread.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode::profile(self, &symbols::Symbols::of_this_process())
    }
}

#[cfg(test)]
mod tests;
