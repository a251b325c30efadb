//! The built-in pod network: a CNI plugin with a bridge, addresses, host ports and masquerade, and the routes between
//! nodes.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod addresses;
pub mod cni;
mod frames;
mod link;
mod ports;
pub mod routes;
mod rules;
mod sources;
#[cfg(test)]
mod spoofing_tests;
#[cfg(test)]
mod test_namespaces;

pub use addresses::{AddressError, PodRange};
pub use rules::table;
