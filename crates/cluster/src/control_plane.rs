//! The control plane: store, certificates and API server, built, run and drained together.

use futures_util::future::BoxFuture;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::serve;
use apiserver::{ApiServer, Stores};
use base::readiness::Probes;
use base::tasks::TaskGroup;
use client::Client;
use dns::metrics::DnsMetrics;
use runtime::Identities;
use store::Store;
use tokio::net::TcpListener;

use crate::node::NodeClients;
use crate::{
    Certificates, ClusterError, Config, DnsConfig, InProcessClients, NodeBeside, NodeConfig, ProxyBeside,
    ProxyConfig, StoreConfig, addons, chain, cluster_dns, compaction, component_health, components,
    encryption, live_backup, local_path, service_network, storage,
};

/// How long background tasks may take to end once all requests have.
pub(crate) const TASK_GRACE: Duration = Duration::from_secs(5);

/// How long to wait before something that failed is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// The probes that fail when a restart of the process would help.
const LIVENESS: Probes = Probes { healthz: true, livez: true, readyz: false };

/// A control plane that is built and listens, but does not answer yet.
pub struct ControlPlane {
    config: Config,
    server: Arc<ApiServer>,
    store: Arc<dyn Store>,
    /// Stores of single resources.
    other_stores: Vec<Arc<dyn Store>>,
    certificates: Arc<Certificates>,
    listener: TcpListener,
    address: SocketAddr,
    /// Tasks of the control plane, which outlive the signal to stop by the shutdown delay.
    tasks: TaskGroup,
    /// The caller's tasks, whose stop begins the shutdown.
    outer: TaskGroup,
}

