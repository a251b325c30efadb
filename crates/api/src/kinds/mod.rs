//! The table of built-in kinds, one file each.

use crate::Kind;

/// Every built-in kind.
pub static KINDS: &[&Kind] = &[];
