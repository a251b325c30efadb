//! `ferry status`: the process, the API server, nodes and pods of a cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::version::user_agent;
use clap::Args;
use cluster::Client;
use serde_json::{Value, json};

use crate::cli::DataDir;
use crate::data_dir_lock;
use crate::output::{self, OutputArgs};

/// Time limit for the API server's responses.
const TIMEOUT: Duration = Duration::from_secs(10);
const COLUMNS: [output::Column; 6] = [
    ("STATUS", "status"),
    ("PROCESS", "process"),
    ("VERSION", "version"),
    ("NODES", "nodes"),
    ("PODS", "pods"),
    ("DATA-DIR", "dataDir"),
];

#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Prints the status. Fails if the cluster does not run or its API server does not respond.
pub async fn run(arguments: StatusArgs) -> Result<ExitCode> {
    let data_dir = arguments.data_dir.data_dir;
    let process = data_dir_lock::running(&data_dir)?.map(|process| process.as_raw_nonzero().get());
    let is_local = arguments.kubeconfig.is_none();
    let kubeconfig = arguments.kubeconfig.unwrap_or_else(|| data_dir.join("kubeconfig"));
    let mut row = Row { process, data_dir: data_dir.display().to_string(), ..Row::default() };
    let failure = if is_local && process.is_none() {
        Some(anyhow::anyhow!("no cluster is running in {}: start it with `ferry up`", data_dir.display()))
    } else {
        row.read(&kubeconfig).await.err()
    };
    row.status = match (&failure, is_local && process.is_none()) {
        (None, _) => "Running",
        (Some(_), true) => "Stopped",
        (Some(_), false) => "NotReady",
    };
    output::print(arguments.output.output, &COLUMNS, &[row.cells()])?;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

#[derive(Default)]
struct Row {
    status: &'static str,
    process: Option<i32>,
    version: Option<String>,
    nodes: Option<String>,
    pods: Option<u64>,
    data_dir: String,
}

impl Row {
    async fn read(&mut self, kubeconfig: &std::path::Path) -> Result<()> {
        let client = Client::connect(kubeconfig, &user_agent("ferry-status"))
            .with_context(|| format!("failed to load {}", kubeconfig.display()))?;
        let read = async {
            let version: Value = client.read("/version").await?;
            self.version = version["gitVersion"].as_str().map(str::to_owned);
            let nodes: Value = client.read("/api/v1/nodes").await?;
            self.nodes = Some(ready_nodes(&nodes));
            let pods: Value = client.read("/api/v1/pods?limit=1").await?;
            self.pods = Some(count(&pods));
            anyhow::Ok(())
        };
        let outcome = tokio::time::timeout(TIMEOUT, read).await;
        outcome.context("the API server does not respond")?.context("failed to read from the API server")
    }

    fn cells(self) -> Vec<Value> {
        let Self { status, process, version, nodes, pods, data_dir } = self;
        vec![json!(status), json!(process), json!(version), json!(nodes), json!(pods), json!(data_dir)]
    }
}

/// `2/3`: ready nodes of all.
fn ready_nodes(list: &Value) -> String {
    let nodes = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    format!("{}/{}", nodes.iter().filter(is_ready).count(), nodes.len())
}

/// Number of objects of a list that may be its first page.
fn count(list: &Value) -> u64 {
    let shown = list["items"].as_array().map_or(0, Vec::len) as u64;
    shown.saturating_add(list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_pods_are_counted() {
        let node = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let nodes = json!({"items": [node("True"), node("Unknown"), json!({})]});
        assert_eq!(ready_nodes(&nodes), "1/3");
        assert_eq!(ready_nodes(&json!({"items": null})), "0/0");
        assert_eq!(count(&json!({"items": [{}], "metadata": {"remainingItemCount": 41}})), 42);
        assert_eq!(count(&json!({"items": []})), 0);
    }

    #[tokio::test]
    async fn stopped_cluster_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let arguments = StatusArgs {
            data_dir: DataDir { data_dir: directory.path().to_owned() },
            kubeconfig: None,
            output: OutputArgs { output: None },
        };
        let error = run(arguments).await.expect_err("stopped").to_string();
        assert!(error.contains("no cluster is running") && error.contains("`ferry up`"), "{error}");
    }
}
