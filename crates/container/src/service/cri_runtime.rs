//! CRI's RuntimeService.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use cri::server::ResponseStream;
use cri::v1::*;
use futures_util::stream;
use streaming::Wanted;
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Response, Status};

use super::containers::reason;
use super::create::limits;
use super::records::{Container, Phase, Sandbox};
use super::sandboxes::namespaces;
use super::streams::Ticket;
use super::{Doing, Runtime, RuntimeError};
use crate::attach::{self, Kind};

/// The runtime as a server sees it. Clones are the same runtime.
#[derive(Clone)]
pub struct Served(pub Arc<Runtime>);

impl Deref for Served {
    type Target = Arc<Runtime>;

    fn deref(&self) -> &Arc<Runtime> {
        &self.0
    }
}

fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn state(container: &Container) -> ContainerState {
    match *container.phase.borrow() {
        Phase::Created => ContainerState::ContainerCreated,
        Phase::Running(_) => ContainerState::ContainerRunning,
        Phase::Exited { .. } => ContainerState::ContainerExited,
    }
}

impl Runtime {
    /// Serves CRI on a socket until the tasks are told to stop.
    pub async fn serve(self: &Arc<Self>, listener: tokio::net::UnixListener) {
        let served = Arc::new(Served(Arc::clone(self)));
        let route = move |request: http::Request<hyper::body::Incoming>| {
            let served = Arc::clone(&served);
            let path = request.uri().path();
            let answer = if path == crate::control::IMPORT {
                Some(crate::control::import(served, request))
            } else if path == crate::control::PULL {
                Some(crate::control::pull(served, request))
            } else if path.starts_with("/runtime.v1.ImageService/") {
                serve_image_service(served, request)
            } else {
                serve_runtime_service(served, request)
            };
            answer.unwrap_or_else(|| {
                Box::pin(std::future::ready(Status::unimplemented("no such method").into_http()))
            })
        };
        let streams = Arc::clone(self);
        let streaming = async move {
            if let Err(error) = streams.serve_streams().await {
                tracing::error!(%error, "exec, attach and port-forward are not served");
            }
        };
        tokio::join!(cri::server::serve_routes(listener, route, self.tasks.stopping()), streaming);
    }

