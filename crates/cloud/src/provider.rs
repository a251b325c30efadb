//! Provider traits that the controllers use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use objects::core::v1::{LoadBalancerStatus, Node, NodeAddress, Service};
use runtime::Informers;
use serde::{Deserialize, Serialize};

/// Failure of a provider call.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Implemented elsewhere; no action is required.
    #[error("not implemented by this provider")]
    Elsewhere,
    /// Retry after this time.
    #[error("{reason}")]
    NotYet { after: Duration, reason: String },
    /// Error text of the provider.
    #[error("{0}")]
    Refused(String),
    #[error("the cloud provider failed to {operation}")]
    Failed { operation: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

impl ProviderError {
    /// The error with its sources, in one line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }
}

/// A cloud. Controllers of unsupported resources do not run.
pub trait Provider: Send + Sync + 'static {
    fn name(&self) -> &str;

    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    fn routes(&self) -> Option<&dyn Routes> {
        None
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// Passes the controllers' caches to providers that read cluster state.
    fn use_informers(&self, _informers: &Informers) {}
}

/// Instance behind a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// `<provider>://<instance>`.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    #[serde(rename = "type")]
    pub instance_type: String,
    pub zone: String,
    pub region: String,
    pub addresses: Vec<NodeAddress>,
    /// Additional labels for the node; those of Kubernetes' own domains are ignored.
    pub labels: BTreeMap<String, String>,
    /// The instance exists, but is shut down.
    pub shut_down: bool,
}

#[async_trait]
pub trait Instances: Send + Sync {
    /// Instance of a node, by its provider ID or, before it has one, by its name; `None` if it does not exist.
    async fn find(&self, cluster: &str, node: &Node) -> Result<Option<Instance>, ProviderError>;
}

/// Route for packets to `destination`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// Name of the route at the provider.
    pub name: String,
    pub target_node: String,
    /// Addresses of the node; optional.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_addresses: Option<Vec<NodeAddress>>,
    #[serde(rename = "destinationCIDR")]
    pub destination: String,
    /// The route is a blackhole: its instance no longer exists.
    pub blackhole: bool,
}

#[async_trait]
pub trait Routes: Send + Sync {
    async fn list(&self, cluster: &str) -> Result<Vec<Route>, ProviderError>;
    /// Creates a route; `hint` may become part of its name.
    async fn create(&self, cluster: &str, hint: &str, route: &Route) -> Result<(), ProviderError>;
    async fn delete(&self, cluster: &str, route: &Route) -> Result<(), ProviderError>;
}

#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// Status of a service's load balancer; `None` if it has none.
    async fn get(
        &self,
        cluster: &str,
        service: &Service,
    ) -> Result<Option<LoadBalancerStatus>, ProviderError>;

    /// Creates or updates a load balancer.
    async fn ensure(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, ProviderError>;

    /// Updates the nodes of a load balancer; returns its status if that changed.
    async fn update(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<Option<LoadBalancerStatus>, ProviderError>;

    /// Deletes a load balancer with all its parts; succeeds if there is none.
    async fn delete(&self, cluster: &str, service: &Service) -> Result<(), ProviderError>;
}
