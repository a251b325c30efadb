//! State metrics: the series of kube-state-metrics, rendered from lists that the API server's watch cache serves.
//!
//! There are no informers: each scrape lists every kind once, decodes one object at a time and keeps only compressed
//! text. [`kinds`] has one table of families per kind; [`render`] lists and renders, [`page`] holds the text, [`port`]
//! serves it.

mod config;
mod family;
mod items;
mod kinds;
mod object;
mod page;
mod port;
mod render;
mod series;
mod telemetry;
#[cfg(test)]
mod tests;

pub use config::{AllowList, FamilyFilter, StateMetricsConfig, StateMetricsError};
pub use render::StateMetrics;
pub use series::{InvalidSchedule, NextSchedule};

/// API group and resource of every kind, for the role of the component.
pub fn state_resources() -> impl Iterator<Item = (&'static str, &'static str)> {
    kinds::KINDS.iter().map(|kind| (kind.group(), kind.resource))
}
