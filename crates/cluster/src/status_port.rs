//! Status ports of components: health and metrics. Those of the service proxy are in plain HTTP, those of controllers and
//! scheduler in HTTPS with delegated authorization.

use std::net::SocketAddr;
use std::sync::Arc;

use ::metrics::{ClockDiscipline, NodeMetrics};
use base::clock::Clock;
use base::metrics::{LabelPair, MetricFamily, Metrics};
use base::tasks::TaskGroup;
use base::zpages::{ComponentPages, Page, PageSettings};
use bytes::Bytes;
use client::Client;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response};
use http_body_util::Full;
use machinery::status::Status;
use proxy::health::{self, Answer};

use crate::component_checks::ComponentChecks;
use crate::components::StartedComponents;
use crate::delegated::{Pages, SecurePort};
use crate::{ClusterError, chain};

/// Address of a status port.
#[derive(Clone, Copy, Debug)]
pub struct StatusPort {
    pub address: SocketAddr,
    /// If true, the component requires the port. Otherwise another process of this machine may use it.
    pub needed: bool,
}

impl StatusPort {
    /// Serves `answer` until `tasks` stop.
    pub(crate) async fn open(
        self,
        purpose: &'static str,
        answer: Arc<dyn Answer>,
        tasks: &TaskGroup,
    ) -> Result<(), ClusterError> {
        let Self { address, needed } = self;
        match base::listen::listen(address) {
            Ok((listener, address)) => {
                tracing::info!(%address, purpose, "listening");
                let (listener, group) = (Arc::new(listener), tasks.clone());
                tasks.supervise(format!("port {address}"), move || {
                    health::serve(Arc::clone(&listener), Arc::clone(&answer), group.clone())
                });
                Ok(())
            }
            Err(error) if !needed => {
                tracing::warn!(%address, purpose, %error, "failed to listen");
                Ok(())
            }
            Err(source) => Err(ClusterError::Port { address, purpose, source }),
        }
    }
}

const PAGE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

fn page(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut page = Response::new(body.into());
    *page.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    let headers = page.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    page
}

/// The metrics of a process.
pub(crate) fn metrics_page(metrics: &Metrics) -> Response<Bytes> {
    match metrics.encode() {
        Ok(text) => page(200, PAGE, text),
        Err(error) => ::metrics::refusal(&Status::internal(&error)),
    }
}

/// `/metrics` of the machine, in plain HTTP as node-exporter serves it.
pub(crate) struct MachinePort(NodeMetrics);

impl Default for MachinePort {
    fn default() -> Self {
        Self(NodeMetrics::default().with_clock(clock_discipline))
    }
}

fn clock_discipline() -> Option<ClockDiscipline> {
    let state = sys::clock::discipline().ok()?;
    Some(ClockDiscipline {
        offset: state.offset,
        max_error: state.max_error,
        estimated_error: state.estimated_error,
        frequency_ratio: state.frequency_ratio,
        status: state.status,
        tai_offset: state.tai_offset,
        is_synchronized: state.is_synchronized,
    })
}

impl Answer for MachinePort {
    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        match path {
            "/metrics" => page(200, PAGE, self.0.page()),
            _ => page(404, TEXT, "404 page not found\n"),
        }
        .map(Full::new)
    }
}

/// Prefixes of the metrics of each component. Those of a process with several components are in one registry.
const OF_ALL: [&str; 7] = [
    "disabled_metrics_",
    "hidden_metrics_",
    "kubernetes_",
    "leader_election_",
    "process_",
    "registered_metrics_",
    "rest_client_",
];
const OF_CONTROLLERS: [&str; 23] = [
    "attachdetach_controller_",
    "cronjob_controller_",
    "device_taint_eviction_controller_",
    "endpoint_slice_controller_",
    "endpoint_slice_mirroring_controller_",
    "ephemeral_volume_controller_",
    "garbagecollector_controller_",
    "horizontal_pod_autoscaler_controller_",
    "job_controller_",
    "node_collector_",
    "node_ipam_controller_",
    "pod_gc_collector_",
    "pv_collector_",
    "replicaset_controller_",
    "resourceclaim_controller_",
    "retroactive_storageclass_",
    "root_ca_cert_publisher_",
    "running_managed_controllers",
    "statefulset_controller_",
    "storage_count_attachable_volumes_in_use",
    "taint_eviction_controller_",
    "ttl_after_finished_controller_",
    "workqueue_",
];
const OF_SCHEDULER: [&str; 1] = ["scheduler_"];

/// Keeps the metrics of `component`. The metrics of leases are those of its own lease.
fn is_of(component: &str, family: &mut MetricFamily) -> bool {
    let own: &[&str] = if component == "kube-scheduler" { &OF_SCHEDULER } else { &OF_CONTROLLERS };
    let name = family.name();
    if !OF_ALL.iter().chain(own).any(|prefix| name.starts_with(prefix)) {
        return false;
    }
    if name.starts_with("leader_election_") {
        let is_own = |label: &LabelPair| {
            label.name() != "name" || (label.value() == "kube-scheduler") == (component == "kube-scheduler")
        };
        family.mut_metric().retain(|metric| metric.get_label().iter().all(is_own));
    }
    true
}

/// Pages of controllers or scheduler.
struct SecurePages {
    component: &'static str,
    metrics: Metrics,
    checks: ComponentChecks,
    pages: Arc<ComponentPages>,
}

