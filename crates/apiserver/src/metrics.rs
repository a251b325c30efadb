//! Metrics of parts of the server that no request reaches with a registry: they belong to the process.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::metrics::{DEFAULT_BUCKETS, LabelLimit, Metrics, MetricsError, exponential_buckets};

/// Resources that have series of their own.
const RESOURCES: usize = 2000;

base::metric_table! {
    shared
    /// Metrics that all servers of the process share.
    pub struct ProcessMetrics {
        handshake_errors: counter("apiserver_tls_handshake_errors_total")
            "Number of requests dropped with 'TLS handshake error from' error";
        store_seconds: histograms("etcd_request_duration_seconds", &STORE_LABELS, &STORE_BUCKETS)
            "Store request latency in seconds for each operation and object type.";
        store_requests: counters("etcd_requests_total", &STORE_LABELS)
            "Store request counts for each operation and object type.";
        store_errors: counters("etcd_request_errors_total", &STORE_LABELS)
            "Store failed request counts for each operation and object type.";
        token_requests: counters("authentication_token_cache_request_total", &["status"])
            "Counter of lookups in the cache of the token webhook.";
        token_seconds: histograms("authentication_token_cache_request_duration_seconds", &["status"], DEFAULT_BUCKETS)
            "Durations of lookups in the cache of the token webhook, with the reviews of missing tokens.";
        token_fetches: counters("authentication_token_cache_fetch_total", &["status"])
            "Counter of token reviews that the token webhook answered.";
        token_active: gauges("authentication_token_cache_active_fetch_count", &["status"])
            "Token reviews in progress.";
        authorizer_evaluations: counters("apiserver_authorization_webhook_evaluations_total", &["name", "result"])
            "Round-trips to authorization webhooks.";
        authorizer_seconds: histograms("apiserver_authorization_webhook_duration_seconds", &["name", "result"], DEFAULT_BUCKETS)
            "Request latency in seconds of authorization webhooks.";
        authorizer_fail_open: counters("apiserver_authorization_webhook_evaluations_fail_open_total", &["name", "result"])
            "NoOpinion results due to webhook timeout or error.";
        condition_exclusions: counters("apiserver_authorization_match_condition_exclusions_total", &["type", "name"])
            "Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.";
        condition_errors: counters("apiserver_authorization_match_condition_evaluation_errors_total", &["type", "name"])
            "Total number of errors when an authorization webhook encounters a match condition error.";
        condition_seconds: histograms("apiserver_authorization_match_condition_evaluation_seconds", &["type", "name"], &CONDITION_BUCKETS)
            "Authorization match condition evaluation time in seconds.";
        transformation_seconds: histograms("apiserver_storage_transformation_duration_seconds", &["transformation_type", "transformer_prefix"], &exponential_buckets(5e-6, 2.0, 25))
            "Latencies in seconds of value transformation operations.";
        transformations: counters("apiserver_storage_transformation_operations_total", &["resource", "transformation_type", "status", "transformer_prefix"])
            "Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails.";
        address_allocations: counters("kube_apiserver_clusterip_allocator_allocation_total", &["cidr", "scope"])
            "Number of Cluster IPs allocations";
        port_allocations: counters("kube_apiserver_nodeport_allocator_allocation_total", &["scope"])
            "Number of NodePort allocations";
        valid_tokens: counter("serviceaccount_valid_tokens_total")
            "Cumulative valid projected service account tokens used";
        legacy_tokens: counter("serviceaccount_legacy_tokens_total")
            "Cumulative legacy service account tokens used";
        compilation_seconds: histogram("apiserver_cel_compilation_duration_seconds", DEFAULT_BUCKETS)
            "CEL compilation time in seconds.";
        evaluation_seconds: histogram("apiserver_cel_evaluation_duration_seconds", DEFAULT_BUCKETS)
            "CEL evaluation time in seconds.";
    }
}

const STORE_LABELS: [&str; 3] = ["operation", "group", "resource"];
const STORE_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Of match conditions of authorizers and admission webhooks.
pub const CONDITION_BUCKETS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

static PROCESS: LazyLock<Result<ProcessMetrics, MetricsError>> = LazyLock::new(|| {
    // Keeps the registration of names that every registry has out of the others.
    let metrics = ProcessMetrics::new(&Metrics::new(&Clock::system())?)?;
    api::custom::observe_expressions(|work, took| {
        if let Some(metrics) = process() {
            let seconds = match work {
                api::custom::ExpressionWork::Compilation => &metrics.compilation_seconds,
                api::custom::ExpressionWork::Evaluation => &metrics.evaluation_seconds,
            };
            seconds.observe(took.as_secs_f64());
        }
    });
    Ok(metrics)
});

/// Resources with series of their own.
static NAMES: LazyLock<LabelLimit> = LazyLock::new(|| LabelLimit::new(RESOURCES));

