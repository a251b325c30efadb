//! The API server as `cluster` puts it together, from outside: one binary, since each takes long to link.

mod aggregation;
mod audit;
mod audit_webhook;
mod cbor;
mod certificates;
mod cloud;
mod component_status;
mod custom_resources;
mod doors;
#[path = "../../examples/embedded.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod embedded;
mod encryption;
mod ingress;
mod issuers;
mod lifecycle;
mod node_identities;
mod policies;
mod service_account_keys;
mod serving;
mod shutdown;
mod stock_kubectl;
mod stock_python;
mod store_failure;

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
