//! Dynamic resource allocation with structured parameters: which devices satisfy the claims of a pod on a node.
//!
//! [`Inventory`] is the cached state: slices by pool and node, classes, claims, and the devices in use. [`Allocator`]
//! searches devices for unallocated claims. Both are pure. The limits of a search are its deadline and
//! [`RESULTS_MAX`] devices for each claim; it never recurses.

mod allocator;
mod capacity;
pub mod claims;
pub mod conditions;
mod constraint;
mod counters;
mod extended;
mod inventory;
mod pools;
mod request;
mod result;
mod search;
mod selector;
mod slices;
mod usage;

#[cfg(test)]
mod allocator_tests;
#[cfg(test)]
mod consumable_tests;
#[cfg(test)]
pub mod fixture;

pub use allocator::{AllocationError, Allocator, Target};
pub use claims::needs_devices;
pub use extended::{ExtendedRequests, extended_requests, is_mappable};
pub use inventory::{CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM, Inventory};
pub use request::validate_requests;
pub use selector::SelectorCache;
pub use usage::results;

/// Devices that one claim can be allocated.
pub const RESULTS_MAX: usize = 128;
/// Pods that can use one claim.
pub const RESERVED_FOR_MAX: usize = 256;
/// Alternatives of one request.
pub const ALTERNATIVES_MAX: usize = 8;

/// Identity of a resource pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    pub driver: Box<str>,
    pub pool: Box<str>,
}

impl PoolId {
    #[must_use]
    pub fn new(driver: &str, pool: &str) -> Self {
        Self { driver: driver.into(), pool: pool.into() }
    }
}

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// Parses a quantity; the API server accepts no invalid ones.
fn quantity(text: &objects::Quantity) -> machinery::quantity::Quantity {
    machinery::quantity::Quantity::parse(&text.0).unwrap_or_default()
}
