//! Services: one planner from services and endpoints to rules, and backends that apply the difference.
//!
//! `model` is what is known of a service, `endpoints` chooses who may serve, `plan` says which rules a service needs,
//! `state` keeps the rules of all services and their differences, `fronts` those of each front (all pure); `nftables`, `iptables` and
//! `ipvs` give them to the kernel, `userspace` relays without its help, `backend` chooses between them; `feed` follows the API and `driver` ties all together; `stale` ends flows
//! that lead nowhere, `health` answers those who ask.

pub mod backend;
pub mod driver;
pub mod endpoints;
pub mod feed;
pub mod fronts;
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