/// The metrics of the process.
pub fn process() -> Option<&'static ProcessMetrics> {
    PROCESS.as_ref().ok()
}

/// Adds the metrics of the process to a registry.
pub fn register(metrics: &Metrics) -> Result<(), MetricsError> {
    process().map_or(Ok(()), |process| process.register(metrics))
}

/// Labels of a resource: too many custom resources share a row.
pub fn resource_labels<'a>(group: &'a str, resource: &'a str) -> [&'a str; 2] {
    limited_labels(&NAMES, group, resource)
}

fn limited_labels<'a>(names: &LabelLimit, group: &'a str, resource: &'a str) -> [&'a str; 2] {
    let name = machinery::status::qualified(group, resource);
    if names.bound(&name) == &*name { [group, resource] } else { ["other", "other"] }
}

impl ProcessMetrics {
    /// Records a lookup of a token; `fetched` is the outcome of a review, if there was one.
    pub fn token_looked_up(&self, fetched: Option<bool>, begin: Instant) {
        let status = if fetched.is_some() { "miss" } else { "hit" };
        self.token_requests.with_label_values(&[status]).inc();
        self.token_seconds.with_label_values(&[status]).observe(begin.elapsed().as_secs_f64());
        if let Some(is_ok) = fetched {
            self.token_fetches.with_label_values(&[if is_ok { "ok" } else { "error" }]).inc();
        }
    }

    /// Records an encryption (`to_storage`) or a decryption of a value with `prefix` below a key of the store.
    pub fn transformed(&self, kind: &str, storage_key: &str, prefix: &[u8], is_ok: bool, begin: Instant) {
        // `k8s:enc:PROVIDER:VERSION:KEY:`, without the key.
        let text = std::str::from_utf8(prefix).unwrap_or_default();
        let end = text.match_indices(':').nth(3).map_or(0, |(at, _)| at + 1);
        let prefix = text.get(..end).filter(|text| !text.is_empty()).unwrap_or("identity");
        let mut parts = storage_key.trim_start_matches('/').split('/').skip(1);
        let group = parts.next().unwrap_or_default();
        let resource = parts.next().unwrap_or_default();
        let [group, resource] = resource_labels(if group == "core" { "" } else { group }, resource);
        let name = machinery::status::qualified(group, resource);
        let status = if is_ok { "OK" } else { "Unknown" };
        self.transformations.with_label_values(&[&*name, kind, status, prefix]).inc();
        let seconds = self.transformation_seconds.with_label_values(&[kind, prefix]);
        seconds.observe(begin.elapsed().as_secs_f64());
    }

    /// Records a call of an authorization webhook.
    pub fn authorizer_called(&self, name: &str, result: &str, took: Duration) {
        self.authorizer_evaluations.with_label_values(&[name, result]).inc();
        self.authorizer_seconds.with_label_values(&[name, result]).observe(took.as_secs_f64());
    }

    /// Records the match conditions of an authorization webhook.
    pub fn authorizer_conditions(&self, name: &str, outcome: &Result<bool, String>, took: Duration) {
        let labels = ["Webhook", name];
        self.condition_seconds.with_label_values(&labels).observe(took.as_secs_f64());
        match outcome {
            Ok(true) => {}
            Ok(false) => self.condition_exclusions.with_label_values(&labels).inc(),
            Err(_) => self.condition_errors.with_label_values(&labels).inc(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_resources_share_a_row() {
        // Not the limit of the process, which other tests need.
        let names = LabelLimit::new(RESOURCES);
        assert_eq!(limited_labels(&names, "apps", "deployments"), ["apps", "deployments"]);
        for number in 0..=RESOURCES {
            limited_labels(&names, "invented.example.com", &format!("r{number}"));
        }
        assert_eq!(limited_labels(&names, "invented.example.com", "one-more"), ["other", "other"]);
        assert_eq!(limited_labels(&names, "apps", "deployments"), ["apps", "deployments"]);
    }

    #[test]
    fn metrics_are_shared_by_registries() {
        let metrics = process().expect("metrics");
        for _ in 0..2 {
            let registry = Metrics::new(&Clock::system()).expect("a registry");
            register(&registry).expect("registered");
            let before = metrics.handshake_errors.get();
            metrics.handshake_errors.inc();
            assert!(metrics.handshake_errors.get() > before);
        }
        let (key, prefix) = ("/registry/core/transformed/ns/a", b"k8s:enc:secretbox:v1:key1:");
        metrics.transformed("to_storage", key, prefix, true, Instant::now());
        let labels = ["transformed", "to_storage", "OK", "k8s:enc:secretbox:v1:"];
        assert_eq!(metrics.transformations.with_label_values(&labels).get(), 1);
        metrics.token_looked_up(None, Instant::now());
        metrics.token_looked_up(Some(false), Instant::now());
        assert!(metrics.token_fetches.with_label_values(&["error"]).get() > 0);
    }
}
