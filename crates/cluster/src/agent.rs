//! A node that joined a remote cluster. The kubelet uses the node's own user; proxy, routes and network policies use
//! service accounts, whose tokens the node requests bound to its own Node object.

use futures_util::future::BoxFuture;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::backoff::Backoff;
use base::machine_network::Family;
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::{Client, ClientError, Kubeconfig, Remote, Servers, Transport};
use objects::core::v1::{ConfigMap, Node, Service};
use runtime::Identities;

use crate::accounts::Accounts;
use crate::certificates::KUBELET_CLIENT;
use crate::{
    ClusterError, Join, NodeConfig, chain, machine_network, policies, run_node, service_network, serving,
};

/// Time limit for a new cluster to create its DNS service.
const DNS_WAIT_LIMIT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Joins and runs the node until `tasks` stop. `ready` is called once the node is registered.
pub fn run_agent<'a>(
    mut node: NodeConfig,
    join: Join,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(kubelet::NodeStarted) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        machine_network::follow(tasks);
        let Some(kubeconfig) = tasks.until_stopped(join.kubeconfig()).await.transpose()? else {
            return Ok(());
        };
        let kubeconfig =
            Kubeconfig::load(&kubeconfig).map_err(ClientError::from).map_err(ClusterError::Client)?;
        let servers = Arc::new(Servers::open(join.directory.join("servers")));
        let remote = |config: Kubeconfig| {
            let remote = Remote::new(config).map_err(ClientError::from).map_err(ClusterError::Client)?;
            Ok::<_, ClusterError>(remote.with_servers(Arc::clone(&servers)))
        };
        let own = Arc::new(remote(kubeconfig.clone())?);
        node.peer = Some(follow_server(Arc::clone(&servers), own.authority().to_owned()));
        let client = Client::new(own, &user_agent("ferry-agent"));
        join.keep_fresh(client.clone(), tasks, node.certificates.clone());
        let Some(authority) = tasks.until_stopped(client_authority(&client)).await else { return Ok(()) };
        if node.cluster_dns.is_empty() {
            let Some(found) = tasks.until_stopped(name_service(&client)).await else { return Ok(()) };
            node.cluster_dns = found;
        }
        node.families = Family::all_of(node.cluster_dns.iter().map(ToString::to_string));
        let serving = serving::begin(&node, &client, tasks)?;
        let accounts = Accounts::over(client.clone(), remote(kubeconfig.without_credentials())?);
        let accounts = accounts.bound_to_node(&node.name);
        let proxy = accounts
            .client(service_network::ACCOUNT_USER, &user_agent("kube-proxy"))
            .map_err(ClusterError::Client)?;
        let (network, name, group) = (node.service_network.clone(), node.name.clone(), tasks.clone());
        let registration = registered(client.clone(), node.name.clone(), tasks.clone());
        tasks.spawn(async move {
            registration.await;
            service_network::start(&network, &name, proxy, &group);
        });
        if node.service_network.policies {
            let reader = accounts.client(policy::access::USER, &user_agent("ferry-network-policy"));
            let reader = reader.map_err(ClusterError::Client)?;
            let registration = registered(client.clone(), node.name.clone(), tasks.clone());
            let on_failure = node.service_network.policy_failure;
            let prepared = Box::pin(registration);
            node.gate = Some(policies::start(
                &node.name,
                node.service_network.instance,
                reader,
                on_failure,
                prepared,
                tasks,
            ));
        }
        let authorities = serving::authorities(&authority)?;
        let outcome = run_node(&node, client, &serving, &authorities, tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks did not stop within the grace period, cancelled");
        }
        outcome
    })
}

/// Considers the addresses from which the API server connects to the kubelet.
fn follow_server(servers: Arc<Servers>, primary: String) -> kubelet::PeerObserver {
    kubelet::PeerObserver::new(move |user, ip| {
        if user == KUBELET_CLIENT {
            let (servers, primary) = (Arc::clone(&servers), primary.clone());
            base::tasks::spawn_detached(async move { servers.consider(ip, &primary).await });
        }
    })
}

/// Waits for the node's own Node object, without which no token can be bound to it.
async fn registered(client: Client, name: String, tasks: TaskGroup) {
    while client.get::<Node>("", &name).await.is_err() {
        if tasks.until_stopped(tokio::time::sleep(RETRY_DELAY)).await.is_none() {
            return;
        }
    }
}

/// Certificate authority of clients of the kubelet, such as the API server.
async fn client_authority(client: &Client) -> String {
    let mut retry = Backoff::new(RETRY_DELAY, LONGEST_RETRY_DELAY);
    loop {
        let map = client.get::<ConfigMap>("kube-system", "extension-apiserver-authentication").await;
        match map.map(|map| map.data.unwrap_or_default().remove("client-ca-file")) {
            Ok(Some(authority)) => return authority,
            Ok(None) => tracing::warn!("extension-apiserver-authentication has no client-ca-file, retrying"),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "failed to read extension-apiserver-authentication, retrying"
                )
            }
        }
        retry.wait().await;
    }
}

/// DNS servers of pods: the cluster IPs of the service `kube-dns`.
async fn name_service(client: &Client) -> Vec<IpAddr> {
    let begun = Instant::now();
    loop {
        match client.get::<Service>("kube-system", "kube-dns").await {
            Ok(service) => {
                let spec = service.spec.unwrap_or_default();
                let texts = spec.cluster_ips.unwrap_or_default();
                return texts.iter().filter_map(|text| text.parse().ok()).collect();
            }
            Err(error) if begun.elapsed() > DNS_WAIT_LIMIT => {
                tracing::warn!(error = chain(&error), "service kube-dns not found, pods get no cluster DNS");
                return Vec::new();
            }
            Err(error) => debug(&error),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

fn debug(error: &ClientError) {
    tracing::debug!(error = chain(error), "service kube-dns not found yet, retrying");
}
