//! The container runtime behind CRI: calls with timeouts, and the observed state of pods.

mod events;
mod images;
mod observe;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::Runtime;
use cri::v1;
use parking_lot::RwLock;
use tonic::{Code, Request, Status};

pub use events::watch;
pub use images::{PresentImage, with_default_tag};
pub use observe::{RuntimePod, RuntimeStates};

use crate::metrics::RuntimeMetrics;

/// Timeout of short calls.
const SHORT_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of sandbox creation: network setup can be slow.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(240);

/// A CRI call that failed or timed out.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message())]
pub struct EngineError(#[from] pub Status);

impl EngineError {
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.0.code() == Code::NotFound
    }

    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.0.code() == Code::Unimplemented
    }
}

type EngineResult<T> = Result<T, EngineError>;

/// A container runtime. Clones share its connection.
#[derive(Clone)]
pub struct Engine {
    calls: Runtime,
    name: String,
    version: String,
    /// Runtime handlers from the last status call.
    handlers: Arc<RwLock<Vec<v1::RuntimeHandler>>>,
    pub(crate) metrics: RuntimeMetrics,
}

fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Treats `NotFound` as success, for removals.
fn ignore_not_found<T: Default>(outcome: Result<tonic::Response<T>, Status>) -> EngineResult<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status.into()),
    }
}

impl Engine {
    /// Queries the runtime's name and version; fails until it responds.
    pub async fn connect_to(calls: Runtime, metrics: RuntimeMetrics) -> EngineResult<Self> {
        let call = v1::VersionRequest { version: "0.1.0".to_owned() };
        let mut runtime = calls.runtime.clone();
        let version = runtime.version(within(call, SHORT_TIMEOUT));
        let answer = metrics.timed("version", version).await?.into_inner();
        Ok(Self {
            calls,
            name: answer.runtime_name,
            version: answer.runtime_version,
            handlers: Arc::default(),
            metrics,
        })
    }

    /// Runtime name such as `containerd`, the scheme of container IDs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    #[must_use]
    pub fn calls(&self) -> Runtime {
        self.calls.clone()
    }

    /// Conditions by name, and handlers with their support for recursive read-only mounts and user namespaces.
    pub async fn status(&self) -> EngineResult<v1::StatusResponse> {
        let call = v1::StatusRequest { verbose: false };
        let answer = self
            .metrics
            .timed("status", self.calls.runtime.clone().status(within(call, SHORT_TIMEOUT)))
            .await?
            .into_inner();
        self.handlers.write().clone_from(&answer.runtime_handlers);
        Ok(answer)
    }

    /// Features of a handler, as reported by the runtime.
    #[must_use]
    pub fn features(&self, handler: &str) -> v1::RuntimeHandlerFeatures {
        let handlers = self.handlers.read();
        let found = handlers.iter().find(|known| known.name == handler);
        found.and_then(|found| found.features.clone()).unwrap_or_default()
    }

