//! Assembly of the API server: build, start, stop.

use crate::admission::{Admission, AdmissionConfig};
use crate::aggregate::{Aggregator, AggregatorMetrics, Routing};
use crate::authenticate::{
    Authentication, AuthenticationConfig, AuthenticationError, ExternalJwtMetrics, ExternalSignerError,
    JwtError, JwtMetrics,
};
use crate::authorize::{AuthorizationConfig, AuthorizationError, AuthorizationFile};
use crate::bootstrap::{self, AuthenticationTrust};
use crate::chain::audit::{Audit, AuditConfig, AuditSetupError};
use crate::chain::{Chain, ChainConfig};
use crate::configuration::ConfigurationError;
use crate::custom::{ConversionMetrics, CustomResources};
use crate::discovery::{CHECKS, register_build_info};
use crate::registry::services::{ServiceConfig, Services};
use crate::registry::{Registry, Stores, Tuning};
use crate::reload::{self, ReloadMetrics};
use crate::rest::component_status::ComponentChecks;
use crate::rest::connect::{Connections, KubeletIdentity};
use crate::rest::{Limits, Rest, WatchMetrics};
use crate::serve::{self, ClientTrust, InProcess, ServerConfig, Tls};
use api::runtime_config::RuntimeConfig;
use base::clock::Clock;
use base::metrics::{Metrics, MetricsError};
use base::pki::ServiceAccountKey;
use base::readiness::{Gate, Probes, Readiness};
use base::tasks::TaskGroup;
use futures_util::future::BoxFuture;
use machinery::status::Status;
use rustls_pki_types::CertificateDer;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;

