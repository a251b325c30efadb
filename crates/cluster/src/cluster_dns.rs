//! Cluster DNS in this process, and its service.
//!
//! Watches services, endpoint slices, namespaces and nodes; creates the service `kube-dns` in kube-system if missing,
//! and its endpoint slices. Once that service selects pods, such as CoreDNS, its endpoint slices are removed.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::clock::Clock;
use base::file_changes::FileChanges;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::{Client, ClientError, DeleteOptions};
use dns::config::StubDomain;
use dns::feed::Feed;
use dns::metrics::DnsMetrics;
use dns::resolver::Resolver;
use dns::server::Server;
use dns::zone::Zone;
use objects::core::v1::{Service, ServicePort, ServiceSpec};
use objects::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use objects::meta::v1::ObjectMeta;
use proxy::health::{MetricsPort, serve_to};
use runtime::Informers;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::{ClusterError, chain, dns_clients, machine_network};

/// User of cluster DNS.
pub const USER: &str = "system:serviceaccount:kube-system:ferry-dns";
const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// Port of CoreDNS' metrics, and of the service.
const METRICS_PORT: u16 = 9153;
const MANAGER: &str = "dns.ferry";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Delay before a deleted service is recreated: it may be replaced by another one.
const RECREATE_DELAY: Duration = Duration::from_secs(5);
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Configuration of cluster DNS.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Cluster IPs of its service, which is created if missing; the service is not managed if empty.
    pub service_ips: Vec<IpAddr>,
    /// Addresses to serve on, at most one per family; other nodes must reach them.
    pub addresses: Vec<IpAddr>,
    /// Port to serve on; if it is in use and not required, any free port.
    pub port: u16,
    pub port_is_fixed: bool,
    /// Port of `/metrics`; if it is in use, any free port.
    pub metrics_port: u16,
    pub domain: String,
    /// Resolver configuration file with upstream servers.
    pub resolv_conf: PathBuf,
    /// Upstream servers, instead of those of `resolv_conf`.
    pub upstreams: Vec<SocketAddr>,
    pub stub_domains: Vec<StubDomain>,
    /// CIDRs of pods and services. Only clients there, nodes and their pods, and this machine are answered.
    pub client_ranges: Vec<String>,
}

impl Default for DnsConfig {
    fn default() -> Self {
        Self {
            service_ips: Vec::new(),
            addresses: Vec::new(),
            port: 10053,
            port_is_fixed: false,
            metrics_port: METRICS_PORT,
            domain: "cluster.local".to_owned(),
            resolv_conf: "/etc/resolv.conf".into(),
            upstreams: Vec::new(),
            stub_domains: Vec::new(),
            client_ranges: Vec::new(),
        }
    }
}

/// Serves DNS until `tasks` stop. `ready` gets the addresses once all caches are synced.
pub(crate) async fn run(
    config: &DnsConfig,
    client: Client,
    metrics: DnsRegistry,
    tasks: &TaskGroup,
    ready: impl FnOnce(&[SocketAddr]),
) -> Result<(), ClusterError> {
    let server = bind(config).await?;
    let zone = Zone::new(&config.domain, 30, config.service_ips.clone()).map_err(ClusterError::Domain)?;
    let zone = Arc::new(zone);
    let informers = Informers::new(client.clone(), tasks);
    let feed = Feed::start(Arc::clone(&zone), &informers);
    let own = server.addresses().to_vec();
    let mut settings = dns::config::Config {
        listen: own.clone(),
        domain: config.domain.clone(),
        service_addresses: config.service_ips.clone(),
        stub_domains: config.stub_domains.clone(),
        upstreams: config.upstreams.clone(),
        ..dns::config::Config::default()
    };
    if config.upstreams.is_empty() {
        settings.upstreams = upstreams(config, &own);
    }
    let resolver = Arc::new(Resolver::new(zone, &settings, metrics.counters.clone()));
    if config.upstreams.is_empty() {
        follow_upstreams(config, &own, &resolver, tasks);
    }
    let mut clients = dns_clients::parse(&config.client_ranges);
    clients.extend(dns_clients::parse(&local_addresses()));
    dns_clients::follow(&resolver, clients, &informers, tasks);
    if tasks.until_stopped(feed.synced()).await.is_none() {
        return Ok(());
    }
    server.serve(&resolver, tasks);
    let mut served = Vec::new();
    for &address in &own {
        let port = serve_metrics(address.ip(), config.metrics_port, &metrics, &resolver, tasks).await;
        served.push((address, port));
    }
    tracing::info!(addresses = ?own, domain = config.domain, "serving cluster DNS");
    ready(&own);
    if config.service_ips.is_empty() {
        tasks.stopping().await;
        return Ok(());
    }
    let publishing = publish(&client, &informers, &config.service_ips, &served);
    tasks.until_stopped(publishing).await;
    Ok(())
}

