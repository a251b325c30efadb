//! Memory budget for decoding one body: a multiple of the body, estimated before allocation.
//!
//! A value in memory is larger than its text: `{"a":1}` takes some 80 times as much. Typical bodies have long texts
//! and few small maps; the limit is several times above them.

use serde_json::Value;

/// Estimated size of a value besides its text.
pub(crate) const VALUE_BYTES: usize = 32;
/// Estimated size of a mapping's first entries, which share one allocation.
pub(crate) const MAP_BYTES: usize = 640;

const FACTOR: usize = 32;
const FLOOR: usize = 1 << 20;
/// Limit for any body. An object of the size that the store accepts stays below it.
const CEILING: usize = 48 << 20;

/// Limit of structs without submitted fields that one value may have filled with zero values.
pub(crate) const MAX_FILLED: usize = (16 << 20) / MAP_BYTES;

/// Memory budget for a body of this many bytes.
pub const fn of_body(bytes: usize) -> usize {
    let wanted = FLOOR.saturating_add(bytes.saturating_mul(FACTOR));
    if wanted < CEILING { wanted } else { CEILING }
}

/// Estimated memory of a value, its text included.
pub(crate) fn footprint(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(items) => {
            items.iter().fold(VALUE_BYTES, |sum, item| sum.saturating_add(footprint(item)))
        }
        Value::Object(map) => map.iter().fold(VALUE_BYTES + MAP_BYTES, |sum, (key, value)| {
            sum.saturating_add(VALUE_BYTES + key.len()).saturating_add(footprint(value))
        }),
    }
}

/// Length of a value as JSON, escapes aside.
pub fn text_length(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 1,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().fold(2, |sum, item| sum + 1 + text_length(item)),
        Value::Object(map) => {
            map.iter().fold(2, |sum, (key, value)| sum + key.len() + 4 + text_length(value))
        }
    }
}

/// The body would take more memory than its size allows.
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
        Self { left: of_body(body) }
    }

    /// The budget of a body in a binary encoding, which is up to half as long as JSON.
    pub fn of_compact(body: usize) -> Self {
        Self::of(body.saturating_mul(2))
    }

    /// A budget of this many bytes.
    pub fn bytes(left: usize) -> Self {
        Self { left }
    }

    /// Accounts for memory before it is allocated.
    pub fn spend(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.left = self.left.checked_sub(bytes).ok_or(BudgetExceeded)?;
        Ok(())
    }
}