    pub async fn set_pod_cidr(&self, cidr: &str) -> EngineResult<()> {
        let network = v1::NetworkConfig { pod_cidr: cidr.to_owned() };
        let config = v1::RuntimeConfig { network_config: Some(network) };
        let call = v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) };
        self.metrics
            .timed(
                "update_runtime_config",
                self.calls.runtime.clone().update_runtime_config(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(())
    }

    pub async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> EngineResult<String> {
        let call = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let begun = Instant::now();
        let answer = self
            .metrics
            .timed(
                "run_podsandbox",
                self.calls.runtime.clone().run_pod_sandbox(within(call, SANDBOX_TIMEOUT)),
            )
            .await;
        self.metrics.sandbox_started(handler, answer.is_ok(), begun);
        Ok(answer?.into_inner().pod_sandbox_id)
    }

    pub async fn stop_sandbox(&self, id: &str) -> EngineResult<()> {
        let call = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        ignore_not_found(
            self.metrics
                .timed(
                    "stop_podsandbox",
                    self.calls.runtime.clone().stop_pod_sandbox(within(call, SANDBOX_TIMEOUT)),
                )
                .await,
        )
    }

    pub async fn remove_sandbox(&self, id: &str) -> EngineResult<()> {
        let call = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        ignore_not_found(
            self.metrics
                .timed(
                    "remove_podsandbox",
                    self.calls.runtime.clone().remove_pod_sandbox(within(call, SANDBOX_TIMEOUT)),
                )
                .await,
        )
    }

    pub async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> EngineResult<String> {
        let call = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer = self
            .metrics
            .timed(
                "create_container",
                self.calls.runtime.clone().create_container(within(call, SANDBOX_TIMEOUT)),
            )
            .await?;
        Ok(answer.into_inner().container_id)
    }

    pub async fn start_container(&self, id: &str) -> EngineResult<()> {
        let call = v1::StartContainerRequest { container_id: id.to_owned() };
        self.metrics
            .timed("start_container", self.calls.runtime.clone().start_container(within(call, SHORT_TIMEOUT)))
            .await?;
        Ok(())
    }

    /// Stops a container, with SIGKILL after `grace`.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> EngineResult<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let call = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        let limit = grace.saturating_add(SHORT_TIMEOUT);
        ignore_not_found(
            self.metrics
                .timed("stop_container", self.calls.runtime.clone().stop_container(within(call, limit)))
                .await,
        )
    }

    pub async fn remove_container(&self, id: &str) -> EngineResult<()> {
        let call = v1::RemoveContainerRequest { container_id: id.to_owned() };
        ignore_not_found(
            self.metrics
                .timed(
                    "remove_container",
                    self.calls.runtime.clone().remove_container(within(call, SHORT_TIMEOUT)),
                )
                .await,
        )
    }

    pub async fn reopen_log(&self, id: &str) -> EngineResult<()> {
        let call = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.metrics
            .timed(
                "reopen_container_log",
                self.calls.runtime.clone().reopen_container_log(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(())
    }

    pub async fn update_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> EngineResult<()> {
        let call = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.metrics
            .timed(
                "update_container",
                self.calls.runtime.clone().update_container_resources(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(())
    }

    /// Runs a command in a container to completion and returns exit code and output. `DeadlineExceeded` on timeout.
    pub async fn exec(
        &self,
        id: &str,
        command: Vec<String>,
        limit: Duration,
    ) -> EngineResult<(i32, Vec<u8>)> {
        let timeout = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
        let call = v1::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout };
        let limit = limit.saturating_add(Duration::from_secs(5));
        let answer = self
            .metrics
            .timed("exec_sync", self.calls.runtime.clone().exec_sync(within(call, limit)))
            .await?
            .into_inner();
        let mut output = answer.stdout;
        output.extend(answer.stderr);
        Ok((answer.exit_code, output))
    }

    /// Returns the streaming URL of an interactive command.
    pub async fn exec_url(&self, request: v1::ExecRequest) -> EngineResult<String> {
        Ok(self
            .metrics
            .timed("exec", self.calls.runtime.clone().exec(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner()
            .url)
    }

    pub async fn attach_url(&self, request: v1::AttachRequest) -> EngineResult<String> {
        Ok(self
            .metrics
            .timed("attach", self.calls.runtime.clone().attach(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner()
            .url)
    }

    pub async fn port_forward_url(&self, request: v1::PortForwardRequest) -> EngineResult<String> {
        Ok(self
            .metrics
            .timed("port_forward", self.calls.runtime.clone().port_forward(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner()
            .url)
    }

    pub async fn container_stats(&self) -> EngineResult<Vec<v1::ContainerStats>> {
        let call = v1::ListContainerStatsRequest::default();
        let answer = self
            .metrics
            .timed(
                "list_container_stats",
                self.calls.runtime.clone().list_container_stats(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(answer.into_inner().stats)
    }

    async fn containers(&self, state: Option<v1::ContainerState>) -> EngineResult<Vec<v1::Container>> {
        let state = state.map(|state| v1::ContainerStateValue { state: state as i32 });
        let filter = v1::ContainerFilter { state, ..Default::default() };
        let call = v1::ListContainersRequest { filter: Some(filter) };
        Ok(self
            .metrics
            .timed("list_containers", self.calls.runtime.clone().list_containers(within(call, SHORT_TIMEOUT)))
            .await?
            .into_inner()
            .containers)
    }

    pub async fn running_containers(&self) -> EngineResult<Vec<v1::Container>> {
        self.containers(Some(v1::ContainerState::ContainerRunning)).await
    }

    pub async fn all_containers(&self) -> EngineResult<Vec<v1::Container>> {
        self.containers(None).await
    }

    /// Sandboxes that are ready.
    pub async fn ready_sandboxes(&self) -> EngineResult<Vec<v1::PodSandbox>> {
        let state = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
        let filter = v1::PodSandboxFilter { state: Some(state), ..Default::default() };
        let call = v1::ListPodSandboxRequest { filter: Some(filter) };
        let answer = self
            .metrics
            .timed(
                "list_podsandbox",
                self.calls.runtime.clone().list_pod_sandbox(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(answer.into_inner().items)
    }

    pub async fn sandbox_stats(&self) -> EngineResult<Vec<v1::PodSandboxStats>> {
        let call = v1::ListPodSandboxStatsRequest::default();
        let answer = self
            .metrics
            .timed(
                "list_podsandbox_stats",
                self.calls.runtime.clone().list_pod_sandbox_stats(within(call, SHORT_TIMEOUT)),
            )
            .await?;
        Ok(answer.into_inner().stats)
    }
}