/// Settings of the API server.
#[derive(Clone, Debug)]
pub struct Config {
    pub authentication: AuthenticationConfig,
    pub authorization: AuthorizationConfig,
    pub admission: AdmissionConfig,
    pub audit: AuditConfig,
    pub chain: ChainConfig,
    pub limits: Limits,
    /// `host:port` at which clients reach this server, published in discovery.
    pub advertise: String,
    pub services: ServiceConfig,
    /// Trusted CAs, published for extension API servers.
    pub trust: AuthenticationTrust,
    /// Routing to the services of APIServices.
    pub aggregator_routing: Routing,
    /// Number of API servers of the cluster.
    pub api_server_count: u32,
    /// Served built-in versions and resources.
    pub runtime: RuntimeConfig,
    pub tuning: Tuning,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            authentication: AuthenticationConfig::default(),
            authorization: AuthorizationConfig::default(),
            admission: AdmissionConfig::default(),
            audit: AuditConfig::default(),
            chain: ChainConfig::default(),
            // Kubernetes' limit.
            limits: Limits { max_body_bytes: 3 * 1024 * 1024, cbor: false },
            advertise: String::new(),
            services: ServiceConfig::default(),
            trust: AuthenticationTrust::default(),
            aggregator_routing: Routing::Endpoints,
            api_server_count: 1,
            runtime: RuntimeConfig::default(),
            tuning: Tuning::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("failed to register metrics")]
    Metrics(#[from] MetricsError),
    #[error("failed to set up authentication")]
    Authentication(#[from] AuthenticationError),
    #[error("failed to set up the external signer of service account tokens")]
    ExternalSigner(#[from] ExternalSignerError),
    #[error("failed to set up admission")]
    Admission(#[from] ConfigurationError),
    #[error("failed to set up authorization")]
    Authorization(#[from] AuthorizationError),
    #[error(transparent)]
    Audit(#[from] AuditSetupError),
    #[error("failed to create bootstrap objects: {0}")]
    Bootstrap(Status),
}

/// A built API server: its service for the listener, with start and stop.
pub struct ApiServer {
    pub chain: Arc<Chain>,
    custom: Arc<CustomResources>,
    /// Group versions of other servers.
    pub aggregator: Arc<Aggregator>,
    advertise: String,
    trust: AuthenticationTrust,
    authorization_file: Option<Arc<AuthorizationFile>>,
    authentication_reloads: ReloadMetrics,
    authorization_reloads: ReloadMetrics,
    clock: Clock,
    started: Vec<Gate>,
    shutdown: Gate,
}

impl ApiServer {
    pub fn build(config: Config, stores: impl Into<Stores>, clock: &Clock) -> Result<Self, BuildError> {
        let stores = stores.into();
        let metrics = Metrics::new(clock)?;
        let readiness = Readiness::new();
        let (started, shutdown) = register_checks(&readiness, &stores);
        let components = ComponentChecks::of_machine(&stores);
        let authorization_file = AuthorizationFile::of(&config.authorization)?.map(Arc::new);
        let mut admission = Admission::new(&config.admission)?;
        admission.observe(&metrics)?;
        let mut registry = Registry::with_runtime_config(
            stores,
            admission,
            Services::new(config.services),
            config.authorization.choices()?,
            config.advertise.clone(),
            &config.runtime,
        );
        registry.tuning = config.tuning;
        registry.tuning.service_routing = config.aggregator_routing;
        registry.authorization.observe(&metrics)?;
        let registry = Arc::new(registry);
        let conversions = ConversionMetrics::new(&metrics)?;
        let custom = CustomResources::new(&registry, conversions, config.api_server_count);
        let custom = Arc::new(custom.map_err(BuildError::Bootstrap)?);
        let authentication = Authentication::new(config.authentication, Arc::clone(&registry), clock)?;
        authentication.oidc.observe(JwtMetrics::new(&metrics, clock)?);
        authentication.observe(&metrics)?;
        if let Some(external) = &authentication.service_accounts.external {
            external.observe(ExternalJwtMetrics::new(&metrics, clock)?);
        }
        let authentication = Arc::new(authentication);
        let aggregator = Aggregator::new(Arc::clone(&registry), config.aggregator_routing);
        let aggregator = Arc::new(aggregator.with_metrics(AggregatorMetrics::new(&metrics)?));
        let connections = Connections::default();
        let watch_metrics = Some(WatchMetrics::new(&metrics)?);
        let limits = config.limits;
        let rest = Rest { registry, authentication, limits, connections, components, watch_metrics };
        register_build_info(&metrics)?;
        let authentication_reloads = ReloadMetrics::new(&metrics, "authentication", clock)?;
        let authorization_reloads = ReloadMetrics::new(&metrics, "authorization", clock)?;
        let audit = Audit::build(&config.audit, &metrics, clock)?;
        let chain = Chain::new(rest, readiness, metrics, clock.clone(), audit, config.chain)?;
        Ok(Self {
            chain: Arc::new(chain),
            custom,
            aggregator,
            advertise: config.advertise,
            trust: config.trust,
            authorization_file,
            authentication_reloads,
            authorization_reloads,
            clock: clock.clone(),
            started,
            shutdown,
        })
    }

    /// Ensures that the bootstrap objects exist; after that the server is ready.
    pub fn start<'a>(&'a self) -> BoxFuture<'a, Result<(), BuildError>> {
        Box::pin(async move {
            self.chain.rest.authentication.service_accounts.start_external().await?;
            bootstrap::run(&self.chain.rest.registry, &self.advertise)
                .await
                .map_err(BuildError::Bootstrap)?;
            if let Some(fairness) = self.chain.fairness() {
                fairness.maintain().await.map_err(BuildError::Bootstrap)?;
            }
            self.publish_trust(&self.trust).await.map_err(BuildError::Bootstrap)?;
            self.custom.load().await.map_err(BuildError::Bootstrap)?;
            self.started.iter().for_each(Gate::open);
            Ok(())
        })
    }

    /// Serves requests on `listener`, as [`serve::serve`] does.
    pub fn serve(
        &self,
        listener: TcpListener,
        tls: Arc<Tls>,
        config: ServerConfig,
        tasks: TaskGroup,
    ) -> BoxFuture<'static, bool> {
        Box::pin(serve::serve(listener, tls, Arc::clone(&self.chain), config, tasks))
    }

    /// A client in this process that presents the certificate `chain`.
    #[must_use]
    pub fn in_process(&self, chain: Vec<CertificateDer<'static>>, trust: &ClientTrust) -> InProcess {
        InProcess::new(Arc::clone(&self.chain), chain, trust)
    }

    /// Runs the background tasks of the server until the task group stops.
    pub fn spawn(&self, tasks: &TaskGroup) {
        if let Some(fairness) = self.chain.fairness() {
            fairness.spawn(tasks);
        }
        if let Some(audit) = &self.chain.audit {
            audit.start();
        }
        let (registry, group) = (Arc::clone(&self.chain.rest.registry), tasks.clone());
        tasks.supervise("service-repair", move || repair_services(Arc::clone(&registry), group.clone()));
        let authentication = Arc::clone(&self.chain.rest.authentication);
        if authentication.service_accounts.external.is_some() {
            let group = tasks.clone();
            tasks.supervise("external-signer-keys", move || {
                let (authentication, group) = (Arc::clone(&authentication), group.clone());
                async move { authentication.service_accounts.follow_external(group).await }
            });
        }
        self.custom.spawn(tasks);
        self.aggregator.spawn(tasks);
    }

    /// Publishes the trusted CAs for extension API servers.
    pub fn publish_trust<'a>(&'a self, trust: &'a AuthenticationTrust) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match &trust.kubelet {
                Some(authorities) => self.chain.rest.connections.require_kubelet_authorities(authorities),
                None => self.chain.rest.connections.set_kubelet_authorities(&trust.client),
            }
            let now = self.clock.now().as_second();
            bootstrap::publish_trust(&self.chain.rest.registry, trust, now).await
        })
    }

    /// Sets the key of service account tokens. Generating one takes longer than startup, so it may be set later:
    /// requests that need it wait.
    pub fn set_service_account_key(&self, key: &ServiceAccountKey) -> Result<(), JwtError> {
        self.chain.rest.authentication.service_accounts.set_key(key)
    }

    /// Signs a token as the API server signs its own; `None` without a key.
    #[must_use]
    pub fn sign(&self, claims: &serde_json::Value) -> Option<String> {
        self.chain.rest.authentication.service_accounts.sign_now(claims)
    }

    /// Waits until all audit records are written, at most `limit`.
    pub fn flush<'a>(&'a self, limit: Duration) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(audit) = &self.chain.audit {
                audit.flush(limit).await;
            }
        })
    }

    /// Watches the configuration files of authentication and authorization for changes.
    pub fn follow_configuration(&self, tasks: &TaskGroup) {
        let oidc = Arc::clone(&self.chain.rest.authentication.oidc);
        if let Some(path) = oidc.file().map(Path::to_owned) {
            let metrics = self.authentication_reloads.clone();
            reload::follow(path, "authentication configuration", metrics, tasks, move || {
                oidc.reload().map_err(|error| base::errors::chain(&error))
            });
        }
        if let Some(file) = self.authorization_file.clone() {
            let metrics = self.authorization_reloads.clone();
            follow_authorization(file, &self.chain.rest.registry, metrics, tasks);
        }
    }

    /// TLS towards the kubelet of a node, as this server uses it; `None` while it has no certificate for kubelets.
    #[must_use]
    pub fn kubelet_tls(&self, node: &str) -> Option<Arc<rustls::ClientConfig>> {
        self.chain.rest.connections.kubelet_tls(node)
    }

    /// Sets the client certificate for kubelets.
    pub fn set_kubelet_identity(&self, identity: KubeletIdentity) -> Result<(), rustls::Error> {
        self.chain.rest.connections.set_kubelet_identity(identity)
    }

    /// Fails `/readyz`; requests are still served.
    pub fn announce_shutdown(&self) {
        self.shutdown.close("process is shutting down");
    }

    /// Fails `/readyz` and ends open watches.
    pub fn stop(&self) {
        self.announce_shutdown();
        self.chain.begin_drain();
        self.chain.rest.connections.stop();
        for served in self.chain.rest.registry.catalogue().all() {
            served.storage.cache.end_watches();
        }
    }
}

