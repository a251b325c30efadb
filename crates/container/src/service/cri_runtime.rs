//! CRI's RuntimeService.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use cri::server::ResponseStream;
use cri::v1::*;
use futures_util::stream;
use streaming::RequestedStreams;
use sys::cgroups::Hierarchy;
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Response, Status};

use super::records::Container;
use super::streams::Ticket;
use super::{Runtime, RuntimeError};
use crate::attach::FrameType;

/// Shared handle to the runtime for the gRPC server.
#[derive(Clone)]
pub struct CriService(pub Arc<Runtime>);

impl Deref for CriService {
    type Target = Arc<Runtime>;

    fn deref(&self) -> &Arc<Runtime> {
        &self.0
    }
}

impl Runtime {
    /// Serves CRI on a socket until shutdown.
    pub fn serve<'a>(self: &'a Arc<Self>, listener: tokio::net::UnixListener) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let served = Arc::new(CriService(Arc::clone(self)));
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
                    tracing::error!(%error, "failed to serve exec, attach and port-forward");
                }
            };
            tokio::join!(cri::server::serve_routes(listener, route, self.tasks.stopping()), streaming);
        })
    }

    fn running(&self, id: &str) -> Result<Arc<Container>, RuntimeError> {
        let container = self.container(id)?;
        match container.running() {
            Some(_) => Ok(container),
            None => Err(RuntimeError::Conflict(format!("container {id} is not running"))),
        }
    }
}

pub(super) fn one<T: Send + 'static>(answer: T) -> Response<ResponseStream<T>> {
    Response::new(Box::pin(stream::iter([Ok(answer)])))
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for CriService {
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
        let request = request.into_inner();
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let id = sandbox.meta.lock().id.clone();
        let containers = self.containers_of(&id);
        let mut info = BTreeMap::new();
        if request.verbose {
            let ours = Arc::clone(&sandbox);
            let health = self.blocking(move |runtime| Ok(runtime.network_health(&ours))).await?;
            info.insert("network".to_owned(), health);
        }
        Ok(Response::new(PodSandboxStatusResponse {
            status: Some(self.sandbox_status(&sandbox)),
            containers_statuses: containers
                .iter()
                .map(|container| self.0.container_status(container))
                .collect(),
            timestamp: super::now(),
            info,
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
        // A started call is completed even if its caller disconnects, so that no untracked shim remains.
        let (done, outcome) = tokio::sync::oneshot::channel();
        let runtime = Arc::clone(&self.0);
        self.0.tasks.spawn(async move {
            let _ = done.send(runtime.start_container(&container).await);
        });
        outcome.await.map_err(|_| Status::unavailable("the runtime is stopping"))??;
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
        let requested = request.linux.unwrap_or_default();
        self.blocking(move |runtime| runtime.update_resources(&container, &requested)).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Reply<UpdatePodSandboxResourcesResponse> {
        // The kubelet owns the pod's cgroup and has set its limits by now; a sandbox has no other limits.
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
        self.blocking(move |runtime| runtime.request_shim(&container, FrameType::Reopen)).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Reply<ExecResponse> {
        let request = request.into_inner();
        let container = self.running(&request.container_id)?;
        let (stdin, stdout, stderr) = (request.stdin, request.stdout, request.stderr);
        let wanted =
            RequestedStreams { stdin, stdout, stderr: stderr && !request.tty, terminal: request.tty };
        let url = self.streaming.address(Ticket::Exec { container, command: request.cmd, wanted })?;
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Reply<AttachResponse> {
        let request = request.into_inner();
        let container = self.running(&request.container_id)?;
        let (stdin, stdout, stderr) = (request.stdin, request.stdout, request.stderr);
        let wanted =
            RequestedStreams { stdin, stdout, stderr: stderr && !request.tty, terminal: request.tty };
        Ok(Response::new(AttachResponse {
            url: self.streaming.address(Ticket::Attach { container, wanted })?,
        }))
    }

    async fn port_forward(&self, request: Request<PortForwardRequest>) -> Reply<PortForwardResponse> {
        let request = request.into_inner();
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        if !sandbox.ready() {
            return Err(Status::failed_precondition("the sandbox is not ready"));
        }
        let ports: Result<Vec<u16>, _> = request.port.into_iter().map(u16::try_from).collect();
        let ports = ports.map_err(|_| Status::invalid_argument("a port is out of range"))?;
        Ok(Response::new(PortForwardResponse {
            url: self.streaming.address(Ticket::PortForward { sandbox, ports })?,
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
        let filter = request.into_inner().filter;
        let stats = self.blocking(move |runtime| Ok(runtime.stats_of_containers(filter))).await?;
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
        let filter = request.into_inner().filter;
        let stats = self.blocking(move |runtime| Ok(runtime.stats_of_sandboxes(filter))).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Reply<UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        if let Some(network) = network.filter(|network| !network.pod_cidr.is_empty()) {
            let ranges = network.pod_cidr.split(',').map(str::to_owned).collect();
            let before = std::mem::replace(&mut *self.pod_ranges.write(), ranges);
            // Without a pod range the network plugins could not collect garbage until now.
            if before.is_empty() {
                self.blocking(|runtime| {
                    runtime.collect_networks();
                    Ok(())
                })
                .await?;
            }
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Reply<StatusResponse> {
        let network = self
            .blocking(|runtime| {
                let configuration = runtime.plugins.configuration(&runtime.pod_ranges.read())?;
                // The built-in network is ready once it has a range; STATUS is not needed.
                match configuration["plugins"][0]["type"] == crate::network::BUILT_IN {
                    true => Ok(()),
                    false => Ok(runtime.plugins.status(&configuration)?),
                }
            })
            .await;
        let condition = |kind: &str, reason: &str, problem: Option<String>| RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: if problem.is_some() { reason.to_owned() } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let without_groups =
            Hierarchy::detect().err().map(|error| format!("failed to find control groups: {error}"));
        let conditions = vec![
            condition("RuntimeReady", "ControlGroupsMissing", without_groups),
            condition("NetworkReady", "NetworkPluginNotReady", network.err().map(|e| e.to_string())),
        ];
        let features = RuntimeHandlerFeatures {
            recursive_read_only_mounts: true,
            user_namespaces: std::path::Path::new("/proc/self/ns/user").exists(),
        };
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
                // The subscriber missed events: an error makes it reconnect and relist.
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

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> Reply<ListMetricDescriptorsResponse> {
        Ok(Response::new(ListMetricDescriptorsResponse { descriptors: super::metrics::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> Reply<ListPodSandboxMetricsResponse> {
        let pod_metrics = self.blocking(|runtime| Ok(runtime.metrics())).await?;
        Ok(Response::new(ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Reply<ResponseStream<StreamContainerStatsResponse>> {
        let filter = request.into_inner().filter;
        let container_stats = self.blocking(move |runtime| Ok(runtime.stats_of_containers(filter))).await?;
        Ok(one(StreamContainerStatsResponse { container_stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Reply<ResponseStream<StreamPodSandboxStatsResponse>> {
        let filter = request.into_inner().filter;
        let pod_sandbox_stats = self.blocking(move |runtime| Ok(runtime.stats_of_sandboxes(filter))).await?;
        Ok(one(StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> Reply<ResponseStream<StreamPodSandboxMetricsResponse>> {
        let pod_sandbox_metrics = self.blocking(|runtime| Ok(runtime.metrics())).await?;
        Ok(one(StreamPodSandboxMetricsResponse { pod_sandbox_metrics }))
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> Reply<CheckpointContainerResponse> {
        Err(Status::unimplemented("checkpoints are not supported"))
    }
}