impl ControlPlane {
    /// Opens the data directory, the certificates and the store, and builds the API server on them. Everything that
    /// runs in the background runs in `tasks`.
    pub fn build(config: Config, tasks: TaskGroup) -> BoxFuture<'static, Result<Self, ClusterError>> {
        Box::pin(async move {
            storage::require(&config)?;
            let (data_dir, store) = (config.data_dir.clone(), config.store.clone());
            let quota = config.store_quota_bytes;
            Self::assemble(config, async move { storage::open(&data_dir, &store, quota).await }, tasks).await
        })
    }

    /// As [`ControlPlane::build`], on a store that is open already, whatever the configuration says about one.
    pub fn build_on(
        store: Arc<dyn Store>,
        config: Config,
        tasks: TaskGroup,
    ) -> BoxFuture<'static, Result<Self, ClusterError>> {
        Box::pin(async move { Self::assemble(config, std::future::ready(Ok(store)), tasks).await })
    }

    async fn assemble(
        config: Config,
        store: impl Future<Output = Result<Arc<dyn Store>, ClusterError>>,
        outer: TaskGroup,
    ) -> Result<Self, ClusterError> {
        let tasks = if config.shutdown_delay.is_zero() { outer.clone() } else { outer.apart() };
        if let Some(proxies) = config.egress.clone() {
            proxies.install();
        }
        let data_dir = |source| ClusterError::DataDirectory { path: config.data_dir.clone(), source };
        // Keys, objects and the audit log: closed to other users, also in a directory of an earlier version.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data_dir).map_err(data_dir)?;
        for directory in [config.data_dir.clone(), config.data_dir.join("logs")] {
            sys::directories::ensure(&directory, 0o750)
                .map_err(|source| ClusterError::DataDirectory { path: directory, source })?;
        }
        let listener = serve::bind(config.listen).map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::LocalAddress)?;
        // Keys and certificates are made while the store reads its files.
        let for_certificates = config.clone();
        let certificates =
            tokio::task::spawn_blocking(move || Certificates::open(&for_certificates, address));
        let store = store.await;
        let certificates = match certificates.await {
            Ok(certificates) => Arc::new(certificates?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let store = store?;
        let store = encryption::open(&config, store, &tasks).await?;
        let overrides = storage::open_overrides(&config, &tasks).await?;
        let stores = Stores { main: Arc::clone(&store), overrides };
        let other_stores = stores.others().into_iter().cloned().collect();
        let mut api = config.api.clone();
        api.advertise = certificates.advertised().to_string();
        api.trust = certificates.authentication_trust()?;
        let server = ApiServer::build(api, stores, &config.clock).map_err(ClusterError::ApiServer)?;
        storage::observe(&store, &server.chain.readiness, &server.chain.metrics)?;
        let supervision = tasks.supervision().clone();
        supervision.register(&server.chain.metrics).map_err(ClusterError::Metrics)?;
        server.chain.readiness.register_extra("background-tasks", LIVENESS, move || supervision.check());
        certificates.write_kubeconfig()?;
        server.set_kubelet_identity(certificates.kubelet_client()?).map_err(ClusterError::KubeletIdentity)?;
        certificates.set_front_proxy(&server);
        let server = Arc::new(server);
        Ok(Self { config, server, store, other_stores, certificates, listener, address, tasks, outer })
    }

    /// Where the API is served; the port is the real one even if 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    #[must_use]
    pub fn kubeconfig(&self) -> Box<Path> {
        self.config.kubeconfig().into()
    }

    pub(crate) fn in_process_clients(&self) -> InProcessClients {
        InProcessClients::new(Arc::clone(&self.server), Arc::clone(&self.certificates))
    }

    /// A node beside this control plane; it can be started once the control plane is ready.
    pub fn node(&self, node: NodeConfig) -> Result<NodeBeside, ClusterError> {
        let clients = self.in_process_clients();
        let clients = NodeClients {
            kubelet: clients.client_as(&node.user(), "ferry-kubelet")?,
            administrator: clients.client_in("ferry-up", &["system:masters"], "ferry-up")?,
            provisioner: clients.client_as(local_path::USER, "local-path-provisioner")?,
            proxy: clients.client_as(service_network::USER, "ferry-proxy")?,
            policies: clients.client_as(policy::access::USER, "ferry-network-policy")?,
        };
        Ok(NodeBeside::new(node, clients, &self.certificates.pki))
    }

    /// Services on this machine without a node; they can be served once the control plane is ready.
    pub fn proxy(&self, config: ProxyConfig) -> Result<ProxyBeside, ClusterError> {
        let client = self.in_process_clients().client_as(service_network::USER, "ferry-proxy")?;
        Ok(ProxyBeside::new(config, client))
    }

    /// A client that may do everything.
    pub fn administrator(&self) -> Result<Client, ClusterError> {
        let clients = InProcessClients::new(Arc::clone(&self.server), Arc::clone(&self.certificates));
        clients.client_in("ferry-up", &["system:masters"], "ferry-up")
    }

    /// Serves until the tasks are told to stop, then lets requests finish, ends the tasks and closes the store.
    /// `ready` is called once the server is.
    pub fn run<'a>(self, ready: Box<dyn FnOnce() + Send + 'a>) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let Self { config, server, store, other_stores, certificates, listener, tasks, outer, .. } = self;
            delay_stop(config.shutdown_delay, &server, &outer, &tasks);
            Arc::clone(&certificates).watch(Arc::clone(&server), &tasks);
            server.spawn(&tasks);
            certificates.prepare_service_account_key(Arc::clone(&server), &tasks);
            if matches!(config.store, StoreConfig::Embedded) {
                live_backup::serve(&config.data_dir, Arc::clone(&store), &tasks);
            } else {
                // The embedded store drops its history itself.
                for store in std::iter::once(&store).chain(&other_stores) {
                    compaction::compact(Arc::clone(store), compaction::EVERY, &tasks);
                }
            }
            let failure = storage::end_when_failed(Arc::clone(&store), config.store_failure_grace, &tasks);
            server.follow_configuration(&tasks);
            let (stopped, stopping) = (Arc::clone(&server), tasks.stopping());
            tasks.spawn(async move {
                stopping.await;
                stopped.stop();
            });
            let grace = config.serving.drain_grace;
            let listening =
                server.serve(listener, Arc::clone(&certificates.tls), config.serving.clone(), tasks.clone());
            let starting = async {
                let outcome = server.start().await.map_err(ClusterError::ApiServer).and_then(|()| {
                    if tasks.is_stopping() { Ok(()) } else { act(&config, &server, &certificates, &tasks) }
                });
                match &outcome {
                    Ok(()) if !tasks.is_stopping() => ready(),
                    Ok(()) => {}
                    Err(_) => tasks.stop(),
                }
                outcome
            };
            let (drained, started) = tokio::join!(listening, starting);
            for group in [&tasks, &outer] {
                if let Err(error) = group.drain(TASK_GRACE).await {
                    tracing::warn!(error = chain(&error), "tasks were cancelled");
                }
            }
            server.flush(TASK_GRACE).await;
            for store in std::iter::once(&store).chain(&other_stores) {
                store.close().await;
            }
            // After a failure of the store, nothing else matters.
            if let Some(failure) = failure.lock().take() {
                return Err(ClusterError::StoreFailed(failure));
            }
            started?;
            if drained { Ok(()) } else { Err(ClusterError::Undrained(grace)) }
        })
    }
}