/// Registers Kubernetes' health checks, in its order. Those of the store are real requests; Kubernetes' post-start
/// hooks are one step here, which opens their checks.
fn register_checks(readiness: &Readiness, stores: &Stores) -> (Vec<Gate>, Gate) {
    let mut gates = Vec::new();
    let mut shutdown = None;
    for check in CHECKS {
        let probes = Probes { healthz: check.liveness, livez: check.liveness, readyz: check.readiness };
        match check.name {
            "ping" | "log" | "loopback-serving-certificate" => {
                readiness.register(check.name, probes, || Ok(()))
            }
            "etcd" | "etcd-readiness" => {
                register_store(readiness, check.name, probes, &stores.main);
                let name = if check.name == "etcd" { "etcd-override" } else { "etcd-override-readiness" };
                for (number, store) in stores.others().into_iter().enumerate() {
                    register_store(readiness, &format!("{name}-{number}"), probes, store);
                }
            }
            "shutdown" => {
                let gate = readiness.gate(check.name, probes);
                gate.open();
                shutdown = Some(gate);
            }
            name => gates.push(readiness.gate(name, probes)),
        }
    }
    let shutdown = shutdown.unwrap_or_else(|| readiness.gate("shutdown", Probes::READYZ));
    (gates, shutdown)
}

/// Adds a check that reads from a store.
fn register_store(readiness: &Readiness, name: &str, probes: Probes, store: &Arc<dyn Store>) {
    let store = Arc::clone(store);
    readiness.register_async(name, probes, move || {
        let store = Arc::clone(&store);
        async move { store.get("/registry/health").await.map(drop).map_err(|error| error.to_string()) }
    });
}

/// Repairs cluster IPs and node ports of services periodically, until the task group stops.
async fn repair_services(registry: Arc<Registry>, group: TaskGroup) {
    loop {
        if group.until_stopped(tokio::time::sleep(registry.tuning.service_repair)).await.is_none() {
            return;
        }
        if let Err(status) = registry.repair_services().await {
            tracing::warn!(error = %status, "failed to repair service IPs and node ports");
        }
    }
}

/// Reloads the authorizers from the file; an invalid file changes nothing.
fn follow_authorization(
    file: Arc<AuthorizationFile>,
    registry: &Arc<Registry>,
    metrics: ReloadMetrics,
    tasks: &TaskGroup,
) {
    let registry = Arc::clone(registry);
    reload::follow(file.path.clone(), "authorization configuration", metrics, tasks, move || {
        let choices = file.reload().map_err(|error| base::errors::chain(&error))?;
        registry.authorization.replace(choices);
        Ok(())
    });
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
