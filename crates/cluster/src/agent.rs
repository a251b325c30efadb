//! A node that joined a cluster somewhere else. The kubelet is the node's own user; proxy, routes and network policies
//! are service accounts, whose tokens the node requests bound to its own Node object.

use futures_util::future::BoxFuture;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use base::tasks::TaskGroup;
use client::{Client, ClientError};
use objects::core::v1::{ConfigMap, Node, Service};
use runtime::Identities;

use crate::accounts::Accounts;
use crate::{ClusterError, Join, NodeConfig, chain, policies, run_node, service_network, serving};

/// How long a young cluster may take to have a name service.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(500);

/// Joins and runs the node until `tasks` stop. `ready` is told how the node begun once it is registered.
pub fn run_agent<'a>(
    mut node: NodeConfig,
    join: Join,
    tasks: &'a TaskGroup,
    ready: Box<dyn FnOnce(kubelet::Begun) + Send + 'a>,
) -> BoxFuture<'a, Result<(), ClusterError>> {
    Box::pin(async move {
        let stopping = tasks.stopping();
        let kubeconfig = tokio::select! {
            () = stopping => return Ok(()),
            joined = join.kubeconfig() => joined?,
        };
        let client = Client::connect(&kubeconfig, "ferry-agent").map_err(ClusterError::Client)?;
        join.keep_fresh(client.clone(), tasks);
        let stopping = tasks.stopping();
        let authority = tokio::select! {
            () = stopping => return Ok(()),
            authority = client_authority(&client) => authority,
        };
        if node.cluster_dns.is_empty() {
            let stopping = tasks.stopping();
            node.cluster_dns = tokio::select! {
                () = stopping => return Ok(()),
                found = name_service(&client) => found,
            };
        }
        let serving = serving::begin(&node, &client, tasks)?;
        let accounts = Accounts::new(client.clone(), &kubeconfig).map_err(ClusterError::Client)?;
        let accounts = accounts.bound_to_node(&node.name);
        let proxy =
            accounts.client(service_network::ACCOUNT_USER, "ferry-proxy").map_err(ClusterError::Client)?;
        let (network, name, group) = (node.service_network.clone(), node.name.clone(), tasks.clone());
        let registration = registered(client.clone(), node.name.clone(), tasks.clone());
        tasks.spawn(async move {
            registration.await;
            service_network::start(&network, &name, proxy, &group);
        });
        if node.service_network.policies {
            let reader = accounts.client(policy::access::USER, "ferry-network-policy");
            let reader = reader.map_err(ClusterError::Client)?;
            let registration = registered(client.clone(), node.name.clone(), tasks.clone());
            let on_failure = node.service_network.policy_failure;
            let prepared = Box::pin(registration);
            node.gate = Some(policies::start(&node.name, reader, on_failure, prepared, tasks));
        }
        let authorities = serving::authorities(&authority)?;
        let outcome = run_node(&node, client, &serving, &authorities, tasks, ready).await;
        if let Err(error) = tasks.drain(crate::control_plane::TASK_GRACE).await {
            tracing::warn!(error = chain(&error), "tasks were cancelled");
        }
        outcome
    })
}

/// Waits for the node's own Node object, without which no token can be bound to it.
async fn registered(client: Client, name: String, tasks: TaskGroup) {
    while client.get::<Node>("", &name).await.is_err() {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Who vouches for those who call the kubelet, such as the API server.
async fn client_authority(client: &Client) -> String {
    loop {
        let map = client.get::<ConfigMap>("kube-system", "extension-apiserver-authentication").await;
        match map.map(|map| map.data.unwrap_or_default().remove("client-ca-file")) {
            Ok(Some(authority)) => return authority,
            Ok(None) => tracing::warn!("the cluster does not say whom kubelets can trust; asking again"),
            Err(error) => {
                tracing::warn!(error = chain(&error), "whom to trust is not known yet; asking again")
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Where pods ask for names: what the service `kube-dns` says, whoever is behind it.
async fn name_service(client: &Client) -> Vec<IpAddr> {
    let begun = Instant::now();
    loop {
        match client.get::<Service>("kube-system", "kube-dns").await {
            Ok(service) => {
                let spec = service.spec.unwrap_or_default();
                let texts = spec.cluster_ips.unwrap_or_default();
                return texts.iter().filter_map(|text| text.parse().ok()).collect();
            }
            Err(error) if begun.elapsed() > PATIENCE => {
                tracing::warn!(error = chain(&error), "no name service is known; pods have none");
                return Vec::new();
            }
            Err(error) => debug(&error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn debug(error: &ClientError) {
    tracing::debug!(error = chain(error), "no name service yet");
}