/// Upstream servers of the resolver configuration file, without this server.
fn upstreams(config: &DnsConfig, own: &[SocketAddr]) -> Vec<SocketAddr> {
    let known = dns::config::upstreams_from(&config.resolv_conf, own).unwrap_or_default();
    let through_us = |server: &SocketAddr| !config.service_ips.contains(&server.ip());
    known.into_iter().filter(through_us).collect()
}

/// Follows the resolver configuration file while `tasks` run.
fn follow_upstreams(config: &DnsConfig, own: &[SocketAddr], resolver: &Arc<Resolver>, tasks: &TaskGroup) {
    let (config, own, resolver) = (config.clone(), own.to_vec(), Arc::clone(resolver));
    let mut last = upstreams(&config, &own);
    tasks.spawn_until_stopped(async move {
        let path = config.resolv_conf.display();
        let mut changes = match FileChanges::of(&config.resolv_conf) {
            Ok(changes) => changes,
            Err(error) => return tracing::warn!(%error, %path, "failed to watch the resolver configuration"),
        };
        loop {
            let now = upstreams(&config, &own);
            if now != last {
                tracing::info!(servers = ?now, %path, "upstream DNS servers changed");
                resolver.set_upstreams(now.clone());
                last = now;
            }
            if let Err(error) = changes.changed().await {
                return tracing::warn!(%error, %path, "failed to watch the resolver configuration");
            }
        }
    });
}

/// Metrics of cluster DNS, in a registry of their own.
#[derive(Clone, Debug)]
pub(crate) struct DnsRegistry {
    registry: Metrics,
    counters: DnsMetrics,
}

impl DnsRegistry {
    pub fn new(clock: &Clock) -> Result<Self, ClusterError> {
        let registry = Metrics::new(clock).map_err(ClusterError::Metrics)?;
        let counters = DnsMetrics::new(&registry).map_err(ClusterError::Metrics)?;
        Ok(Self { registry, counters })
    }
}

/// Serves `/metrics` to clients of DNS in plain HTTP, as CoreDNS does, on `port` or else on a free one; returns the
/// port.
async fn serve_metrics(
    ip: IpAddr,
    port: u16,
    metrics: &DnsRegistry,
    resolver: &Arc<Resolver>,
    tasks: &TaskGroup,
) -> Option<u16> {
    let listener = match TcpListener::bind(SocketAddr::new(ip, port)).await {
        Ok(listener) => Ok(listener),
        Err(error) => {
            tracing::info!(%error, %ip, port, "port of DNS metrics unavailable, using a free port");
            TcpListener::bind(SocketAddr::new(ip, 0)).await
        }
    };
    let listener = match listener {
        Ok(listener) => Arc::new(listener),
        Err(error) => {
            tracing::warn!(%error, %ip, "failed to serve DNS metrics");
            return None;
        }
    };
    let bound = listener.local_addr().ok()?.port();
    let (page, group) =
        (MetricsPort { mode: None, metrics: metrics.registry.clone(), pages: None }, tasks.clone());
    let resolver = Arc::clone(resolver);
    let admits = Arc::new(move |client| resolver.clients.admits(client));
    tasks.spawn(serve_to(listener, Arc::new(page), admits, group));
    Some(bound)
}

/// Called with the served addresses once all caches are synced.
pub type DnsReady<'a> = Box<dyn FnOnce(&[SocketAddr]) + Send + 'a>;

