//! Resource metrics: scrapes the kubelets' `/metrics/resource` and serves `metrics.k8s.io/v1beta1` with the semantics of
//! metrics-server.
//!
//! [`ResourceMetrics`] assembles the parts: caches of pods and nodes ([`record`]), the scraper ([`scrape`]), the last two
//! points of every container ([`storage`]), and the API ([`serve`]). It answers requests that are authenticated and
//! authorized already; the process around it does both. The [`adapter`] serves metrics of annotated pods, the [`history`]
//! keeps a day of usage on disk, [`sinks`] push everything to monitoring systems, and [`state`] serves the series of
//! kube-state-metrics. [`NodeMetrics`] has those of node-exporter.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod access;
mod adapter;
mod component;
pub mod exposition;
mod health;
mod history;
mod kubelet;
mod node;
mod point;
mod record;
mod resource;
mod scrape;
mod serve;
mod sinks;
mod state;
mod stats;
mod storage;

pub use adapter::{
    Adapter, AdapterConfig, AdapterRules, AdapterRulesError, CUSTOM_GROUP, CUSTOM_VERSIONS, EXTERNAL_GROUP,
    EXTERNAL_VERSION,
};
pub use component::{ResourceMetrics, ResourceMetricsConfig};
pub use history::{HISTORY_GROUP, HISTORY_RESOURCES, HISTORY_VERSION, HistoryConfig};
pub use kubelet::{KubeletAddressing, KubeletPort, KubeletTls};
pub use node::{ClockDiscipline, NodeMetrics};
pub use serve::{Answer, GROUP, RESOURCES, ServedResource, VERSION, refusal};
pub use sinks::{SinkConfig, SinkError};
pub use state::{
    AllowList, FamilyFilter, InvalidSchedule, NextSchedule, StateMetrics, StateMetricsConfig,
    StateMetricsError, state_resources,
};

/// Tests measure the memory that hostile peers make the process hold.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: testbase::memory::Counting = testbase::memory::Counting;
