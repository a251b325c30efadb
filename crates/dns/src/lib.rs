//! Cluster DNS: names of services and pods, everything else forwarded and cached.
//!
//! `wire` reads and writes messages, `zone` knows the cluster's names, `respond` answers a query from the zone
//! (all three pure), `upstream` asks others, `server` does the sockets.

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
