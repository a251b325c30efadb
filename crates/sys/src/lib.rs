//! The kernel boundary: mounts, cgroups, namespaces, netlink, processes.
//!
//! Everything here is synchronous and meant for single-threaded processes, or for calls that do not change the
//! calling thread; what does change it ([`process::fork`], [`process::unshare`], [`process::enter`]) says so.

pub mod apparmor;
pub mod capabilities;
pub mod cgroups;
pub mod directories;
pub mod mounts;
pub mod neighbours;
pub mod netlink;
pub mod nftables;
pub mod process;
pub mod seccomp;
pub mod sockets;
