//! The control plane: store, certificates and API server, built, run and drained together.

use futures_util::future::BoxFuture;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::serve;
use apiserver::{ApiServer, Stores};
use base::backoff::Backoff;
use base::machine_network::Family;
use base::metrics::Metrics;
use base::readiness::Probes;
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::Client;
use parking_lot::Mutex;
use runtime::Identities;
use store::Store;
use tokio::net::TcpListener;

use crate::cluster_dns::DnsRegistry;
use crate::node::NodeClients;
use crate::{
    Certificates, ClusterError, Config, DnsConfig, InProcessClients, LocalNode, LocalProxy, NodeConfig,
    ProxyConfig, StoreConfig, Traces, addons, chain, cluster_dns, compaction, component_health, components,
    encryption, live_backup, local_path, machine_network, metrics_server, node_contact, service_network,
    state_metrics, storage,
};

/// Grace period of background tasks after the last request.
pub(crate) const TASK_GRACE: Duration = Duration::from_secs(5);

/// Retry delay.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Delay before cluster DNS is started again after a failure.
const DNS_RETRY: Duration = Duration::from_secs(1);

/// Probes that fail if a restart of the process would help.
const LIVENESS: Probes = Probes { healthz: true, livez: true, readyz: false };

/// A control plane that is built and listens, but does not serve yet.
pub struct ControlPlane {
    config: Config,
    server: Arc<ApiServer>,
    store: Arc<dyn Store>,
    /// Stores of single resources.
    other_stores: Vec<Arc<dyn Store>>,
    certificates: Arc<Certificates>,
    listener: TcpListener,
    address: SocketAddr,
    traces: Traces,
    /// Tasks of the control plane, which outlive the stop signal by the shutdown delay.
    tasks: TaskGroup,
    /// Tasks of the caller, whose stop begins the shutdown.
    outer: TaskGroup,
}

