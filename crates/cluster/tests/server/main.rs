//! The API server as `cluster` builds it, tested over HTTP: one binary, since each is slow to link.

mod aggregation;
mod audit;
mod audit_webhook;
mod authentication;
mod catalogue;
mod cbor;
mod certificates;
mod cloud;
mod component_ports;
mod component_status;
mod custom_consumers;
mod custom_resources;
#[path = "../../examples/embedded.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod embedded;
mod encryption;
mod ingress;
mod issuers;
mod lifecycle;
mod managers;
mod metric_names;
mod node_identities;
mod policies;
mod service_account_keys;
mod serving;
mod shutdown;
mod slow_clients;
mod state_metrics;
mod stock_kubectl;
mod stock_python;
mod store_failure;
mod traces;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_embeds_a_control_plane() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let names = embedded::namespaces(directory.path()).await?;
    anyhow::ensure!(
        ["default", "embedded"].iter().all(|name| names.iter().any(|known| known == name)),
        "{names:?}"
    );
    Ok(())
}
