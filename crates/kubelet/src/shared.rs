//! State shared by all parts of a kubelet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError, Object};
use objects::core::v1::{ConfigMap, Pod, Secret, Service};
use parking_lot::RwLock;
use runtime::Cache;
use tokio::sync::Notify;

use crate::config::Config;
use crate::configure::Sources;
use crate::configure::dns::{self, HostDns};
use crate::configure::downward::PodFacts;
use crate::configure::sandbox::NodeSettings;
use crate::configure::sources::References;
use crate::cpus::Cpus;
use crate::csi::Drivers;
use crate::devices::Devices;
use crate::dra::Dra;
use crate::engine::Engine;
use crate::events::Recorder;
use crate::metrics::KubeletMetrics;
use crate::node::NodeAddresses;
use crate::pods::{Cgroups, MountedObjects, Pulls, Users};
use crate::probes::Tally;
use crate::volumes::{PodVolumes, Tokens};

/// Per-kubelet singletons.
pub struct Shared {
    pub config: Config,
    pub client: Client,
    pub engine: Engine,
    pub recorder: Recorder,
    pub clock: Clock,
    pub metrics: Arc<KubeletMetrics>,
    pub tasks: TaskGroup,
    pub services: Cache<Service>,
    pub tokens: Tokens,
    pub volumes: PodVolumes,
    pub pulls: Pulls,
    pub cgroups: Cgroups,
    pub users: Users,
    pub drivers: Drivers,
    pub cpus: Cpus,
    pub devices: Devices,
    pub dra: Dra,
    pub probes: Arc<Tally>,
    pub followed: MountedObjects,
    pub settings: NodeSettings,
    /// Addresses and host name of the node.
    pub addresses: Arc<NodeAddresses>,
    /// Set when node shutdown has started.
    pub shutting_down: AtomicBool,
    /// Notified when the node status should be written before its next interval.
    pub node_news: Notify,
    /// Allocatable resources of the node, in thousandths.
    pub allocatable: RwLock<Arc<BTreeMap<String, i64>>>,
}

impl Shared {
    /// Resolver configuration of the node, as its file is now.
    pub fn host_dns(&self) -> HostDns {
        dns::parse(&std::fs::read_to_string(&self.config.resolv_conf).unwrap_or_default())
    }

    /// Referenced objects; missing ones are omitted.
    pub async fn sources(&self, pod: &Pod, references: &References) -> Result<Sources, ClientError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let mut sources = Sources { services: self.services.all(), ..Sources::default() };
        for name in &references.config_maps {
            sources
                .config_maps
                .extend(self.find::<ConfigMap>(namespace, name).await?.map(|o| (name.clone(), o)));
        }
        for name in &references.secrets {
            sources.secrets.extend(self.find::<Secret>(namespace, name).await?.map(|o| (name.clone(), o)));
        }
        Ok(sources)
    }

    /// Returns the object, or `None` if it does not exist.
    pub async fn find<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>, ClientError> {
        match self.client.get(namespace, name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn facts<'a>(
        &'a self,
        pod_ips: &'a [String],
        host_ips: &'a [String],
        allocatable: &'a BTreeMap<String, i64>,
    ) -> PodFacts<'a> {
        PodFacts { pod_ips, host_ips, node_name: &self.config.node_name, allocatable: Some(allocatable) }
    }
}
