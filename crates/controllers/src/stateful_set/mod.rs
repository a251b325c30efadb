//! Stateful sets.

pub mod identity;
pub mod plan;
#[cfg(test)]
mod tests;
