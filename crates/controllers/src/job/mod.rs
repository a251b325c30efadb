//! Jobs.

pub mod account;
pub mod backoff;
pub mod indexes;
pub mod observed;
pub mod plan;
pub mod policies;
#[cfg(test)]
mod tests;
