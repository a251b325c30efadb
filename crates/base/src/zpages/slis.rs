//! `/metrics/slis`: outcomes of health checks, as service level indicators in a registry of their own.

use prometheus::{Encoder, Gauge, Opts, TextEncoder};

use crate::clock::Clock;
use crate::metrics::{Collector, IntCounterVec, IntGaugeVec, MetricsError, Registry};
use crate::readiness::CheckOutcome;

/// Counts the outcomes of health checks by check and probe.
pub struct HealthMetrics {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl HealthMetrics {
    pub fn new(clock: &Clock) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let last = Opts::new(
            "kubernetes_healthcheck",
            "[STABLE] This metric records the result of a single healthcheck.",
        );
        let total = Opts::new(
            "kubernetes_healthchecks_total",
            "[STABLE] This metric records the results of all healthcheck.",
        );
        let start = Gauge::new(
            "process_start_time_seconds",
            "[ALPHA] Start time of the process since unix epoch in seconds.",
        )?;
        start.set(clock.now().as_duration().as_secs_f64());
        register(&registry, &start)?;
        Ok(Self {
            last: register(&registry, &IntGaugeVec::new(last, &["name", "type"])?)?,
            total: register(&registry, &IntCounterVec::new(total, &["name", "status", "type"])?)?,
            registry,
        })
    }

    /// Records the outcome of a check of a probe.
    pub fn observe(&self, probe: &str, outcome: &CheckOutcome) {
        let name = outcome.name.as_str();
        let status = if outcome.result.is_ok() { "success" } else { "error" };
        self.last.with_label_values(&[name, probe]).set(i64::from(outcome.result.is_ok()));
        self.total.with_label_values(&[name, status, probe]).inc();
    }

    pub fn encode(&self) -> Result<Vec<u8>, MetricsError> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, metric: &C) -> Result<C, MetricsError> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_check_and_probe() {
        let metrics = HealthMetrics::new(&Clock::system()).expect("metrics");
        let outcome = |result| CheckOutcome { name: "etcd".to_owned(), result };
        metrics.observe("readyz", &outcome(Ok(())));
        metrics.observe("livez", &outcome(Ok(())));
        metrics.observe("readyz", &outcome(Err("down".to_owned())));
        let text = String::from_utf8(metrics.encode().expect("encoded")).expect("text");
        for line in [
            "kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 1",
            "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 0",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"error\",type=\"readyz\"} 1",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("\nprocess_start_time_seconds "));
    }
}
