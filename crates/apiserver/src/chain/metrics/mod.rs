//! Request metrics of the server, with Kubernetes' names, labels and buckets.

mod authentication;
mod labels;
mod stored;
#[cfg(test)]
mod tests;
mod unserved;
mod watermark;

pub use authentication::{AuthenticationMetrics, RequestFilter};
pub use stored::StoredObjects;
pub use unserved::{CatalogueChanges, retain_served};
pub use watermark::Watermarks;

use crate::context::Context;
use crate::registry::Catalogue;
use crate::request_info::Verb;
use crate::serve::ResponseBody;
use crate::wire::reply::Reply;
use base::metrics::{Metrics, MetricsError};
use bytes::Bytes;
use futures_util::Stream;
use labels::Labels;
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

#[derive(Clone)]
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
    sli_duration: HistogramVec,
    response_sizes: HistogramVec,
    terminations: IntCounterVec,
    long_running: IntGaugeVec,
    deprecated: IntGaugeVec,
    /// Requests that execute.
    pub in_flight: Watermarks,
    /// Requests that wait for a seat.
    pub in_queue: Watermarks,
}

const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Response sizes from 1 kB to 1 GB.
const SIZES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

const COMMON: [&str; 7] = ["verb", "group", "version", "resource", "subresource", "scope", "component"];

/// Outcome of the chain that counts as a termination: the server rejected the request to protect itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    TooManyRequests,
    Timeout,
}

/// A long-running request; it ends on drop.
pub struct LongRunning(IntGauge);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl RequestMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let [verb, group, version, resource, subresource, scope, component] = COMMON;
        let with_dry_run = [verb, "dry_run", group, version, resource, subresource, scope, component];
        let with_code = [verb, group, version, resource, subresource, scope, component, "code"];
        let total = [verb, "dry_run", group, version, resource, subresource, scope, component, "code"];
        Ok(Self {
            total: metrics.counters(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                &total,
            )?,
            duration: metrics.histograms(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
                &with_dry_run,
                BUCKETS,
            )?,
            sli_duration: metrics.histograms(
                "apiserver_request_sli_duration_seconds",
                "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
                &COMMON,
                &BUCKETS[2..],
            )?,
            response_sizes: metrics.histograms(
                "apiserver_response_sizes",
                "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
                &COMMON,
                SIZES,
            )?,
            terminations: metrics.counters(
                "apiserver_request_terminations_total",
                "Number of requests which apiserver terminated in self-defense.",
                &with_code,
            )?,
            long_running: metrics.gauges(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component.",
                &COMMON,
            )?,
            deprecated: metrics.gauges(
                "apiserver_requested_deprecated_apis",
                "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
                &[group, version, resource, subresource, "removed_release"],
            )?,
            in_flight: metrics.add(Watermarks::new(
                "apiserver_current_inflight_requests",
                "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
            )?)?,
            in_queue: metrics.add(Watermarks::new(
                "apiserver_current_inqueue_requests",
                "Maximal number of queued requests in this apiserver per request kind in last second.",
            )?)?,
        })
    }

    /// Records a response. The size of a streamed one is recorded at its end.
    pub fn record(&self, context: &Context, reply: Reply, took: Duration) -> Reply {
        let Some(labels) = Labels::of(context) else { return reply };
        let mut buffer = itoa::Buffer::new();
        let code = buffer.format(reply.status().as_u16());
        let [a, b, c, d, e, f, g, h] = labels.with_dry_run();
        self.total.with_label_values(&[a, b, c, d, e, f, g, h, code]).inc();
        if let Some(termination) = *context.termination.lock() {
            let code = match termination {
                Termination::TooManyRequests => "429",
                Termination::Timeout => "504",
            };
            let [a, b, c, d, e, f, g] = labels.common();
            self.terminations.with_label_values(&[a, b, c, d, e, f, g, code]).inc();
        }
        if labels.is_deprecated {
            let Labels { group, version, resource, subresource, .. } = labels;
            self.deprecated.with_label_values(&[group, version, resource, subresource, ""]).set(1);
        }
        // Watches and streams have a duration of their own choice.
        if !context.is_long_running() {
            self.duration.with_label_values(&labels.with_dry_run()).observe(took.as_secs_f64());
            if labels.dry_run.is_empty() {
                let own = took.saturating_sub(context.record.waited());
                self.sli_duration.with_label_values(&labels.common()).observe(own.as_secs_f64());
            }
            if matches!(context.info.verb, Verb::Get | Verb::List) {
                return measured(reply, self.response_sizes.with_label_values(&labels.common()));
            }
        }
        reply
    }

    /// Removes the series of resources that are no longer served.
    pub fn retain_served(&self, catalogue: &Catalogue) {
        retain_served(&self.total, catalogue);
        for durations in [&self.duration, &self.sli_duration, &self.response_sizes] {
            retain_served(durations, catalogue);
        }
        retain_served(&self.terminations, catalogue);
        for gauges in [&self.long_running, &self.deprecated] {
            retain_served(gauges, catalogue);
        }
    }

    /// Counts a watch or a stream until the returned value is dropped.
    pub fn long_running(&self, context: &Context) -> Option<LongRunning> {
        let labels = Labels::of(context).filter(|_| context.is_long_running())?;
        let gauge = self.long_running.with_label_values(&labels.common());
        gauge.inc();
        Some(LongRunning(gauge))
    }
}

/// Observes the size of a response, at its end if it is streamed.
fn measured(reply: Reply, sizes: Histogram) -> Reply {
    if let Some(length) = reply.body().len() {
        sizes.observe(length as f64);
        return reply;
    }
    reply.map(|body| match body.into_pieces() {
        Ok(pieces) => ResponseBody::stream(MeasuredStream { pieces, length: 0, sizes }),
        Err(body) => body,
    })
}

struct MeasuredStream<S> {
    pieces: S,
    length: usize,
    sizes: Histogram,
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for MeasuredStream<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Bytes>> {
        let outcome = Pin::new(&mut self.pieces).poll_next(cx);
        if let Poll::Ready(Some(piece)) = &outcome {
            self.length += piece.len();
        }
        outcome
    }
}

impl<S> Drop for MeasuredStream<S> {
    fn drop(&mut self) {
        self.sizes.observe(self.length as f64);
    }
}
