//! The container runtime behind CRI: its calls with their timeouts, and what it says about pods.

mod events;
mod images;
mod observe;

use std::sync::Arc;
use std::time::Duration;

use cri::Runtime;
use cri::v1;
use parking_lot::RwLock;
use tonic::{Code, Request, Status};

pub use events::watch;
pub use images::{PresentImage, with_default_tag};
pub use observe::{Seen, SeenPod};

/// How long calls may take that should be quick.
const QUICK: Duration = Duration::from_secs(120);
/// How long making a sandbox may take: networks can be slow.
const SANDBOX: Duration = Duration::from_secs(240);

/// A call that the runtime refused or did not answer.
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

type Outcome<T> = Result<T, EngineError>;

/// A container runtime. Clones share its connection.
#[derive(Clone)]
pub struct Engine {
    calls: Runtime,
    name: String,
    version: String,
    /// What it said last of its handlers.
    handlers: Arc<RwLock<Vec<v1::RuntimeHandler>>>,
}

fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// What is gone need not be ended.
fn gone_is_fine<T: Default>(outcome: Result<tonic::Response<T>, Status>) -> Outcome<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status.into()),
    }
}

impl Engine {
    /// Asks the runtime for its name; fails while it does not answer.
    pub async fn meet(calls: Runtime) -> Outcome<Self> {
        let asked = v1::VersionRequest { version: "0.1.0".to_owned() };
        let answer = calls.runtime.clone().version(within(asked, QUICK)).await?.into_inner();
        Ok(Self {
            calls,
            name: answer.runtime_name,
            version: answer.runtime_version,
            handlers: Arc::default(),
        })
    }

    /// Such as `containerd`: the scheme of container ids.
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

    /// Conditions by name, and handlers with whether they can mount read-only recursively and map users.
    pub async fn status(&self) -> Outcome<v1::StatusResponse> {
        let asked = v1::StatusRequest { verbose: false };
        let answer = self.calls.runtime.clone().status(within(asked, QUICK)).await?.into_inner();
        self.handlers.write().clone_from(&answer.runtime_handlers);
        Ok(answer)
    }

    /// What a handler can do, as far as the runtime said so.
    #[must_use]
    pub fn features(&self, handler: &str) -> v1::RuntimeHandlerFeatures {
        let handlers = self.handlers.read();
        let found = handlers.iter().find(|known| known.name == handler);
        found.and_then(|found| found.features.clone()).unwrap_or_default()
    }