/// Serves DNS alone, for any API server, until `tasks` stop.
pub fn run_dns<'a>(
    config: &'a DnsConfig,
    kubeconfig: &'a Path,
    clock: &'a Clock,
    tasks: &'a TaskGroup,
    ready: DnsReady<'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        machine_network::follow(tasks);
        let client = Client::connect(kubeconfig, &user_agent("ferry-dns")).map_err(ClusterError::Client)?;
        let metrics = DnsRegistry::new(clock)?;
        let outcome = run(config, client, metrics, tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        outcome
    })
}

/// Addresses of this machine's interfaces: local processes may use any of them as source.
fn local_addresses() -> Vec<String> {
    base::addresses::local().iter().map(ToString::to_string).collect()
}

/// Binds all addresses to the configured port, or to any.
async fn bind(config: &DnsConfig) -> Result<Server, ClusterError> {
    let with = |port| config.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect::<Vec<_>>();
    match Server::bind(&with(config.port)).await {
        Err(error) if !config.port_is_fixed => {
            tracing::info!(error = chain(&error), "DNS port unavailable, using a free port");
            Server::bind(&with(0)).await.map_err(ClusterError::Dns)
        }
        outcome => outcome.map_err(ClusterError::Dns),
    }
}

/// Reconciles the service and its endpoint slices.
async fn publish(client: &Client, informers: &Informers, service_ips: &[IpAddr], own: &[Served]) {
    let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
    let changed = Arc::new(Notify::new());
    let notifier = Arc::clone(&changed);
    services.on_event(move |change| {
        let meta = &change.object().metadata;
        if meta.name.as_deref() == Some(NAME) && meta.namespace.as_deref() == Some(NAMESPACE) {
            notifier.notify_one();
        }
    });
    let notifier = Arc::clone(&changed);
    slices.on_event(move |change| {
        if is_ours(change.object()) {
            notifier.notify_one();
        }
    });
    let (mut seen, mut retry) = (false, RETRY);
    loop {
        let service = services.get(NAMESPACE, NAME);
        if service.is_none() && seen {
            tokio::time::sleep(RECREATE_DELAY).await;
        }
        seen |= service.is_some();
        let present: Vec<Arc<EndpointSlice>> =
            slices.list(NAMESPACE).into_iter().filter(|slice| is_ours(slice)).collect();
        let steps = plan(services.get(NAMESPACE, NAME).as_deref(), &present, service_ips, own);
        let mut failed = false;
        for step in steps {
            if let Err(error) = step.take(client).await {
                tracing::warn!(error = chain(&error), "failed to publish service kube-dns, retrying");
                failed = true;
                break;
            }
        }
        if failed {
            retry.wait().await;
        } else {
            retry.reset();
            changed.notified().await;
        }
    }
}

fn is_ours(slice: &EndpointSlice) -> bool {
    let label = |key: &str| slice.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    label(MANAGED_BY).as_deref() == Some(MANAGER) && slice.metadata.namespace.as_deref() == Some(NAMESPACE)
}

/// Change of an object.
#[derive(Debug, PartialEq)]
enum Step {
    CreateService(Box<Service>),
    CreateSlice(Box<EndpointSlice>),
    UpdateSlice(Box<EndpointSlice>),
    DeleteSlice(String),
}

impl Step {
    async fn take(self, client: &Client) -> Result<(), ClientError> {
        let outcome = match self {
            Self::CreateService(service) => client.create(NAMESPACE, &*service).await.map(drop),
            Self::CreateSlice(slice) => client.create(NAMESPACE, &*slice).await.map(drop),
            Self::UpdateSlice(slice) => client.update(&*slice).await.map(drop),
            Self::DeleteSlice(name) => {
                client.delete::<EndpointSlice>(NAMESPACE, &name, &DeleteOptions::default()).await
            }
        };
        match outcome {
            // The next event triggers another reconciliation.
            Err(error) if error.is_already_exists() || error.is_conflict() || error.is_not_found() => Ok(()),
            outcome => outcome,
        }
    }
}

