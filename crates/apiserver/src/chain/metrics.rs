//! What the server counts about requests.

use crate::context::Context;
use crate::request_info::Verb;
use base::metrics::{Metrics, MetricsError};
use prometheus::{HistogramVec, IntCounterVec};
use std::time::Duration;

#[derive(Clone)]
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

const BUCKETS: &[f64] =
    &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];

impl RequestMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            total: metrics.counters(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, group, version, resource, scope and code.",
                &["verb", "group", "version", "resource", "subresource", "scope", "code"],
            )?,
            duration: metrics.histograms(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, group, version, resource and scope.",
                &["verb", "group", "version", "resource", "subresource", "scope"],
                BUCKETS,
            )?,
        })
    }

    pub fn record(&self, context: &Context, code: u16, took: Duration) {
        let info = &context.info;
        // Names that no resource has would let clients grow the label set without end.
        if info.is_resource && code == 404 && info.name.is_empty() {
            return;
        }
        let verb = verb(info.verb.as_str());
        let scope = match (info.is_resource, info.name.is_empty(), info.in_namespace) {
            (false, _, _) => "",
            (true, false, _) => "resource",
            (true, true, true) => "namespace",
            (true, true, false) => "cluster",
        };
        let labels = [verb, &info.group, &info.version, &info.resource, &info.subresource, scope];
        let mut buffer = itoa::Buffer::new();
        let code = buffer.format(code);
        let [a, b, c, d, e, f] = labels;
        self.total.with_label_values(&[a, b, c, d, e, f, code]).inc();
        if info.verb != Verb::Watch {
            self.duration.with_label_values(&labels).observe(took.as_secs_f64());
        }
    }
}

fn verb(verb: &str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "OTHER",
    }
}
