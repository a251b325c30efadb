//! The kernel boundary: mounts, cgroups, namespaces, netlink, processes.
//!
//! Everything here is synchronous and meant for single-threaded processes, or for calls that do not change the
//! calling thread; exceptions ([`process::fork`], [`process::unshare`], [`process::enter`]) are documented.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod apparmor;
pub mod capabilities;
pub mod cgroups;
pub mod clock;
pub mod directories;
pub mod instance;
pub mod mounts;
pub mod neighbours;
pub mod netlink;
pub mod nftables;
pub mod process;
pub mod protocol;
pub mod seccomp;
pub mod sockets;
