//! What the server counts about requests.

use crate::context::Context;
use crate::request_info::{RequestInfo, Verb};
use base::metrics::{Metrics, MetricsError};
use prometheus::{HistogramVec, IntCounterVec};
use std::time::Duration;

#[derive(Clone)]
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

impl RequestMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            total: metrics.counters(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                &[
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                ],
            )?,
            duration: metrics.histograms(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
                &["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"],
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
        let verb = match is_apply(context) {
            true => "APPLY",
            false if is_connect(info) => "CONNECT",
            false => verb(info.verb.as_str()),
        };
        let dry_run = if context.query.text("dryRun") == "All" { "All" } else { "" };
        let scope = match (info.is_resource, info.name.is_empty(), info.in_namespace) {
            (false, _, _) => "",
            (true, false, _) => "resource",
            (true, true, true) => "namespace",
            (true, true, false) => "cluster",
        };
        let labels =
            [verb, dry_run, &info.group, &info.version, &info.resource, &info.subresource, scope, COMPONENT];
        let mut buffer = itoa::Buffer::new();
        let code = buffer.format(code);
        let [a, b, c, d, e, f, g, h] = labels;
        self.total.with_label_values(&[a, b, c, d, e, f, g, h, code]).inc();
        if info.verb != Verb::Watch {
            self.duration.with_label_values(&labels).observe(took.as_secs_f64());
        }
    }
}

const COMPONENT: &str = "apiserver";

/// Reports whether a patch is a server-side apply.
fn is_apply(context: &Context) -> bool {
    let media = context.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    context.info.verb == Verb::Patch
        && media.is_some_and(|media| media.starts_with("application/apply-patch"))
}

/// Reports whether a request connects its client with something else.
fn is_connect(info: &RequestInfo) -> bool {
    info.is_resource
        && matches!(
            (&*info.resource, &*info.subresource),
            ("pods", "exec" | "attach" | "portforward") | ("pods" | "services" | "nodes", "proxy")
        )
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
