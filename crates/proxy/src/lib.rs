//! Services: one planner from services and endpoints to rules, and backends that apply the difference.
//!
//! `model` describes a service, `endpoints` selects its endpoints, `plan` computes the rules of a service, `state`
//! holds the rules of all services and their differences, `frontends` those of each frontend (all pure); `nftables`,
//! `iptables` and `ipvs` apply them to the kernel, `userspace` relays in this process, `backend` selects one; `feed`
//! watches the API and `driver` connects the parts; `stale` ends outdated flows, `health` serves health checks.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod backend;
pub mod driver;
pub mod endpoints;
pub mod feed;
pub mod frontends;
pub mod health;
pub mod iptables;
pub mod ipvs;
pub mod link;
pub mod metrics;
pub mod model;
pub mod nftables;
pub mod plan;
pub mod stale;
pub mod state;
pub mod userspace;
