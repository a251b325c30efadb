//! Metrics of annotated pods as `custom.metrics.k8s.io` and `external.metrics.k8s.io`, without Prometheus.
//!
//! A pod with the annotation `prometheus.io/scrape: "true"` is scraped at `prometheus.io/port`, `prometheus.io/path` and
//! `prometheus.io/scheme`. Its gauges and counters are served by their names; a counter `x_total` is also served as
//! `x_per_second`, its rate between the last two scrapes. Series of a pod with equal names are summed. A configuration
//! file ([`AdapterRules`]) selects further pods and names further metrics.

mod api;
mod page;
mod rules;
mod scrape;
mod values;

pub use api::{CUSTOM_GROUP, CUSTOM_VERSIONS, Described, EXTERNAL_GROUP, EXTERNAL_VERSION};
pub use page::ScrapeTarget;
pub use rules::{AdapterRules, AdapterRulesError};
pub use scrape::{Adapter, AdapterConfig};