impl ControlPlane {
    /// Opens the data directory, the certificates and the store, and builds the API server on them. All background
    /// tasks run in `tasks`.
    pub fn build(config: Config, tasks: TaskGroup) -> BoxFuture<'static, Result<Self, ClusterError>> {
        Box::pin(async move {
            storage::require(&config)?;
            let (data_dir, store) = (config.data_dir.clone(), config.store.clone());
            let quota = config.store_quota_bytes;
            Self::assemble(config, async move { storage::open(&data_dir, &store, quota).await }, tasks).await
        })
    }

    /// Like [`ControlPlane::build`], on an open store; ignores the configured one.
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
        let tasks = if config.shutdown_delay.is_zero() { outer.clone() } else { outer.separate() };
        if let Some(proxies) = config.egress.clone() {
            proxies.install();
        }
        let data_dir = |source| ClusterError::DataDirectory { path: config.data_dir.clone(), source };
        // Keys, objects and the audit log: removes other users' access, also to a directory of an earlier version.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data_dir).map_err(data_dir)?;
        for directory in [config.data_dir.clone(), config.data_dir.join("logs")] {
            sys::directories::ensure(&directory, 0o750)
                .map_err(|source| ClusterError::DataDirectory { path: directory, source })?;
        }
        machine_network::follow(&tasks);
        let (listener, address) = serve::bind(config.listen).map_err(ClusterError::Listen)?;
        // Keys and certificates are created while the store reads its files.
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
        let traces = Traces::start(config.tracing.as_ref(), &config.clock, &tasks)?;
        api.chain.tracer = traces.tracer("apiserver", &apiserver::server_id());
        let server = ApiServer::build(api, stores, &config.clock).map_err(ClusterError::ApiServer)?;
        storage::observe(&store, &server.chain.readiness, &server.chain.metrics)?;
        traces.register(&server.chain.metrics)?;
        let supervision = tasks.supervision().clone();
        supervision.register(&server.chain.metrics).map_err(ClusterError::Metrics)?;
        server.chain.readiness.register_extra("background-tasks", LIVENESS, move || supervision.check());
        certificates.write_kubeconfig()?;
        server.set_kubelet_identity(certificates.kubelet_client()?).map_err(ClusterError::KubeletIdentity)?;
        certificates.set_front_proxy(&server);
        let server = Arc::new(server);
        Ok(Self {
            config,
            server,
            store,
            other_stores,
            certificates,
            listener,
            address,
            traces,
            tasks,
            outer,
        })
    }

    /// Listen address of the API with the actual port.
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

    /// Registry of the API server and of the components that run with it.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.server.chain.metrics
    }

    pub(crate) fn in_process_clients(&self) -> InProcessClients {
        InProcessClients::new(Arc::clone(&self.server), Arc::clone(&self.certificates))
    }

    /// A node in this process; can be started once the control plane is ready.
    pub fn node(&self, mut node: NodeConfig) -> Result<LocalNode, ClusterError> {
        node.traces = self.traces.clone();
        let clients = self.in_process_clients();
        let clients = NodeClients {
            kubelet: clients.client_of_node(
                &node.user(),
                &user_agent("kubelet"),
                node.certificates.clone(),
            )?,
            administrator: clients.client_in("ferry-up", &["system:masters"], &user_agent("ferry-up"))?,
            provisioner: clients.client_as(local_path::USER, &user_agent("local-path-provisioner"))?,
            proxy: clients.client_as(service_network::USER, &user_agent("kube-proxy"))?,
            policies: clients.client_as(policy::access::USER, &user_agent("ferry-network-policy"))?,
        };
        Ok(LocalNode::new(node, clients, &self.certificates.pki))
    }

    /// Service proxy on this machine without a node; can be started once the control plane is ready.
    pub fn proxy(&self, config: ProxyConfig) -> Result<LocalProxy, ClusterError> {
        let client = self.in_process_clients().client_as(service_network::USER, &user_agent("kube-proxy"))?;
        Ok(LocalProxy::new(config, client))
    }

    /// Client with the administrator's permissions.
    pub fn administrator(&self) -> Result<Client, ClusterError> {
        let clients = InProcessClients::new(Arc::clone(&self.server), Arc::clone(&self.certificates));
        clients.client_in("ferry-up", &["system:masters"], &user_agent("ferry-up"))
    }

    /// Serves until the tasks are stopped, then drains requests, stops the tasks and closes the store. `ready` is
    /// called once the server is ready.
    pub fn run<'a>(self, ready: Box<dyn FnOnce() + Send + 'a>) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let Self { mut config, server, store, other_stores, certificates, listener, .. } = self;
            let Self { traces, tasks, outer, .. } = self;
            config.components.tracer = traces.tracer("kube-controller-manager", "");
            delay_stop(config.shutdown_delay, &server, &outer, &tasks);
            Arc::clone(&certificates).watch(Arc::clone(&server), &tasks);
            server.spawn(&tasks);
            certificates.prepare_service_account_key(Arc::clone(&server), &tasks);
            if matches!(config.store, StoreConfig::Embedded) {
                live_backup::serve(&config.data_dir, Arc::clone(&store), &tasks);
            } else {
                // The embedded store compacts itself.
                for store in std::iter::once(&store).chain(&other_stores) {
                    compaction::compact(Arc::clone(store), compaction::INTERVAL, &tasks);
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
                    if tasks.is_stopping() {
                        Ok(())
                    } else {
                        start_components(&config, &server, &certificates, &tasks)
                    }
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
                    tracing::warn!(
                        error = chain(&error),
                        "tasks did not stop within the grace period, cancelled"
                    );
                }
            }
            server.flush(TASK_GRACE).await;
            for store in std::iter::once(&store).chain(&other_stores) {
                store.close().await;
            }
            // A store failure takes precedence over other errors.
            if let Some(failure) = failure.lock().take() {
                return Err(ClusterError::StoreFailed(failure));
            }
            started?;
            if drained { Ok(()) } else { Err(ClusterError::Undrained(grace)) }
        })
    }
}

