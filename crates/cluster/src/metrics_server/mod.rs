//! Resource metrics: in the control plane's process, or alone as `ferry metrics-server`.
//!
//! In the process, the component serves `metrics.k8s.io/v1beta1` through the aggregator until an APIService names another
//! server for it; then requests go there, and come back when that APIService is gone.

mod alone;
mod kubelet_tls;

pub use alone::{MetricsServerConfig, run_metrics_server};
pub use kubelet_tls::KubeletClientConfig;

use std::sync::Arc;

use ::metrics::{
    Adapter, CUSTOM_GROUP, CUSTOM_VERSIONS, EXTERNAL_GROUP, EXTERNAL_VERSION, GROUP, HISTORY_GROUP,
    HISTORY_RESOURCES, HISTORY_VERSION, RESOURCES, ResourceMetrics, ResourceMetricsConfig, ServedResource,
    VERSION,
};
use apiserver::ApiServer;
use apiserver::aggregate::Extension;
use apiserver::discovery::{ApiResource, GroupVersion};
use apiserver::serve::{RequestBody, ResponseBody};
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ClientError};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use machinery::status::Status;
use runtime::LeaderElection;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::ClusterError;
use crate::addons::{binding, ensure, resource};
use crate::components::{identity, run_while_leading};

/// The user of the component inside the control plane's process.
pub(crate) const USER: &str = "system:serviceaccount:kube-system:ferry-metrics";
const LEASE: &str = "ferry-metrics";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The component as an extension server of this process.
struct InProcess(Arc<ResourceMetrics>);

/// A group version; the priorities are those of metrics-server's APIService.
fn group_version(
    group: &'static str,
    version: &'static str,
    version_priority: i32,
    served: &[ServedResource],
) -> GroupVersion {
    let resource = |served: &ServedResource| ApiResource {
        name: served.name.into(),
        singular: "".into(),
        kind: served.kind.into(),
        namespaced: served.namespaced,
        verbs: served.verbs.iter().map(|verb| (*verb).into()).collect(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: "".into(),
        response: (group.into(), version.into()),
        subresources: Vec::new(),
    };
    GroupVersion {
        group: group.into(),
        version: version.into(),
        group_priority: 100,
        version_priority,
        stale: false,
        resources: served.iter().map(resource).collect(),
    }
}

/// The adapter as an extension server of this process, for one of its group versions.
struct AdapterInProcess {
    adapter: Arc<Adapter>,
    group: &'static str,
    version: &'static str,
    version_priority: i32,
}

/// The resource that stands for all external metrics, as adapters list it.
const EXTERNAL: ServedResource = ServedResource {
    name: "externalmetrics",
    kind: "ExternalMetricValueList",
    namespaced: true,
    verbs: &["get"],
};

impl Extension for AdapterInProcess {
    /// Custom metrics come and go with pods, so discovery does not list them.
    fn discovery(&self) -> GroupVersion {
        let served: &[ServedResource] = if self.group == EXTERNAL_GROUP { &[EXTERNAL] } else { &[] };
        group_version(self.group, self.version, self.version_priority, served)
    }

    fn call(&self, request: Request<RequestBody>) -> BoxFuture<'_, Response<ResponseBody>> {
        let (head, _) = request.into_parts();
        let answer = self.adapter.answer(&head.method, &head.uri);
        Box::pin(std::future::ready(answer.map(ResponseBody::Full)))
    }
}

/// The history of usage as an extension server of this process.
struct HistoryInProcess {
    component: Arc<ResourceMetrics>,
    /// Requests that read the disk at once: each holds a summary of every series in memory.
    readers: Arc<Semaphore>,
}

const HISTORY_READERS: usize = 2;

impl Extension for HistoryInProcess {
    fn discovery(&self) -> GroupVersion {
        group_version(HISTORY_GROUP, HISTORY_VERSION, 100, &HISTORY_RESOURCES)
    }