    fn sandbox_state(sandbox: &Sandbox) -> PodSandboxState {
        if sandbox.ready() { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
    }

    pub(super) fn sandbox_status(&self, sandbox: &Sandbox) -> PodSandboxStatus {
        let meta = sandbox.meta.lock().clone();
        let mut addresses =
            meta.attached.iter().flat_map(|attached| &attached.addresses).map(ToString::to_string);
        let ip = addresses.next().unwrap_or_default();
        PodSandboxStatus {
            id: meta.id,
            metadata: sandbox.config.metadata.clone(),
            state: Self::sandbox_state(sandbox).into(),
            created_at: meta.created,
            network: Some(PodSandboxNetworkStatus {
                ip,
                additional_ips: addresses.map(|ip| PodIP { ip }).collect(),
            }),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace { options: Some(namespaces(&sandbox.config)) }),
            }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: meta.runtime_handler,
        }
    }

    pub(super) fn container_status(&self, container: &Container) -> ContainerStatus {
        let (mut started_at, mut finished_at, mut exit_code) = (0, 0, 0);
        let (mut why, mut message) = (String::new(), String::new());
        match &*container.phase.borrow() {
            Phase::Created => {}
            Phase::Running(started) => started_at = started.at,
            Phase::Exited { started, exited } => {
                (started_at, finished_at, exit_code) = (*started, exited.at, exited.code);
                reason(exited).clone_into(&mut why);
                message.clone_from(&exited.message);
            }
        }
        let image = container.config.image.clone().unwrap_or_default();
        let resources = container.resources.lock().clone();
        ContainerStatus {
            id: container.meta.id.clone(),
            metadata: container.config.metadata.clone(),
            state: state(container).into(),
            created_at: container.meta.created,
            started_at,
            finished_at,
            exit_code,
            image: Some(ImageSpec { image: image_name(self, container, &image.image), ..image }),
            image_ref: container.meta.image_ref.clone(),
            image_id: container.meta.image_id.clone(),
            reason: why,
            message,
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.clone(),
            log_path: container.meta.log_path.clone(),
            resources: Some(ContainerResources { linux: resources, ..ContainerResources::default() }),
            ..ContainerStatus::default()
        }
    }

    fn select_containers(&self, filter: Option<ContainerFilter>) -> Vec<Arc<Container>> {
        let filter = filter.unwrap_or_default();
        let fits = |container: &&Arc<Container>| {
            container.meta.id.starts_with(&filter.id)
                && container.meta.sandbox.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|wanted| wanted.state == i32::from(state(container)))
                && matches(&filter.label_selector, &container.config.labels)
        };
        self.state.read().containers.values().filter(fits).cloned().collect()
    }

    fn select_sandboxes(&self, filter: Option<PodSandboxFilter>) -> Vec<Arc<Sandbox>> {
        let filter = filter.unwrap_or_default();
        let all: Vec<Arc<Sandbox>> = self.state.read().sandboxes.values().cloned().collect();
        let fits = |sandbox: &Arc<Sandbox>| {
            sandbox.meta.lock().id.starts_with(&filter.id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|wanted| wanted.state == i32::from(Self::sandbox_state(sandbox)))
                && matches(&filter.label_selector, &sandbox.config.labels)
        };
        all.into_iter().filter(fits).collect()
    }

    fn list_sandboxes(&self, filter: Option<PodSandboxFilter>) -> Vec<PodSandbox> {
        let describe = |sandbox: Arc<Sandbox>| {
            let status = self.sandbox_status(&sandbox);
            PodSandbox {
                id: status.id,
                metadata: status.metadata,
                state: status.state,
                created_at: status.created_at,
                labels: status.labels,
                annotations: status.annotations,
                runtime_handler: status.runtime_handler,
            }
        };
        self.select_sandboxes(filter).into_iter().map(describe).collect()
    }

    fn list_containers(&self, filter: Option<ContainerFilter>) -> Vec<cri::v1::Container> {
        let describe = |container: Arc<Container>| cri::v1::Container {
            id: container.meta.id.clone(),
            pod_sandbox_id: container.meta.sandbox.clone(),
            metadata: container.config.metadata.clone(),
            image: container.config.image.clone(),
            image_ref: container.meta.image_ref.clone(),
            image_id: container.meta.image_id.clone(),
            state: state(&container).into(),
            created_at: container.meta.created,
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        };
        self.select_containers(filter).into_iter().map(describe).collect()
    }

    fn running(&self, id: &str) -> Result<Arc<Container>, RuntimeError> {
        let container = self.container(id)?;
        match container.running() {
            Some(_) => Ok(container),
            None => Err(RuntimeError::Conflict(format!("container {id} is not running"))),
        }
    }

    /// Asks a container's shim for something and waits for its word.
    fn ask_shim(&self, container: &Container, kind: Kind) -> Result<(), RuntimeError> {
        use std::io::{Read as _, Write as _};
        let step = || "talk to the container's shim".to_owned();
        let mut socket = sys::sockets::connect(&container.directory.join("shim.sock")).doing(step)?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).doing(step)?;
        let mut bytes = Vec::new();
        attach::put(&mut bytes, kind, b"");
        socket.write_all(&bytes).doing(step)?;
        bytes.clear();
        let mut buffer = [0; 1024];
        loop {
            match attach::take(&mut bytes) {
                Ok(Some(frame)) if frame.kind == Kind::Done => return Ok(()),
                Ok(Some(frame)) => {
                    return Err(RuntimeError::Invalid(String::from_utf8_lossy(&frame.data).into_owned()));
                }
                Ok(None) => {}
                Err(error) => return Err(RuntimeError::Invalid(error.to_string())),
            }
            match socket.read(&mut buffer).doing(step)? {
                0 => return Err(RuntimeError::NotFound("the container's shim is gone".to_owned())),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn update_resources(
        &self,
        container: &Container,
        asked: &LinuxContainerResources,
    ) -> Result<(), RuntimeError> {
        let group = sys::cgroups::Hierarchy::detect().doing(|| "find the control groups".to_owned())?;
        let group = group.group(&container.meta.cgroup);
        let merged = merge(container.resources.lock().clone().unwrap_or_default(), asked);
        if container.running().is_some() {
            let group = group.ok_or_else(|| RuntimeError::NotFound("the control group".to_owned()))?;
            group.limit(&limits(asked)).doing(|| "set limits".to_owned())?;
        }
        // A container that starts later starts with these.
        let path = container.directory.join("spec.json");
        if let Some(mut spec) = super::records::read::<crate::shim::spec::Spec>(&path)? {
            spec.resources = limits(&merged);
            super::records::write(&path, &spec)?;
        }
        *container.resources.lock() = Some(merged);
        Ok(())
    }
}

/// What is not said stays as it was.
fn merge(mut before: LinuxContainerResources, asked: &LinuxContainerResources) -> LinuxContainerResources {
    for (old, new) in [
        (&mut before.cpu_period, asked.cpu_period),
        (&mut before.cpu_quota, asked.cpu_quota),
        (&mut before.cpu_shares, asked.cpu_shares),
        (&mut before.memory_limit_in_bytes, asked.memory_limit_in_bytes),
        (&mut before.memory_swap_limit_in_bytes, asked.memory_swap_limit_in_bytes),
        (&mut before.oom_score_adj, asked.oom_score_adj),
    ] {
        if new != 0 {
            *old = new;
        }
    }
    for (old, new) in
        [(&mut before.cpuset_cpus, &asked.cpuset_cpus), (&mut before.cpuset_mems, &asked.cpuset_mems)]
    {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    if !asked.hugepage_limits.is_empty() {
        before.hugepage_limits.clone_from(&asked.hugepage_limits);
    }
    before.unified.extend(asked.unified.clone());
    before
}

/// The name that people know an image by: a tag, or else what was asked for.
fn image_name(runtime: &Runtime, container: &Container, asked: &str) -> String {
    let image = runtime.images.find(&container.meta.image_id);
    image.and_then(|image| image.tags.first().cloned()).unwrap_or_else(|| asked.to_owned())
}

fn one<T: Send + 'static>(answer: T) -> Response<ResponseStream<T>> {
    Response::new(Box::pin(stream::iter([Ok(answer)])))
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for Served {
    async fn version(&self, _: Request<VersionRequest>) -> Reply<VersionResponse> {
        Ok(Response::new(VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "ferry".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn run_pod_sandbox(&self, request: Request<RunPodSandboxRequest>) -> Reply<RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("no sandbox config"))?;
        let made =
            self.blocking(move |runtime| runtime.run_sandbox(config, &request.runtime_handler)).await?;
        let pod_sandbox_id = made.meta.lock().id.clone();
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Reply<StopPodSandboxResponse> {
        if let Ok(sandbox) = self.sandbox(&request.into_inner().pod_sandbox_id) {
            self.stop_sandbox(&sandbox).await?;
        }
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Reply<RemovePodSandboxResponse> {
        if let Ok(sandbox) = self.sandbox(&request.into_inner().pod_sandbox_id) {
            self.remove_sandbox(&sandbox).await?;
        }
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Reply<PodSandboxStatusResponse> {
        let sandbox = self.sandbox(&request.into_inner().pod_sandbox_id)?;
        let id = sandbox.meta.lock().id.clone();
        let containers = self.containers_of(&id);
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(self.sandbox_status(&sandbox)),
            containers_statuses: containers
                .iter()
                .map(|container| self.0.container_status(container))
                .collect(),
            timestamp: super::now(),
            ..PodSandboxStatusResponse::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Reply<ListPodSandboxResponse> {
        let items = self.list_sandboxes(request.into_inner().filter);
        Ok(Response::new(ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Reply<CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("no container config"))?;
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let made = self
            .blocking(move |runtime| {
                let pod = request.sandbox_config.unwrap_or_else(|| sandbox.config.clone());
                runtime.create_container(&sandbox, config, &pod)
            })
            .await?;
        Ok(Response::new(CreateContainerResponse { container_id: made.meta.id.clone() }))
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Reply<StartContainerResponse> {
        let container = self.container(&request.into_inner().container_id)?;
        self.0.start_container(&container).await?;
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<StopContainerRequest>) -> Reply<StopContainerResponse> {
        let request = request.into_inner();
        if let Ok(container) = self.container(&request.container_id) {
            self.0.stop_container(&container, request.timeout).await?;
        }
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Reply<RemoveContainerResponse> {
        if let Ok(container) = self.container(&request.into_inner().container_id) {
            self.0.remove_container(&container).await?;
        }
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Reply<ListContainersResponse> {
        let containers = self.0.list_containers(request.into_inner().filter);
        Ok(Response::new(ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Reply<ContainerStatusResponse> {
        let container = self.container(&request.into_inner().container_id)?;
        let status = self.0.container_status(&container);
        Ok(Response::new(ContainerStatusResponse {
            status: Some(status),
            ..ContainerStatusResponse::default()
        }))
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Reply<UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let container = self.container(&request.container_id)?;
        let asked = request.linux.unwrap_or_default();
        self.blocking(move |runtime| runtime.update_resources(&container, &asked)).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Reply<UpdatePodSandboxResourcesResponse> {
        // The pod's group is the kubelet's, which has set it by now; a sandbox holds nothing else.
        self.sandbox(&request.into_inner().pod_sandbox_id)?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Reply<ReopenContainerLogResponse> {
        let container = self.container(&request.into_inner().container_id)?;
        if container.running().is_none() {
            return Err(Status::failed_precondition("container is not running"));
        }
        self.blocking(move |runtime| runtime.ask_shim(&container, Kind::Reopen)).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Reply<ExecResponse> {
        let request = request.into_inner();
        let container = self.running(&request.container_id)?;
        let (stdin, stdout, stderr) = (request.stdin, request.stdout, request.stderr);
        let wanted = Wanted { stdin, stdout, stderr: stderr && !request.tty, terminal: request.tty };
        let url = self.streaming.address(Ticket::Exec { container, command: request.cmd, wanted })?;
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Reply<AttachResponse> {
        let request = request.into_inner();
        let container = self.running(&request.container_id)?;
        let (stdin, stdout, stderr) = (request.stdin, request.stdout, request.stderr);
        let wanted = Wanted { stdin, stdout, stderr: stderr && !request.tty, terminal: request.tty };
        Ok(Response::new(AttachResponse {
            url: self.streaming.address(Ticket::Attach { container, wanted })?,
        }))
    }

    async fn port_forward(&self, request: Request<PortForwardRequest>) -> Reply<PortForwardResponse> {
        let sandbox = self.sandbox(&request.into_inner().pod_sandbox_id)?;
        if !sandbox.ready() {
            return Err(Status::failed_precondition("the sandbox is not ready"));
        }
        Ok(Response::new(PortForwardResponse {
            url: self.streaming.address(Ticket::PortForward { sandbox })?,
        }))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Reply<ExecSyncResponse> {
        let request = request.into_inner();
        let container = self.container(&request.container_id)?;
        let timeout = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
        let output = self.0.exec_sync(&container, request.cmd, timeout).await?;
        Ok(Response::new(ExecSyncResponse {
            stdout: output.stdout,
            stderr: output.stderr,
            exit_code: output.code,
        }))
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Reply<ContainerStatsResponse> {
        let container = self.container(&request.into_inner().container_id)?;
        let stats = self.blocking(move |runtime| Ok(runtime.container_stats(&container))).await?;
        Ok(Response::new(ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Reply<ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let filter = ContainerFilter {
            id: filter.id,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
            state: None,
        };
        let chosen = self.select_containers(Some(filter));
        let stats = self
            .blocking(move |runtime| {
                let running = chosen.iter().filter(|container| container.running().is_some());
                Ok(running.map(|container| runtime.container_stats(container)).collect())
            })
            .await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Reply<PodSandboxStatsResponse> {
        let sandbox = self.sandbox(&request.into_inner().pod_sandbox_id)?;
        let stats = self.blocking(move |runtime| Ok(runtime.sandbox_stats(&sandbox))).await?;
        Ok(Response::new(PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Reply<ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let filter = PodSandboxFilter { id: filter.id, label_selector: filter.label_selector, state: None };
        let chosen = self.select_sandboxes(Some(filter));
        let stats = self
            .blocking(move |runtime| {
                Ok(chosen.iter().map(|sandbox| runtime.sandbox_stats(sandbox)).collect())
            })
            .await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Reply<UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        if let Some(network) = network.filter(|network| !network.pod_cidr.is_empty()) {
            *self.pod_ranges.write() = network.pod_cidr.split(',').map(str::to_owned).collect();
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Reply<StatusResponse> {
        let network = self.plugins.configuration(&self.pod_ranges.read());
        let condition = |kind: &str, problem: Option<String>| RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: if problem.is_some() { "NetworkPluginNotReady".to_owned() } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let conditions = vec![
            condition("RuntimeReady", None),
            condition("NetworkReady", network.err().map(|e| e.to_string())),
        ];
        let features = RuntimeHandlerFeatures { recursive_read_only_mounts: true, ..Default::default() };
        let handler = |name: &str| RuntimeHandler { name: name.to_owned(), features: Some(features.clone()) };
        Ok(Response::new(StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            runtime_handlers: vec![handler(""), handler("ferry")],
            features: Some(RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
            ..StatusResponse::default()
        }))
    }

    async fn runtime_config(&self, _: Request<RuntimeConfigRequest>) -> Reply<RuntimeConfigResponse> {
        Ok(Response::new(RuntimeConfigResponse {
            linux: Some(LinuxRuntimeConfiguration { cgroup_driver: CgroupDriver::Cgroupfs.into() }),
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Reply<ResponseStream<ContainerEventResponse>> {
        let events = stream::unfold(self.events.subscribe(), |mut receiver| async {
            match receiver.recv().await {
                Ok(event) => Some((Ok(event), receiver)),
                // The listener missed some: it has to look again, and reconnecting makes it.
                Err(RecvError::Lagged(_)) => Some((Err(Status::data_loss("events were missed")), receiver)),
                Err(RecvError::Closed) => None,
            }
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> Reply<ResponseStream<StreamPodSandboxesResponse>> {
        let pod_sandboxes = self.list_sandboxes(request.into_inner().filter);
        Ok(one(StreamPodSandboxesResponse { pod_sandboxes }))
    }

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Reply<ResponseStream<StreamContainersResponse>> {
        let containers = self.0.list_containers(request.into_inner().filter);
        Ok(one(StreamContainersResponse { containers }))
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> Reply<CheckpointContainerResponse> {
        Err(Status::unimplemented("checkpoints are not supported"))
    }
}
