//! `apiserver_externaljwt_*`.

use super::ExternalSignerError;
use base::clock::Clock;
use base::metrics::{HistogramVec, IntCounterVec, IntGauge, Metrics, MetricsError};
use std::time::Duration;

pub struct ExternalJwtMetrics {
    fetched: IntGauge,
    data: IntGauge,
    fetches: IntCounterVec,
    signatures: IntCounterVec,
    durations: HistogramVec,
    clock: Clock,
}

impl ExternalJwtMetrics {
    pub fn new(metrics: &Metrics, clock: &Clock) -> Result<Self, MetricsError> {
        const SECONDS: [f64; 14] =
            [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
        Ok(Self {
            fetched: metrics.gauge(
                "apiserver_externaljwt_fetch_keys_success_timestamp",
                "Unix Timestamp in seconds of the last successful FetchKeys request",
            )?,
            data: metrics.gauge(
                "apiserver_externaljwt_fetch_keys_data_timestamp",
                "Unix Timestamp in seconds of the last successful FetchKeys data_timestamp value returned by the external signer",
            )?,
            fetches: metrics.counters(
                "apiserver_externaljwt_fetch_keys_request_total",
                "Total attempts at syncing supported JWKs",
                &["code"],
            )?,
            signatures: metrics.counters(
                "apiserver_externaljwt_sign_request_total",
                "Total attempts at signing JWT",
                &["code"],
            )?,
            durations: metrics.histograms(
                "apiserver_externaljwt_request_duration_seconds",
                "Request duration and time for calls to external-jwt-signer",
                &["method", "code"],
                &SECONDS,
            )?,
            clock: clock.clone(),
        })
    }

    pub(super) fn called(&self, method: &str, code: &str, time: Duration) {
        self.durations.with_label_values(&[method, code]).observe(time.as_secs_f64());
    }

    /// Records a fetch, with the time of its data if it succeeded.
    pub(super) fn fetched(&self, outcome: &Result<i64, &ExternalSignerError>) {
        self.fetches.with_label_values(&[code(outcome)]).inc();
        if let Ok(data) = outcome {
            self.fetched.set(self.clock.now().as_second());
            self.data.set(*data);
        }
    }

    pub(super) fn signed(&self, outcome: &Result<String, ExternalSignerError>) {
        self.signatures.with_label_values(&[code(&outcome.as_ref())]).inc();
    }
}

fn code<T>(outcome: &Result<T, &ExternalSignerError>) -> &'static str {
    match outcome {
        Ok(_) => "OK",
        Err(ExternalSignerError::Call { source, .. }) => source.code,
        Err(_) => "unknown-non-grpc",
    }
}
