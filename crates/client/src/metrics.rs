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
    request_sizes: HistogramVec,
    response_sizes: HistogramVec,
    retries: IntCounterVec,
}

const SIZES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

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
        let sizes = |name: &str, help: &str| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(SIZES.to_vec()), &["verb", "host"])
        };
        let retries = Opts::new(
            "rest_client_request_retries_total",
            "Number of request retries, partitioned by status code, verb, and host.",
        );
        Ok(Self {
            request_sizes: sizes(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
            )?,
            response_sizes: sizes(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
            )?,
            retries: IntCounterVec::new(retries, &["code", "verb", "host"])?,
            total: IntCounterVec::new(total, &["code", "method", "host"])?,
            duration: HistogramVec::new(duration.buckets(BUCKETS.to_vec()), &["verb", "host"])?,
        })
    }
}

/// Adds the metrics of this process' clients to a registry. They are shared by all registries.
pub fn register_metrics(metrics: &Metrics) -> Result<(), MetricsError> {
    if let Ok(requests) = &*REQUESTS {
        metrics.add_shared(&requests.total, &[])?;
        metrics.add_shared(&requests.duration, &BUCKETS)?;
        metrics.add_shared(&requests.request_sizes, &SIZES)?;
        metrics.add_shared(&requests.response_sizes, &SIZES)?;
        metrics.add_shared(&requests.retries, &[])?;
    }
    Ok(())
}

/// Records the size of a response that was read as a whole.
pub(crate) fn record_response(method: &Method, host: &str, length: usize) {
    if let Ok(requests) = &*REQUESTS {
        requests.response_sizes.with_label_values(&[name(method), host]).observe(length as f64);
    }
}

/// Records a request that is sent again because of a response.
pub(crate) fn record_retry(method: &Method, host: &str, code: u16) {
    if let Ok(requests) = &*REQUESTS {
        requests.retries.with_label_values(&[&*code.to_string(), name(method), host]).inc();
    }
}

/// Records a response to a request with a body of `length`; `code` is `None` if there was none.
pub(crate) fn record(method: &Method, host: &str, length: usize, code: Option<u16>, took: Duration) {
    let Ok(requests) = &*REQUESTS else { return };
    let method = name(method);
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    requests.total.with_label_values(&[&*code, method, host]).inc();
    requests.duration.with_label_values(&[method, host]).observe(took.as_secs_f64());
    requests.request_sizes.with_label_values(&[method, host]).observe(length as f64);
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