/// Stops the control plane's `tasks` with a delay after the caller's `outer` ones; until then only `/readyz` fails. A
/// control plane that stops by itself stops both.
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
        tracing::info!(?delay, "shutting down, serving requests until the shutdown delay has passed");
        tokio::select! {
            () = tasks.stopping() => {}
            () = tokio::time::sleep(delay) => tasks.stop(),
        }
    });
}

/// Starts the components of the control plane, each with its own client.
fn start_components(
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
        components.signing = certificates.client_authority_pem().map(Into::into);
    }
    if components.legacy_tokens.is_none() {
        let root_ca = components.settings.root_ca.clone().unwrap_or_default();
        let signer = Arc::clone(server);
        let sign = Arc::new(move |claims: &serde_json::Value| signer.sign(claims));
        components.legacy_tokens = Some(controllers::service_account_token::LegacyTokens { sign, root_ca });
    }
    let identities: Arc<dyn Identities> = Arc::clone(&clients) as Arc<dyn Identities>;
    let shared = |user: &str| clients.client_as(user, "");
    let metrics = &server.chain.metrics;
    let started = components::start(&components, &shared, &identities, metrics, &config.clock, tasks)?;
    if let Some(metrics) = &components.metrics {
        let client = clients.client_as(metrics_server::USER, &user_agent("metrics-server"))?;
        let election = components.leader_election;
        metrics_server::start(metrics, election, server, client, &config.clock, tasks)?;
    }
    for port in &components.ports {
        let client = clients.client_as(&format!("system:{}", port.component), &user_agent(port.component))?;
        port.clone().open(client, metrics, &started, &config.clock, tasks)?;
    }
    if let Some(port) = &components.state_metrics {
        port.open(clients.client_as(state_metrics::USER, &user_agent("kube-state-metrics"))?, tasks)?;
    }
    component_health::report(&components, server, tasks);
    if components.addons {
        let administrator = clients.client_in("ferry-up", &["system:masters"], &user_agent("ferry-up"))?;
        let dns = components.dns.clone();
        let dns = dns.map(|dns| {
            Ok::<_, ClusterError>((dns, clients.client_as(cluster_dns::USER, &user_agent("ferry-dns"))?))
        });
        let addons = Addons {
            administrator,
            certificates: Arc::clone(certificates),
            advertise: config.advertise,
            families: config.families.clone(),
            authority: certificates.serving_authority()?,
            alone: config.store == StoreConfig::Embedded,
            dns: Mutex::new(dns.transpose()?),
            serves_metrics: components.metrics.is_some(),
            serves_state_metrics: components.state_metrics.is_some(),
            metrics: DnsRegistry::new(&config.clock)?,
            tasks: tasks.clone(),
        };
        addons.start();
    }
    Ok(())
}

/// Objects and DNS of a cluster besides its control plane.
struct Addons {
    administrator: Client,
    certificates: Arc<Certificates>,
    /// Configured address of the API server.
    advertise: Option<IpAddr>,
    families: Vec<Family>,
    authority: String,
    /// True if this is the only API server.
    alone: bool,
    /// Until cluster DNS is started.
    dns: Mutex<Option<(DnsConfig, Client)>>,
    /// Reports whether this process serves metrics.k8s.io.
    serves_metrics: bool,
    serves_state_metrics: bool,
    metrics: DnsRegistry,
    tasks: TaskGroup,
}