    pub async fn set_pod_cidr(&self, cidr: &str) -> Outcome<()> {
        let network = v1::NetworkConfig { pod_cidr: cidr.to_owned() };
        let config = v1::RuntimeConfig { network_config: Some(network) };
        let asked = v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) };
        self.calls.runtime.clone().update_runtime_config(within(asked, QUICK)).await?;
        Ok(())
    }

    pub async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Outcome<String> {
        let asked = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let answer = self.calls.runtime.clone().run_pod_sandbox(within(asked, SANDBOX)).await?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    pub async fn stop_sandbox(&self, id: &str) -> Outcome<()> {
        let asked = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(self.calls.runtime.clone().stop_pod_sandbox(within(asked, SANDBOX)).await)
    }

    pub async fn remove_sandbox(&self, id: &str) -> Outcome<()> {
        let asked = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(self.calls.runtime.clone().remove_pod_sandbox(within(asked, SANDBOX)).await)
    }

    pub async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Outcome<String> {
        let asked = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer = self.calls.runtime.clone().create_container(within(asked, SANDBOX)).await?;
        Ok(answer.into_inner().container_id)
    }

    pub async fn start_container(&self, id: &str) -> Outcome<()> {
        let asked = v1::StartContainerRequest { container_id: id.to_owned() };
        self.calls.runtime.clone().start_container(within(asked, QUICK)).await?;
        Ok(())
    }

    /// Asks a container to end, and makes it after `grace`.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Outcome<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let asked = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        let limit = grace.saturating_add(QUICK);
        gone_is_fine(self.calls.runtime.clone().stop_container(within(asked, limit)).await)
    }

    pub async fn remove_container(&self, id: &str) -> Outcome<()> {
        let asked = v1::RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(self.calls.runtime.clone().remove_container(within(asked, QUICK)).await)
    }

    pub async fn reopen_log(&self, id: &str) -> Outcome<()> {
        let asked = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.calls.runtime.clone().reopen_container_log(within(asked, QUICK)).await?;
        Ok(())
    }

    pub async fn update_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Outcome<()> {
        let asked = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.calls.runtime.clone().update_container_resources(within(asked, QUICK)).await?;
        Ok(())
    }

    /// Runs a command in a container to its end: exit code and output. `DeadlineExceeded` if it takes too long.
    pub async fn exec(&self, id: &str, command: Vec<String>, limit: Duration) -> Outcome<(i32, Vec<u8>)> {
        let timeout = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
        let asked = v1::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout };
        let limit = limit.saturating_add(Duration::from_secs(5));
        let answer = self.calls.runtime.clone().exec_sync(within(asked, limit)).await?.into_inner();
        let mut output = answer.stdout;
        output.extend(answer.stderr);
        Ok((answer.exit_code, output))
    }

    /// Where the runtime serves an interactive command.
    pub async fn exec_url(&self, request: v1::ExecRequest) -> Outcome<String> {
        Ok(self.calls.runtime.clone().exec(within(request, QUICK)).await?.into_inner().url)
    }

    pub async fn attach_url(&self, request: v1::AttachRequest) -> Outcome<String> {
        Ok(self.calls.runtime.clone().attach(within(request, QUICK)).await?.into_inner().url)
    }

    pub async fn port_forward_url(&self, request: v1::PortForwardRequest) -> Outcome<String> {
        Ok(self.calls.runtime.clone().port_forward(within(request, QUICK)).await?.into_inner().url)
    }

    pub async fn container_stats(&self) -> Outcome<Vec<v1::ContainerStats>> {
        let asked = v1::ListContainerStatsRequest::default();
        let answer = self.calls.runtime.clone().list_container_stats(within(asked, QUICK)).await?;
        Ok(answer.into_inner().stats)
    }

    async fn containers(&self, state: Option<v1::ContainerState>) -> Outcome<Vec<v1::Container>> {
        let state = state.map(|state| v1::ContainerStateValue { state: state as i32 });
        let filter = v1::ContainerFilter { state, ..Default::default() };
        let asked = v1::ListContainersRequest { filter: Some(filter) };
        Ok(self.calls.runtime.clone().list_containers(within(asked, QUICK)).await?.into_inner().containers)
    }

    pub async fn running_containers(&self) -> Outcome<Vec<v1::Container>> {
        self.containers(Some(v1::ContainerState::ContainerRunning)).await
    }

    pub async fn all_containers(&self) -> Outcome<Vec<v1::Container>> {
        self.containers(None).await
    }

    /// Metrics of pods and containers, if the runtime has any beyond the usual: what they are, and what they say.
    pub async fn metrics(&self) -> Outcome<(Vec<v1::MetricDescriptor>, Vec<v1::PodSandboxMetrics>)> {
        let asked = v1::ListMetricDescriptorsRequest::default();
        let answer = self.calls.runtime.clone().list_metric_descriptors(within(asked, QUICK)).await?;
        let descriptors = answer.into_inner().descriptors;
        let asked = v1::ListPodSandboxMetricsRequest::default();
        let answer = self.calls.runtime.clone().list_pod_sandbox_metrics(within(asked, QUICK)).await?;
        Ok((descriptors, answer.into_inner().pod_metrics))
    }

    pub async fn sandbox_stats(&self) -> Outcome<Vec<v1::PodSandboxStats>> {
        let asked = v1::ListPodSandboxStatsRequest::default();
        let answer = self.calls.runtime.clone().list_pod_sandbox_stats(within(asked, QUICK)).await?;
        Ok(answer.into_inner().stats)
    }
}
