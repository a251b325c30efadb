//! The cloud-controller-manager: node, route and service loops over a provider.
//!
//! A [`Provider`] knows instances, routes or load balancers, or some of them. [`local`] gives LoadBalancer services
//! addresses without any cloud; [`http`] asks a server that speaks for one (`docs/cloud-provider.md`). The loops are of
//! the usual shape and run in the harness of all loops; each runs only if the provider knows what it is about.

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

/// What the loops are told; they find it among the settings of the harness.
#[derive(Clone)]
pub struct Settings {
    pub provider: Arc<dyn Provider>,
    /// What the provider calls this cluster.
    pub cluster_name: String,
    /// Ranges of pod addresses; routes within them are the route loop's.
    pub cluster_cidrs: Vec<String>,
    /// Whether the pods' addresses are routed by the provider.
    pub configure_routes: bool,
    /// How often nodes that are not ready are asked after.
    pub node_monitor_period: Duration,
    /// How often what the provider says of a node is asked for again.
    pub node_status_update_frequency: Duration,
    /// How often routes are compared though no node changed.
    pub route_reconciliation_period: Duration,
}

impl Settings {
    /// Kubernetes' values, but for the period of routes: a change of a node is seen when it happens.
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

/// Every loop that is built here: how it is called, and how it is made.
pub const LOOPS: &[Row] = &[
    Row { descriptor: &node::DESCRIPTOR, build: node::build, by_default: true },
    Row { descriptor: &node_lifecycle::DESCRIPTOR, build: node_lifecycle::build, by_default: true },
    Row { descriptor: &route::DESCRIPTOR, build: route::build, by_default: true },
    Row { descriptor: &service::DESCRIPTOR, build: service::build, by_default: true },
];

/// The loops that have something to do with these settings, of those that `--controllers` asks for: `*`, a name, or `-`
/// and a name.
#[must_use]
pub fn selected(settings: &Settings, controllers: &[String]) -> Vec<&'static Row> {
    let provider = &settings.provider;
    let able = |row: &&Row| match row.descriptor.name {
        name if name == route::DESCRIPTOR.name => provider.routes().is_some() && settings.configure_routes,
        name if name == service::DESCRIPTOR.name => provider.load_balancers().is_some(),
        _ => provider.instances().is_some(),
    };
    let asked = |row: &&Row| {
        let name = row.descriptor.name;
        let named = |text: &String| text == name;
        let refused = |text: &String| text.strip_prefix('-') == Some(name);
        !controllers.iter().any(refused) && controllers.iter().any(|text| named(text) || text == "*")
    };
    LOOPS.iter().filter(able).filter(asked).collect()
}

/// The settings of a loop; there is nothing to do without them.
fn settings(ctx: &Context) -> Option<Settings> {
    ctx.setting::<Settings>().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_run_where_the_provider_can_help() {
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