impl Addons {
    /// Installs the objects, and starts cluster DNS once they exist. Later changes of the machine's address are
    /// written to them.
    fn start(self) {
        let (tasks, addons) = (self.tasks.clone(), Arc::new(self));
        tasks.supervise_until_stopped("add-ons", move || {
            let addons = Arc::clone(&addons);
            async move {
                let mut network = base::machine_network::subscribe();
                let mut installed = addons.install().await;
                Self::serve_names(&addons);
                loop {
                    network.next().await;
                    if installed != addons.certificates.advertised() {
                        installed = addons.install().await;
                        tracing::info!(address = %installed, "the API server's address changed");
                        node_contact::contact(&addons.administrator).await;
                    }
                }
            }
        });
    }

    /// Installs the objects, retrying until it succeeds; returns the address they have.
    async fn install(&self) -> SocketAddr {
        let install = async |advertised: SocketAddr| {
            let url = format!("https://{advertised}");
            addons::install(&self.administrator, &url, &self.authority).await?;
            policy::access::install(&self.administrator).await?;
            if self.serves_metrics {
                metrics_server::install(&self.administrator).await?;
            }
            if self.serves_state_metrics {
                state_metrics::install(&self.administrator).await?;
            }
            if self.alone {
                addons::reconcile_endpoints(&self.administrator, advertised).await?;
            }
            Ok::<_, client::ClientError>(())
        };
        let mut retry = RETRY;
        loop {
            let advertised = self.certificates.advertised();
            match install(advertised).await {
                Ok(()) => return advertised,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "failed to create bootstrap objects, retrying");
                }
            }
            retry.wait().await;
        }
    }

    /// Starts cluster DNS, which moves with the addresses of the machine. A restart of the caller starts no second
    /// one.
    fn serve_names(addons: &Arc<Self>) {
        let Some((dns, client)) = addons.dns.lock().take() else { return };
        let (addons, tasks) = (Arc::clone(addons), addons.tasks.clone());
        tasks.supervise_scope("dns", move |scope| {
            let (dns, client, addons) = (dns.clone(), client.clone(), Arc::clone(&addons));
            async move {
                addons.serve_names_at_current(&dns, &client, &scope).await;
                ControlFlow::Continue(())
            }
        });
    }

    /// Serves DNS at the current addresses of the machine until `scope` stops.
    async fn serve_names_at_current(&self, dns: &DnsConfig, client: &Client, scope: &TaskGroup) {
        let mut network = base::machine_network::subscribe();
        while !scope.is_stopping() {
            let addresses = self.dns_addresses(dns);
            let at = DnsConfig { addresses: addresses.clone(), ..dns.clone() };
            let group = scope.scope();
            let serving = async {
                if addresses.is_empty() {
                    tracing::warn!(
                        "cluster DNS is not served: this machine has no address that pods can reach"
                    );
                    return group.stopping().await;
                }
                let outcome =
                    cluster_dns::run(&at, client.clone(), self.metrics.clone(), &group, |_| {}).await;
                if let Err(error) = outcome {
                    tracing::error!(error = chain(&error), "failed to run cluster DNS");
                    // Possibly an address that is not usable yet.
                    tokio::time::sleep(DNS_RETRY).await;
                }
            };
            let moved = async {
                loop {
                    network.next().await;
                    if self.dns_addresses(dns) != addresses {
                        return tracing::info!("addresses of the machine changed, restarting cluster DNS");
                    }
                }
            };
            tokio::select! {
                () = serving => {}
                () = moved => {}
            }
            group.stop();
        }
    }

    /// Addresses to serve DNS at: the configured ones, else those of the node that pods can reach.
    fn dns_addresses(&self, dns: &DnsConfig) -> Vec<IpAddr> {
        let mut addresses = dns.addresses.clone();
        if addresses.is_empty() && self.advertise.is_none() {
            let network = base::machine_network::current();
            addresses = network.map(|network| network.node_ips(&self.families)).unwrap_or_default();
        }
        if addresses.is_empty() {
            addresses.push(self.certificates.advertised().ip());
        }
        addresses.retain(|ip| !ip.is_loopback() && !ip.is_unspecified());
        addresses
    }
}
