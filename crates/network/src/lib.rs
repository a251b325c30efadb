//! The built-in pod network: a CNI plugin with a bridge, addresses, host ports and masquerade, and the routes between
//! nodes.

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

pub use addresses::{AddressError, Range};
pub use rules::table;
