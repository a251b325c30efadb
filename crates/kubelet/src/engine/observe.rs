//! Runtime state of pods, translated to the kubelet's types.

use std::collections::BTreeMap;
use std::time::Instant;

use cri::v1;
use jiff::Timestamp;

use super::{Engine, EngineResult, SHORT_TIMEOUT, within};
use crate::configure::container::signal_name;
use crate::configure::labels;
use crate::lifecycle::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};

/// A pod known to the runtime, with or without an API object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    pub namespace: String,
    pub name: String,
}

/// States of all sandboxes and containers by pod, sufficient to detect changes.
#[derive(Clone, Debug, Default)]
pub struct RuntimeStates {
    pub pods: BTreeMap<String, RuntimePod>,
    /// IDs and states of sandboxes and containers, by pod.
    pub states: BTreeMap<String, BTreeMap<String, i32>>,
}

fn time(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn sandbox(status: v1::PodSandboxStatus) -> ObservedSandbox {
    let host_network = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options)
        .is_some_and(|options| options.network == v1::NamespaceMode::Node as i32);
    let network = status.network.unwrap_or_default();
    let ips = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|ip| ip.ip));
    ObservedSandbox {
        id: status.id,
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        ready: status.state == v1::PodSandboxState::SandboxReady as i32,
        host_network,
        ips: ips.filter(|ip| !ip.is_empty()).collect(),
        created_at: time(status.created_at),
    }
}

fn container(status: v1::ContainerStatus, sandbox: String) -> ObservedContainer {
    let annotation = |name: &str| status.annotations.get(name).cloned().unwrap_or_default();
    let attempt = status.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let state = match v1::ContainerState::try_from(status.state) {
        Ok(v1::ContainerState::ContainerCreated) => RunState::Created,
        Ok(v1::ContainerState::ContainerRunning) => RunState::Running,
        Ok(v1::ContainerState::ContainerExited) => RunState::Exited,
        _ => RunState::Unknown,
    };
    let image = status.image.as_ref().map(|image| {
        if image.user_specified_image.is_empty() {
            image.image.clone()
        } else {
            image.user_specified_image.clone()
        }
    });
    let user = status.user.and_then(|user| user.linux);
    ObservedContainer {
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default(),
        sandbox,
        restarts: annotation(labels::RESTART_COUNT).parse().unwrap_or(attempt),
        state,
        created_at: time(status.created_at),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image: image.unwrap_or_default(),
        image_id: status.image_ref,
        hash: annotation(labels::CONTAINER_HASH),
        log_path: status.log_path,
        user: user.map(|user| (user.uid, user.gid, user.supplemental_groups)),
        stop_signal: signal_name(status.stop_signal),
        resources: status.resources.and_then(|resources| resources.linux),
        id: status.id,
    }
}

impl Engine {
    /// Full state of one pod.
    pub async fn observe(&self, uid: &str) -> EngineResult<ObservedPod> {
        let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let sandboxes = v1::ListPodSandboxRequest {
            filter: Some(v1::PodSandboxFilter { label_selector: selector.clone(), ..Default::default() }),
        };
        let containers = v1::ListContainersRequest {
            filter: Some(v1::ContainerFilter { label_selector: selector, ..Default::default() }),
        };
        let (mut runtime, mut second) = (self.calls.runtime.clone(), self.calls.runtime.clone());
        let (metrics, begun) = (&self.metrics, Instant::now());
        let (sandboxes, containers) = tokio::try_join!(
            metrics.timed("list_podsandbox", runtime.list_pod_sandbox(within(sandboxes, SHORT_TIMEOUT))),
            metrics.timed("list_containers", second.list_containers(within(containers, SHORT_TIMEOUT))),
        )?;
        let mut observed = ObservedPod::default();
        for found in sandboxes.into_inner().items {
            let request = v1::PodSandboxStatusRequest { pod_sandbox_id: found.id, verbose: false };
            let status = runtime.pod_sandbox_status(within(request, SHORT_TIMEOUT));
            match metrics.timed("podsandbox_status", status).await {
                Ok(answer) => observed.sandboxes.extend(answer.into_inner().status.map(sandbox)),
                Err(status) if status.code() == tonic::Code::NotFound => {}
                Err(status) => return Err(status.into()),
            }
        }
        for found in containers.into_inner().containers {
            let request = v1::ContainerStatusRequest { container_id: found.id, verbose: false };
            let status = runtime.container_status(within(request, SHORT_TIMEOUT));
            match metrics.timed("container_status", status).await {
                Ok(answer) => {
                    let status = answer.into_inner().status;
                    observed.containers.extend(status.map(|status| container(status, found.pod_sandbox_id)));
                }
                Err(status) if status.code() == tonic::Code::NotFound => {}
                Err(status) => return Err(status.into()),
            }
        }
        observed.sort();
        metrics.relisted(begun);
        Ok(observed)
    }

    /// States of everything with pod labels.
    pub async fn runtime_states(&self) -> EngineResult<RuntimeStates> {
        let (mut runtime, mut second) = (self.calls.runtime.clone(), self.calls.runtime.clone());
        let begun = Instant::now();
        let sandboxes = runtime.list_pod_sandbox(within(v1::ListPodSandboxRequest::default(), SHORT_TIMEOUT));
        let containers = second.list_containers(within(v1::ListContainersRequest::default(), SHORT_TIMEOUT));
        let (sandboxes, containers) = tokio::try_join!(
            self.metrics.timed("list_podsandbox", sandboxes),
            self.metrics.timed("list_containers", containers),
        )?;
        let mut seen = RuntimeStates::default();
        let mut note = |labels: &BTreeMap<String, String>, id: String, state: i32| {
            let Some(uid) = labels.get(labels::POD_UID) else { return };
            let text = |name: &str| labels.get(name).cloned().unwrap_or_default();
            seen.pods.entry(uid.clone()).or_insert_with(|| RuntimePod {
                namespace: text(labels::POD_NAMESPACE),
                name: text(labels::POD_NAME),
            });
            seen.states.entry(uid.clone()).or_default().insert(id, state);
        };
        for found in sandboxes.into_inner().items {
            // Offset to distinguish sandbox states from container states.
            note(&found.labels, found.id, found.state.saturating_add(100));
        }
        for found in containers.into_inner().containers {
            note(&found.labels, found.id, found.state);
        }
        self.metrics.relisted(begun);
        Ok(seen)
    }
}