/// Stops the control plane's `tasks` a while after the caller's `outer` ones; until then `/readyz` alone says so. A control
/// plane that ends by itself ends both.
fn delay_stop(delay: Duration, server: &Arc<ApiServer>, outer: &TaskGroup, tasks: &TaskGroup) {
    if delay.is_zero() {
        return;
    }
    let (server, outer, tasks) = (Arc::clone(server), outer.clone(), tasks.clone());
    outer.clone().spawn(async move {
        tokio::select! {
            () = tasks.stopping() => return outer.stop(),
            () = outer.stopping() => {}
        }
        server.announce_shutdown();
        tracing::info!(?delay, "shutting down: requests are served until the shutdown delay is over");
        tokio::select! {
            () = tasks.stopping() => {}
            () = tokio::time::sleep(delay) => tasks.stop(),
        }
    });
}

/// Starts the components of the control plane, each with a client of its own.
fn act(
    config: &Config,
    server: &Arc<ApiServer>,
    certificates: &Arc<Certificates>,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let clients = Arc::new(InProcessClients::new(Arc::clone(server), Arc::clone(certificates)));
    let mut components = config.components.clone();
    components
        .settings
        .root_ca
        .get_or_insert_with(|| certificates.pki.server_authority.certificate_pem.clone());
    if components.signing.is_none() && components.signers.is_empty() {
        components.signing = certificates.client_authority_pem();
    }
    if components.legacy_tokens.is_none() {
        let root_ca = components.settings.root_ca.clone().unwrap_or_default();
        let signer = Arc::clone(server);
        let sign = Arc::new(move |claims: &serde_json::Value| signer.sign(claims));
        components.legacy_tokens = Some(controllers::service_account_token::LegacyTokens { sign, root_ca });
    }
    let identities: Arc<dyn Identities> = Arc::clone(&clients) as Arc<dyn Identities>;
    let shared = |user: &str| clients.client_as(user, "ferry");
    let metrics = &server.chain.metrics;
    components::start(&components, &shared, &identities, metrics, &config.clock, tasks)?;
    component_health::report(&components, server, tasks);
    if components.addons {
        let administrator = clients.client_in("ferry-up", &["system:masters"], "ferry-up")?;
        let dns = components.dns.clone();
        let dns =
            dns.map(|dns| Ok::<_, ClusterError>((dns, clients.client_as(cluster_dns::USER, "ferry-dns")?)));
        let addons = Addons {
            administrator,
            advertised: certificates.advertised(),
            authority: certificates.serving_authority()?,
            alone: config.store == StoreConfig::Embedded,
            dns: dns.transpose()?,
            metrics: DnsMetrics::new(metrics).map_err(ClusterError::Metrics)?,
            tasks: tasks.clone(),
        };
        addons.start();
    }
    Ok(())
}

/// What a cluster has besides its control plane.
struct Addons {
    administrator: Client,
    advertised: SocketAddr,
    authority: String,
    /// Whether this is the only API server.
    alone: bool,
    dns: Option<(DnsConfig, Client)>,
    metrics: DnsMetrics,
    tasks: TaskGroup,
}

impl Addons {
    /// Installs the objects, and starts the name service once they exist.
    fn start(self) {
        let (tasks, addons) = (self.tasks.clone(), Arc::new(self));
        tasks.supervise_while("add-ons", move || {
            let addons = Arc::clone(&addons);
            async move {
                let stopping = addons.tasks.stopping();
                tokio::select! {
                    () = stopping => {}
                    () = addons.install() => addons.serve_names(),
                }
                ControlFlow::Break(())
            }
        });
    }

    /// Installs the objects, however often that takes.
    async fn install(&self) {
        let url = format!("https://{}", self.advertised);
        let install = async || {
            addons::install(&self.administrator, &url, &self.authority).await?;
            policy::access::install(&self.administrator).await?;
            if self.alone {
                addons::lead_to(&self.administrator, self.advertised).await?;
            }
            Ok::<_, client::ClientError>(())
        };
        while let Err(error) = install().await {
            tracing::warn!(error = chain(&error), "not all objects of the cluster are there; trying again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn serve_names(&self) {
        let Some((mut dns, client)) = self.dns.clone() else { return };
        let reachable = |ip: &std::net::IpAddr| !ip.is_loopback() && !ip.is_unspecified();
        if dns.addresses.is_empty() {
            dns.addresses.push(self.advertised.ip());
        }
        dns.addresses.retain(reachable);
        if dns.addresses.is_empty() {
            tracing::warn!(
                "there is no name service: this machine has no address that pods could reach it at"
            );
            return;
        }
        let metrics = self.metrics.clone();
        self.tasks.supervise_scope("dns", move |scope| {
            let (dns, client, metrics) = (dns.clone(), client.clone(), metrics.clone());
            async move {
                if let Err(error) = cluster_dns::run(&dns, client, metrics, &scope, |_| {}).await {
                    tracing::error!(error = chain(&error), "there is no name service");
                }
                ControlFlow::Continue(())
            }
        });
    }
}
