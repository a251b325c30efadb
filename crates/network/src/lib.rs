//! The built-in pod network: a CNI plugin with a bridge and addresses, and the routes between nodes.

mod addresses;
pub mod cni;
pub mod routes;

pub use addresses::{AddressError, Range};
