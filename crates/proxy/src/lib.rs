//! Services: one planner from services and endpoints to rules, and backends that apply the difference.
//!
//! `model` is what is known of a service, `endpoints` chooses who may serve, `plan` says which rules a service needs,
//! `state` keeps the rules of all services and their differences (all four pure); `nftables` gives them to the kernel;
//! `feed` follows the API and `driver` ties the two together.

pub mod driver;
pub mod endpoints;
pub mod feed;
pub mod model;
pub mod nftables;
pub mod plan;
pub mod state;
