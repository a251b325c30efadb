//! The cloud-controller-manager: node, route and service controllers over a provider.
//!
//! A [`Provider`] supports instances, routes, load balancers, or some of them. [`local`] assigns addresses to
//! LoadBalancer services without a cloud; [`http`] calls an external server (`docs/cloud-provider.md`). The
//! controllers run in the common controller harness; each runs only if the provider supports its resource.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod config;
pub mod http;
pub mod local;
pub mod node;
mod node_addresses;
pub mod node_lifecycle;
mod provider;
pub mod route;
pub mod service;

use std::sync::Arc;
use std::time::Duration;

use runtime::{Context, Row};

pub use config::{ConfigError, ProviderConfig};
pub use provider::{Instance, Instances, LoadBalancers, Provider, ProviderError, Route, Routes};

/// Settings of the controllers, passed through the settings of the harness.
#[derive(Clone)]
pub struct Settings {
    pub provider: Arc<dyn Provider>,
    /// Name of this cluster at the provider.
    pub cluster_name: String,
    /// Pod CIDRs; the route controller owns routes within them.
    pub cluster_cidrs: Vec<String>,
    /// If true, the provider routes pod CIDRs to nodes.
    pub configure_routes: bool,
    /// Check interval of nodes that are not ready.
    pub node_monitor_period: Duration,
    /// Refresh interval of node data from the provider.
    pub node_status_update_frequency: Duration,
    /// Resync interval of routes.
    pub route_reconciliation_period: Duration,
}

impl Settings {
    /// Kubernetes' defaults, except for the route period: node changes are watched.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self {
            provider,
            cluster_name: "kubernetes".to_owned(),
            cluster_cidrs: Vec::new(),
            configure_routes: true,
            node_monitor_period: Duration::from_secs(5),
            node_status_update_frequency: Duration::from_secs(300),
            route_reconciliation_period: Duration::from_secs(600),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("provider", &self.provider.name())
            .field("cluster_name", &self.cluster_name)
            .finish_non_exhaustive()
    }
}

/// All controllers of this crate: descriptor and constructor.
pub const LOOPS: &[Row] = &[
    Row { descriptor: &node::DESCRIPTOR, build: node::build, by_default: true },
    Row { descriptor: &node_lifecycle::DESCRIPTOR, build: node_lifecycle::build, by_default: true },
    Row { descriptor: &route::DESCRIPTOR, build: route::build, by_default: true },
    Row { descriptor: &service::DESCRIPTOR, build: service::build, by_default: true },
];

/// Controllers that the provider supports, filtered by `--controllers`: `*`, a name, or `-` and a name.
#[must_use]
pub fn selected(settings: &Settings, controllers: &[String]) -> Vec<&'static Row> {
    let provider = &settings.provider;
    let able = |row: &&Row| match row.descriptor.name {
        name if name == route::DESCRIPTOR.name => provider.routes().is_some() && settings.configure_routes,
        name if name == service::DESCRIPTOR.name => provider.load_balancers().is_some(),
        _ => provider.instances().is_some(),
    };
    let is_enabled = |row: &&Row| {
        let name = row.descriptor.name;
        let named = |text: &String| text == name;
        let refused = |text: &String| text.strip_prefix('-') == Some(name);
        !controllers.iter().any(refused) && controllers.iter().any(|text| named(text) || text == "*")
    };
    LOOPS.iter().filter(able).filter(is_enabled).collect()
}

/// Settings of a controller; without them it does nothing.
fn settings(ctx: &Context) -> Option<Settings> {
    ctx.setting::<Settings>().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_run_only_if_provider_supports_them() {
        let settings = Settings::new(Arc::new(local::Local::of_nodes(Vec::new())));
        let names = |controllers: &[&str]| {
            let controllers: Vec<String> = controllers.iter().map(|text| (*text).to_owned()).collect();
            selected(&settings, &controllers).iter().map(|row| row.descriptor.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["*"]), ["service-lb-controller"]);
        assert_eq!(names(&["service-lb-controller"]), ["service-lb-controller"]);
        assert!(names(&["*", "-service-lb-controller"]).is_empty());
        assert!(names(&[]).is_empty());
    }
}