    fn call(&self, request: Request<RequestBody>) -> BoxFuture<'_, Response<ResponseBody>> {
        let (head, _) = request.into_parts();
        let (component, readers) = (Arc::clone(&self.component), Arc::clone(&self.readers));
        Box::pin(async move {
            let place = readers.acquire_owned().await;
            let reading = tokio::task::spawn_blocking(move || {
                let _place = place;
                component.answer_history(&head.method, &head.uri)
            });
            let answer = reading.await.unwrap_or_else(|error| ::metrics::refusal(&Status::internal(&error)));
            answer.map(ResponseBody::Full)
        })
    }
}

impl Extension for InProcess {
    fn discovery(&self) -> GroupVersion {
        group_version(GROUP, VERSION, 100, &RESOURCES)
    }

    fn call(&self, request: Request<RequestBody>) -> BoxFuture<'_, Response<ResponseBody>> {
        let (head, _) = request.into_parts();
        let answer = self.0.answer(&head.method, &head.uri, &head.headers);
        Box::pin(std::future::ready(answer.map(ResponseBody::Full)))
    }
}

/// Lets a component lead until it is dropped.
struct Leadership(Arc<ResourceMetrics>);

impl Leadership {
    fn begin(component: &Arc<ResourceMetrics>) -> Self {
        component.set_leading(true);
        Self(Arc::clone(component))
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.0.set_leading(false);
    }
}

/// Starts the component and serves its group version by the API server of this process. With leader election, one
/// process of several pushes to sinks and records events.
pub(crate) fn start(
    config: &ResourceMetricsConfig,
    leader_election: bool,
    server: &Arc<ApiServer>,
    client: Client,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let tls = Arc::new(kubelet_tls::OfServer(Arc::clone(server)));
    let metrics = &server.chain.metrics;
    let component = ResourceMetrics::start(config.clone(), client.clone(), tls, metrics, clock, tasks);
    let component = component.map_err(ClusterError::Metrics)?;
    if leader_election && component.needs_leader() {
        component.set_leading(false);
        let (election, leading) = (LeaderElection::new(LEASE, identity()), Arc::clone(&component));
        run_while_leading(client, election, clock, tasks, move |scope| {
            let leadership = Leadership::begin(&leading);
            scope.spawn_until_stopped(async move {
                let _leadership = leadership;
                std::future::pending::<()>().await;
            });
        });
    }
    if let Some(adapter) = component.adapter() {
        let [preferred, other] = CUSTOM_VERSIONS;
        for (group, version, version_priority) in [
            (CUSTOM_GROUP, preferred, 200),
            (CUSTOM_GROUP, other, 100),
            (EXTERNAL_GROUP, EXTERNAL_VERSION, 100),
        ] {
            let adapter = Arc::clone(adapter);
            server.aggregator.register(Arc::new(AdapterInProcess {
                adapter,
                group,
                version,
                version_priority,
            }));
        }
    }
    if component.has_history() {
        server.aggregator.register(Arc::new(HistoryInProcess {
            component: Arc::clone(&component),
            readers: Arc::new(Semaphore::new(HISTORY_READERS)),
        }));
    }
    server.aggregator.register(Arc::new(InProcess(component)));
    Ok(())
}

/// Creates the roles of the component and of users who read metrics, unless they exist.
pub(crate) async fn install(administrator: &Client) -> Result<(), ClientError> {
    let roles = resource(RBAC, "clusterroles", false);
    let own = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": "ferry:metrics"},
        "rules": [
            {"apiGroups": [""], "resources": ["namespaces", "nodes", "pods", "services"], "verbs": ["list", "watch"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE],
                "verbs": ["get", "update"]},
        ],
    });
    ensure(administrator, &roles, "", &own).await?;
    let aggregate = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    let readers = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": {"name": "system:aggregated-metrics-reader", "labels": {
            aggregate("admin"): "true", aggregate("edit"): "true", aggregate("view"): "true",
        }},
        "rules": [
            {"apiGroups": [GROUP], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [HISTORY_GROUP], "resources": ["nodes", "pods"], "verbs": ["list"]},
        ],
    });
    ensure(administrator, &roles, "", &readers).await?;
    let bound =
        binding("ClusterRoleBinding", "ferry:metrics", "", ("ClusterRole", "ferry:metrics"), ("User", USER));
    ensure(administrator, &resource(RBAC, "clusterrolebindings", false), "", &bound).await
}
