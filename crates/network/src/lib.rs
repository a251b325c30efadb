//! The built-in pod network: a CNI plugin with a bridge, addresses and routes.

mod addresses;
pub mod cni;

pub use addresses::{AddressError, Range};
