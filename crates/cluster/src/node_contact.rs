//! Contacts the kubelets after the API server's address changed. Each sees the new address in a connection with the
//! API server's client certificate, and reconnects to it (`client::Servers`).

use std::time::Duration;

use client::{Client, ListOptions, RawRequest};
use futures_util::StreamExt as _;
use objects::core::v1::Node;

use crate::chain;

/// Concurrent contacts, and the time for one.
const CONCURRENT: usize = 32;
const LIMIT: Duration = Duration::from_secs(5);
/// Attempts for a node that does not answer, and the time between them.
const ATTEMPTS: usize = 4;
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Contacts all nodes; those that do not answer find the server when it contacts them for another reason.
pub(crate) async fn contact(client: &Client) {
    let nodes = match client.list::<Node>("", &ListOptions::default()).await {
        Ok(list) => list.items,
        Err(error) => {
            return tracing::warn!(error = chain(&error), "failed to list nodes to contact them");
        }
    };
    let names = nodes.into_iter().filter_map(|node| node.metadata.name);
    futures_util::stream::iter(names)
        .for_each_concurrent(CONCURRENT, |name| async move { contact_node(client, &name).await })
        .await;
}

async fn contact_node(client: &Client, node: &str) {
    let request = RawRequest::get(format!("/api/v1/nodes/{node}/proxy/healthz"));
    for _ in 0..ATTEMPTS {
        match tokio::time::timeout(LIMIT, client.raw_stream(&request)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => tracing::debug!(error = chain(&error), node, "failed to contact the kubelet"),
            Err(_) => tracing::debug!(node, "the kubelet did not answer in time"),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
