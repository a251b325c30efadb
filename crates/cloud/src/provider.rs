//! What the loops ask of a cloud.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use objects::core::v1::{LoadBalancerStatus, Node, NodeAddress, Service};
use runtime::Informers;
use serde::{Deserialize, Serialize};

/// Why a provider did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Somebody else does it; there is nothing to do here.
    #[error("implemented elsewhere")]
    Elsewhere,
    /// Ask again after this time.
    #[error("{reason}")]
    NotYet { after: Duration, reason: String },
    /// The provider's own words.
    #[error("{0}")]
    Refused(String),
    #[error("asking the provider to {operation}")]
    Failed { operation: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

impl ProviderError {
    /// The error with what led to it, in one line.
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

/// A cloud. What it does not know, its loops do not run for.
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

    /// The caches of the loops, for a provider that wants to look at the cluster.
    fn use_informers(&self, _informers: &Informers) {}
}

/// The machine behind a node.
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
    /// More labels for the node; those of Kubernetes' own domains are not taken.
    pub labels: BTreeMap<String, String>,
    /// It is there, but switched off.
    pub shut_down: bool,
}

#[async_trait]
pub trait Instances: Send + Sync {
    /// The machine of a node, by its provider id or, before it has one, by its name; `None` if there is none (any more).
    async fn find(&self, cluster: &str, node: &Node) -> Result<Option<Instance>, ProviderError>;
}

/// Packets to `destination` go to a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// The provider's own name for it.
    pub name: String,
    pub target_node: String,
    /// Where that node is; a provider that does not care leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_addresses: Option<Vec<NodeAddress>>,
    #[serde(rename = "destinationCIDR")]
    pub destination: String,
    /// It leads nowhere: its machine is gone.
    pub blackhole: bool,
}

#[async_trait]
pub trait Routes: Send + Sync {
    async fn list(&self, cluster: &str) -> Result<Vec<Route>, ProviderError>;
    /// Makes a route; `hint` may become part of its name.
    async fn create(&self, cluster: &str, hint: &str, route: &Route) -> Result<(), ProviderError>;
    async fn delete(&self, cluster: &str, route: &Route) -> Result<(), ProviderError>;
}

#[async_trait]
pub trait LoadBalancers: Send + Sync {
    /// The status of a service's load balancer; `None` if it has none.
    async fn get(
        &self,
        cluster: &str,
        service: &Service,
    ) -> Result<Option<LoadBalancerStatus>, ProviderError>;

    /// Makes a load balancer, or changes the one there is.
    async fn ensure(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, ProviderError>;

    /// Tells a load balancer that the nodes are others now; its status, if that changed with them.
    async fn update(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<Option<LoadBalancerStatus>, ProviderError>;

    /// Removes a load balancer with all its parts; none there is no error.
    async fn delete(&self, cluster: &str, service: &Service) -> Result<(), ProviderError>;
}
