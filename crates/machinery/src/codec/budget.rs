//! The memory that decoding one body may take: a multiple of the body, estimated before it is allocated.
//!
//! A value in memory is larger than its text: `{"a":1}` takes some 80 times as much. Bodies that people and programs write
//! have long texts and few small maps; the limit is several times above them.

/// Estimated size of a value besides its text.
pub(crate) const VALUE_BYTES: usize = 32;
/// Estimated size of a mapping's first entries, which share one allocation.
pub(crate) const MAP_BYTES: usize = 640;

const FACTOR: usize = 32;
const FLOOR: usize = 16 << 20;

/// Structs without any field of their own that one value may have filled with zero values.
pub(crate) const MAX_FILLED: usize = FLOOR / MAP_BYTES;

/// The body would take more memory than its size allows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body takes too much memory when decoded: it has too many small values for its size")]
pub struct BudgetExceeded;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// The budget of a body of this many bytes.
    pub fn of(body: usize) -> Self {
        Self { left: FLOOR.saturating_add(body.saturating_mul(FACTOR)) }
    }

    /// Accounts for memory that is about to be allocated.
    pub fn spend(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.left = self.left.checked_sub(bytes).ok_or(BudgetExceeded)?;
        Ok(())
    }
}
