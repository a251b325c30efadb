//! Cluster DNS: names of services and pods, everything else forwarded and cached.
//!
//! `wire` decodes and encodes messages, `zone` has the cluster's names, `respond` responds to a query from the zone
//! (all three pure), `upstream` forwards queries, `server` has the sockets.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod cache;
pub mod clients;
pub mod config;
pub mod feed;
pub mod metrics;
pub mod names;
pub mod records;
pub mod resolver;
pub mod respond;
pub mod server;
pub mod upstream;
pub mod wire;
pub mod zone;
