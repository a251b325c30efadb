//! Rules and steps that several loops share.

pub mod adoption;
pub mod condition;
#[cfg(test)]
pub mod fixture;
pub mod history;
pub mod metrics;
pub mod namespaces;
pub mod node_facts;
pub mod percent;
pub mod pod_facts;
pub mod pod_resources;
pub mod revisions;
pub mod select;
pub mod selector;
pub mod services;
pub mod settings;
pub mod slice_figures;
pub mod slow_start;
pub mod trigger_times;
