//! Config, build, run, drain: the only crate that depends on every component.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod accounts;
mod addons;
mod agent;
mod backup;
mod certificates;
mod cloud_provider;
mod cluster_dns;
mod compaction;
mod component_checks;
mod component_configs;
mod component_health;
mod components;
mod config;
mod container_runtime;
mod control_plane;
mod delegated;
mod dns_clients;
mod encryption;
mod error;
mod in_process;
mod join;
mod live_backup;
mod local_path;
mod machine_network;
mod metrics_server;
mod node;
mod node_contact;
mod policies;
mod proxy_file;
mod reencrypt;
mod scheduling;
mod service_network;
mod serving;
mod signing;
mod state_metrics;
mod status_port;
mod storage;
mod store_server;
mod traces;

pub use agent::run_agent;
pub use apiserver::Cors;
pub use apiserver::admission::names as admission_plugins;
pub use apiserver::aggregate::Routing as AggregatorRouting;
pub use apiserver::audit;
pub use apiserver::configuration;
pub use apiserver::encryption::{EncryptionError, add_key};
pub use apiserver::outbound;
pub use apiserver::serve::TlsOptions;
pub use apiserver::{OidcFlags, WebhookTokenConfig};
pub use backup::{backup, restore};
pub use base::errors::chain;
pub use certificates::Certificates;
pub use client::Client;
pub use cloud_provider::{CloudConfig, CloudProvider, LocalLoadBalancers, ProviderConfig, run_cloud};
pub use cluster_dns::{DnsConfig, DnsReady, run_dns};
pub use components::{Components, NodeMasks, legacy_tokens, run_alone, run_simulation};
pub use config::{
    CertificateFiles, Config, EncryptionConfig, EtcdConfig, EtcdOverride, NamedFiles, StoreConfig,
    audit_log_file, default_encryption_file,
};
pub use container_runtime::{
    ContainerRuntimeError, PodRanges, serve_container_runtime, start_container_runtime,
};
pub use control_plane::ControlPlane;
pub use controllers::Settings as ControllerSettings;
pub use controllers::certificate::signing::SIGNERS;
pub use delegated::SecurePort;
pub use dns::config::StubDomain;
pub use error::ClusterError;
pub use in_process::InProcessClients;
pub use join::{
    BootstrapToken, Join, JoinError, TokenInfo, advertised_server, create_token, delete_token, list_tokens,
};
pub use kubelet::node::node_ips;
pub use kubelet::node::{RegistrationConfig, Taint};
pub use kubelet::{HousekeepingConfig, NodeStarted, cpus, housekeeping};
pub use metrics::{
    AdapterConfig, AdapterRules, AllowList, FamilyFilter, HISTORY_GROUP, HISTORY_VERSION, HistoryConfig,
    KubeletAddressing, KubeletPort, ResourceMetricsConfig, SinkConfig, StateMetricsConfig,
};
pub use metrics_server::{KubeletClientConfig, MetricsServerConfig, run_metrics_server};
pub use node::{LocalNode, NodeConfig, run_kubelet, run_node};
pub use policy::OnFailure as PolicyFailure;
pub use proxy::backend::Mode as ProxyMode;
pub use proxy_file::ProxyFile;
pub use reencrypt::{ReencryptError, Rewritten, reencrypt};
pub use runtime::Workers;
pub use scheduler::Configuration as SchedulerConfiguration;
pub use service_network::{
    ACCOUNT as PROXY_ACCOUNT, LocalProxy, ProxyConfig, ServiceNetwork, clean_up_services, run_proxy,
};
pub use signing::SigningPair;
pub use simulate::Fleet;
pub use state_metrics::{StateMetricsPort, run_state_metrics};
pub use status_port::{ComponentPort, StatusPort};
pub use store::embedded::DEFAULT_QUOTA_BYTES;
pub use store::etcd_server::VERSION as ETCD_VERSION;
pub use store_server::serve_store;
pub use traces::Traces;
