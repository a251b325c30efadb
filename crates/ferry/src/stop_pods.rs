//! Stops the pods of a node whose kubelet does not run.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base::tasks::TaskGroup;
use cluster::PodRanges;
use cri::v1;
use futures_util::future::join_all;

use crate::machine_record::MachineRecord;
use crate::up::own_runtime;

/// Timeouts for connecting to the runtime and for stopping pods.
const CONNECT: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(5);
/// Grace period of containers that do not specify one.
const GRACE: i64 = 30;
const UID: &str = "io.kubernetes.pod.uid";
const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// If true, stopped pods are also removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Keep,
    Remove,
}

/// Stops all pods of the node in `data_dir` and returns their number. In a shared runtime, stops only pods that this
/// node's kubelet manages.
pub async fn run(data_dir: &Path, record: &MachineRecord, then: Then) -> Result<usize> {
    let tasks = TaskGroup::new();
    let (address, ours) = match &record.runtime {
        Some(address) => (address.clone(), Some(known(data_dir))),
        None if !data_dir.join("runtime").exists() => return Ok(0),
        None => (own_runtime(data_dir, PodRanges::default(), &tasks)?, None),
    };
    let outcome = end(&address, ours.as_ref(), then).await;
    let _ = tasks.drain(DRAIN).await;
    if record.runtime.is_none() {
        let _ = std::fs::remove_file(data_dir.join("runtime.sock"));
    }
    outcome
}

/// UIDs of pods with a directory on this node.
fn known(data_dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(data_dir.join("kubelet/pods")).ok();
    entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

async fn end(address: &str, ours: Option<&BTreeSet<String>>, then: Then) -> Result<usize> {
    let failed = |status: tonic::Status| anyhow!("{}", status.message().to_owned());
    let mut runtime = cri::connect(address, CONNECT)
        .await
        .with_context(|| format!("failed to connect to the container runtime at {address}"))?
        .runtime;
    let sandboxes = runtime
        .list_pod_sandbox(v1::ListPodSandboxRequest::default())
        .await
        .map_err(failed)?
        .into_inner()
        .items;
    let containers = runtime
        .list_containers(v1::ListContainersRequest::default())
        .await
        .map_err(failed)?
        .into_inner()
        .containers;
    let sandboxes: Vec<_> = sandboxes
        .into_iter()
        .filter(|sandbox| {
            ours.is_none_or(|ours| sandbox.labels.get(UID).is_some_and(|uid| ours.contains(uid)))
        })
        .collect();
    let ended = join_all(sandboxes.iter().map(|sandbox| {
        let mut runtime = runtime.clone();
        let own: Vec<_> = containers.iter().filter(|one| one.pod_sandbox_id == sandbox.id).collect();
        async move {
            join_all(own.into_iter().map(|container| {
                let mut runtime = runtime.clone();
                let grace = container.annotations.get(GRACE_PERIOD).and_then(|text| text.parse().ok());
                let request = v1::StopContainerRequest {
                    container_id: container.id.clone(),
                    timeout: grace.unwrap_or(GRACE),
                };
                async move { runtime.stop_container(request).await }
            }))
            .await;
            let id = sandbox.id.clone();
            runtime.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await?;
            if then == Then::Remove {
                runtime.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id }).await?;
            }
            Ok::<_, tonic::Status>(())
        }
    }))
    .await;
    ended.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(sandboxes.len())
}
