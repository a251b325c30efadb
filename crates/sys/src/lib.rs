//! The kernel boundary: mounts, cgroups, namespaces, netlink, processes.

pub mod nftables;
