//! The pod resources API on `pod-resources/kubelet.sock`: devices of pods, for monitoring agents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    NUMANode, PodResources, PodResourcesLister, TopologyInfo, serve_pod_resources_lister,
};
use objects::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use crate::cpus::CpuSet;
use crate::devices::NumaDevices;
use crate::lifecycle::members::is_sidecar;
use crate::lifecycle::phase::has_ended;
use crate::pods::{Workers, WorkingPod};
use crate::shared::Shared;

/// Requests per second, and requests at once, as in Kubernetes.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;
/// Delay of the next attempt to listen.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Token bucket of requests.
struct RateLimit(Mutex<(f64, Instant)>);

impl RateLimit {
    fn new(now: Instant) -> Self {
        Self(Mutex::new((BURST, now)))
    }

    fn allows(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let (tokens, last) = *state;
        let tokens = (tokens + now.saturating_duration_since(last).as_secs_f64() * RATE).min(BURST);
        let is_allowed = tokens >= 1.0;
        *state = (if is_allowed { tokens - 1.0 } else { tokens }, now);
        is_allowed
    }
}

struct Service {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    limit: RateLimit,
}

/// Serves the API until the kubelet stops.
pub async fn serve(shared: Arc<Shared>, workers: Arc<Workers>) {
    let directory = shared.config.directory.join("pod-resources");
    let service = Arc::new(Service { shared, workers, limit: RateLimit::new(Instant::now()) });
    loop {
        let listening = sys::directories::ensure(&directory, 0o750)
            .and_then(|()| cri::server::bind(&directory.join("kubelet.sock")));
        match listening {
            Ok(listener) => {
                let service = Arc::clone(&service);
                let route = move |request| {
                    let answer = serve_pod_resources_lister(Arc::clone(&service), request);
                    answer.unwrap_or_else(|| {
                        Box::pin(std::future::ready(Status::unimplemented("no such method").into_http()))
                    })
                };
                cri::server::serve_routes(listener, route, std::future::pending()).await;
            }
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "failed to serve pod resources, retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

impl Service {
    fn call<T>(
        &self,
        method: &str,
        answer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        if !self.limit.allows(Instant::now()) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let answer = answer();
        self.shared.metrics.pod_resources.called(method, answer.is_err());
        answer.map(Response::new)
    }

    /// Resources of the sidecars and regular containers of a pod.
    fn of_pod(&self, pod: &Pod) -> PodResources {
        let spec = pod.spec.iter();
        let sidecars = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten());
        let containers = sidecars.filter(|one| is_sidecar(one)).chain(spec.flat_map(|spec| &spec.containers));
        PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: containers.map(|container| self.of_container(pod, container)).collect(),
        }
    }

    fn of_container(&self, pod: &Pod, container: &Container) -> ContainerResources {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        ContainerResources {
            name: container.name.clone(),
            devices: rows(self.shared.devices.of_container(uid, &container.name)),
            cpu_ids: ids(&self.shared.cpus.exclusive_of(uid, &container.name).unwrap_or_default()),
            dynamic_resources: self.shared.dra.of_container(pod, container),
            ..ContainerResources::default()
        }
    }
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().filter_map(|cpu| i64::try_from(cpu).ok()).collect()
}

/// One row per device, as in Kubernetes.
fn rows(devices: NumaDevices) -> Vec<ContainerDevices> {
    let rows = devices.into_iter().flat_map(|(resource, devices)| {
        devices.into_iter().map(move |(id, nodes)| {
            let nodes: Vec<NUMANode> = nodes.into_iter().map(|id| NUMANode { id }).collect();
            ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id],
                topology: (!nodes.is_empty()).then_some(TopologyInfo { nodes }),
            }
        })
    });
    rows.collect()
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.call("List", || {
            let pods = self.workers.pods();
            let active = pods.iter().filter(|pod| !has_ended(pod));
            Ok(ListPodResourcesResponse { pod_resources: active.map(|pod| self.of_pod(pod)).collect() })
        })
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.call("GetAllocatableResources", || {
            let devices = rows(self.shared.devices.allocatable());
            let cpu_ids = ids(&self.shared.cpus.allocatable());
            Ok(AllocatableResourcesResponse { devices, cpu_ids, ..AllocatableResourcesResponse::default() })
        })
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let wanted = request.into_inner();
        self.call("Get", || {
            let found: Option<WorkingPod> = self.workers.find(&wanted.pod_namespace, &wanted.pod_name);
            let (name, namespace) = (&wanted.pod_name, &wanted.pod_namespace);
            let missing = || Status::unknown(format!("pod {name} in namespace {namespace} not found"));
            let pod = found.ok_or_else(missing)?;
            Ok(GetPodResourcesResponse { pod_resources: Some(self.of_pod(&pod)) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_above_the_rate_are_rejected() {
        let start = Instant::now();
        let limit = RateLimit::new(start);
        let allowed = |at: Duration, count: usize| (0..count).filter(|_| limit.allows(start + at)).count();
        assert_eq!(allowed(Duration::ZERO, 50), 10);
        assert_eq!(allowed(Duration::from_millis(35), 50), 3);
        assert_eq!(allowed(Duration::from_secs(60), 50), 10, "no more than the burst is saved");
    }

    #[test]
    fn every_device_has_a_row() {
        let devices = NumaDevices::from([(
            "example.com/gpu".to_owned(),
            [("a".to_owned(), vec![1]), ("b".to_owned(), Vec::new())].into(),
        )]);
        let rows = rows(devices);
        assert_eq!(rows.iter().map(|row| row.device_ids.clone()).collect::<Vec<_>>(), [["a"], ["b"]]);
        assert_eq!(rows[0].topology.as_ref().map(|topology| topology.nodes[0].id), Some(1));
        assert_eq!(rows[1].topology, None);
    }
}