impl Pages for SecurePages {
    fn answer<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Response<Bytes>> {
        Box::pin(async move {
            let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
            let accept = head.headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
            let page = match path {
                "/metrics" => {
                    Page::metrics(self.metrics.encode_where(|family| is_of(self.component, family)))
                }
                "/metrics/resources" if self.component == "kube-scheduler" => {
                    Page::metrics(scheduler::pod_resources_page(&self.checks.scheduler_pods()))
                }
                _ => {
                    let page = self.pages.page(path, query, accept.unwrap_or_default()).await;
                    page.unwrap_or_else(Page::not_found)
                }
            };
            page.into_response()
        })
    }
}

/// The HTTPS port of controllers or scheduler.
#[derive(Clone, Debug)]
pub struct ComponentPort {
    pub component: &'static str,
    pub port: SecurePort,
    /// If true, the component fails without the port. Otherwise another process of this machine may use it.
    pub needed: bool,
    pub pages: PageSettings,
}

impl ComponentPort {
    /// Serves the port in a task of `tasks`.
    pub(crate) fn open(
        self,
        client: Client,
        metrics: &Metrics,
        started: &StartedComponents,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Result<(), ClusterError> {
        let component = self.component;
        let listening = match self.port.bind() {
            Ok(listening) => listening,
            Err(error) if !self.needed => {
                tracing::warn!(component, error = chain(&error), "failed to listen for health and metrics");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        tracing::info!(component, address = %listening.address, "listening for health and metrics");
        let (readiness, configz) = (started.checks.of(component), started.configz(component, self.pages));
        let pages = ComponentPages::with_configz(component, readiness, self.pages, configz, clock)
            .map_err(ClusterError::Metrics)?;
        let (metrics, checks) = (metrics.clone(), started.checks.clone());
        let pages = Arc::new(SecurePages { component, metrics, checks, pages });
        let (clock, group) = (clock.clone(), tasks.clone());
        tasks.spawn(async move {
            if let Err(error) = listening.serve(client, pages, &clock, &group).await {
                tracing::error!(component, error = chain(&error), "failed to listen for health and metrics");
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_match_registered_metrics() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        base::version::register_build_info(&metrics).expect("registered");
        client::register_metrics(&metrics).expect("registered");
        let (mut shared, mut own) = (metrics.families(), Vec::new());
        let names = |metrics: &Metrics| -> Vec<String> {
            metrics.families().into_iter().map(|family| family.name).collect()
        };
        let empty = names(&Metrics::new(&Clock::system()).expect("a registry"));
        let controllers = Metrics::new(&Clock::system()).expect("a registry");
        controllers::ControllerMetrics::new(&controllers).expect("registered");
        runtime::LoopMetrics::new(&controllers).expect("registered");
        let scheduler = Metrics::new(&Clock::system()).expect("a registry");
        scheduler::SchedulerMetrics::new(&scheduler).expect("registered");
        own.extend(names(&controllers).into_iter().filter(|name| !empty.contains(name)));
        let of_scheduler: Vec<_> =
            names(&scheduler).into_iter().filter(|name| !empty.contains(name)).collect();
        for (prefixes, names) in [(&OF_CONTROLLERS[..], &own), (&OF_SCHEDULER[..], &of_scheduler)] {
            for prefix in prefixes {
                assert!(names.iter().any(|name| name.starts_with(prefix)), "{prefix} has no metric");
            }
            for name in names {
                let is_kept = prefixes.iter().chain(&OF_ALL).any(|prefix| name.starts_with(prefix));
                assert!(is_kept, "{name} is on no page");
            }
        }
        shared.extend(controllers.families());
        for prefix in OF_ALL {
            let is_known = shared.iter().any(|family| family.name.starts_with(prefix));
            assert!(is_known, "{prefix} has no metric");
        }
    }

    #[test]
    fn page_has_only_metrics_of_its_component() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        base::version::register_build_info(&metrics).expect("registered");
        for name in [
            "apiserver_request_total",
            "authentication_attempts",
            "aggregator_unavailable_apiservice_total",
            "metrics_server_api_metric_freshness_seconds",
            "scheduler_schedule_attempts_total",
            "job_controller_job_syncs_total",
        ] {
            metrics.counter(name, "A counter.").expect("registered").inc();
        }
        let loops = runtime::LoopMetrics::new(&metrics).expect("registered");
        drop(loops.queue("job-controller"));
        loops.leader("kube-scheduler").set(1);
        loops.leader("kube-controller-manager").set(1);
        let names = |component: &str| {
            let text = metrics.encode_where(|family| is_of(component, family)).expect("encoded");
            String::from_utf8(text).expect("text")
        };
        let (scheduler, controllers) = (names("kube-scheduler"), names("kube-controller-manager"));
        for page in [&scheduler, &controllers] {
            assert!(page.contains("kubernetes_build_info{") && page.contains("process_cpu_seconds_total"));
            for other in ["apiserver_", "authentication_", "aggregator_", "metrics_server_"] {
                assert!(!page.contains(&format!("\n{other}")), "{other} is in {page}");
            }
        }
        assert!(scheduler.contains("\nscheduler_") && !controllers.contains("\nscheduler_"));
        for series in ["\nworkqueue_depth{", "\njob_controller_"] {
            assert!(controllers.contains(series) && !scheduler.contains(series), "{series}");
        }
        assert!(scheduler.contains("leader_election_master_status{name=\"kube-scheduler\"} 1"));
        assert!(!scheduler.contains("kube-controller-manager"), "{scheduler}");
    }
}