/// Changes from the observed to the desired objects.
fn plan(
    service: Option<&Service>,
    slices: &[Arc<EndpointSlice>],
    service_ips: &[IpAddr],
    own: &[Served],
) -> Vec<Step> {
    let selects = |service: &Service| {
        service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_some_and(|selector| !selector.is_empty())
    };
    if service.is_some_and(selects) {
        return slices
            .iter()
            .filter_map(|slice| slice.metadata.name.clone())
            .map(Step::DeleteSlice)
            .collect();
    }
    let mut steps = Vec::new();
    if service.is_none() {
        steps.push(Step::CreateService(Box::new(kube_dns(service_ips))));
    }
    for served in own {
        let wanted = slice(*served);
        match slices.iter().find(|slice| slice.metadata.name == wanted.metadata.name) {
            None => steps.push(Step::CreateSlice(Box::new(wanted))),
            Some(present) if present.endpoints == wanted.endpoints && present.ports == wanted.ports => {}
            Some(present) => {
                let mut changed = present.as_ref().clone();
                (changed.endpoints, changed.ports) = (wanted.endpoints, wanted.ports);
                steps.push(Step::UpdateSlice(Box::new(changed)));
            }
        }
    }
    steps
}

fn kube_dns(service_ips: &[IpAddr]) -> Service {
    let texts: Vec<String> = service_ips.iter().map(ToString::to_string).collect();
    let port = |name: &str, protocol: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: port.into(),
        protocol: Some(protocol.to_owned()),
        ..ServicePort::default()
    };
    let labels = [
        ("k8s-app", "kube-dns"),
        ("kubernetes.io/cluster-service", "true"),
        ("kubernetes.io/name", "FerryDNS"),
    ];
    Service {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: texts.first().cloned(),
            ip_family_policy: (texts.len() > 1).then(|| "RequireDualStack".to_owned()),
            cluster_ips: Some(texts),
            ports: Some(vec![
                port("dns", "UDP", 53),
                port("dns-tcp", "TCP", 53),
                port("metrics", "TCP", METRICS_PORT),
            ]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Address of DNS, and port of its metrics.
type Served = (SocketAddr, Option<u16>);

fn slice((address, metrics): Served) -> EndpointSlice {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let port = |name: &str, protocol: &str, port: u16| EndpointPort {
        name: Some(name.to_owned()),
        port: Some(i32::from(port)),
        protocol: Some(protocol.to_owned()),
        ..EndpointPort::default()
    };
    let dns = address.port();
    let mut ports = vec![port("dns", "UDP", dns), port("dns-tcp", "TCP", dns)];
    ports.extend(metrics.map(|metrics| port("metrics", "TCP", metrics)));
    let labels = [(SERVICE_NAME, NAME), (MANAGED_BY, MANAGER)];
    let labels: BTreeMap<String, String> =
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(format!("{NAME}-ferry-{}", family.to_ascii_lowercase())),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        endpoints: Some(vec![Endpoint {
            addresses: vec![address.ip().to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            ..Endpoint::default()
        }]),
        ports: Some(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<Served> {
        vec![("172.30.0.1:10053".parse().expect("an address"), Some(9153))]
    }

    #[test]
    fn new_cluster_gets_dns_service_and_slice_once() {
        let ips = ["10.96.0.10".parse().expect("an address")];
        let steps = plan(None, &[], &ips, &own());
        let [Step::CreateService(service), Step::CreateSlice(made)] = &steps[..] else { panic!("{steps:?}") };
        assert!(plan(Some(service), &[Arc::new((**made).clone())], &ips, &own()).is_empty());
        let ports = made.ports.iter().flatten().map(|port| port.port);
        assert_eq!(ports.collect::<Vec<_>>(), [Some(10053), Some(10053), Some(9153)]);
        let moved = vec![("172.30.0.1:53".parse().expect("an address"), Some(9153))];
        let steps = plan(Some(service), &[Arc::new((**made).clone())], &ips, &moved);
        assert!(matches!(&steps[..], [Step::UpdateSlice(_)]), "{steps:?}");
    }

    #[test]
    fn dns_slices_are_removed_if_service_selects_pods() {
        let mut service = kube_dns(&["10.96.0.10".parse().expect("an address")]);
        let ours = slice(own()[0]);
        let name = ours.metadata.name.clone().expect("a name");
        service.spec.as_mut().expect("a spec").selector =
            Some(BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())]));
        assert_eq!(plan(Some(&service), &[Arc::new(ours)], &[], &own()), [Step::DeleteSlice(name)]);
        assert!(plan(Some(&service), &[], &[], &own()).is_empty());
    }
}
