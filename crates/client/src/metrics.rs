//! Metrics of requests of this process to API servers, with Kubernetes' names.

use std::sync::LazyLock;
use std::time::Duration;

use base::metrics::{HistogramOpts, HistogramVec, IntCounterVec, Metrics, MetricsError, Opts};
use http::Method;

const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Requests of all clients of the process: hosts are those of its kubeconfigs.
static REQUESTS: LazyLock<Result<RequestMetrics, MetricsError>> = LazyLock::new(RequestMetrics::new);

struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

impl RequestMetrics {
    fn new() -> Result<Self, MetricsError> {
        let total = Opts::new(
            "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
        );
        let duration = HistogramOpts::new(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
        );
        Ok(Self {
            total: IntCounterVec::new(total, &["code", "method", "host"])?,
            duration: HistogramVec::new(duration.buckets(BUCKETS.to_vec()), &["verb", "host"])?,
        })
    }
}

/// Adds the metrics of this process' clients to a registry. They are shared by all registries.
pub fn register_metrics(metrics: &Metrics) -> Result<(), MetricsError> {
    if let Ok(requests) = &*REQUESTS {
        metrics.add(requests.total.clone())?;
        metrics.add(requests.duration.clone())?;
    }
    Ok(())
}

/// Records a response; `code` is `None` if there was none.
pub(crate) fn record(method: &Method, host: &str, code: Option<u16>, took: Duration) {
    let Ok(requests) = &*REQUESTS else { return };
    let method = name(method);
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    requests.total.with_label_values(&[&*code, method, host]).inc();
    requests.duration.with_label_values(&[method, host]).observe(took.as_secs_f64());
}

fn name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
