//! Metrics of APIServices: those that are unavailable.

use std::collections::HashMap;

use base::metrics::{Collector, IntCounterVec, IntGaugeVec, Metrics, MetricsError};

#[derive(Clone)]
pub struct AggregatorMetrics {
    unavailable: IntGaugeVec,
    changes: IntCounterVec,
}

impl AggregatorMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            unavailable: metrics.gauges(
                "aggregator_unavailable_apiservice",
                "Gauge of APIServices which are marked as unavailable broken down by APIService name.",
                &["name"],
            )?,
            changes: metrics.counters(
                "aggregator_unavailable_apiservice_total",
                "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
                &["name", "reason"],
            )?,
        })
    }

    /// Sets the availability of an APIService.
    pub fn set(&self, name: &str, is_available: bool) {
        self.unavailable.with_label_values(&[name]).set(i64::from(!is_available));
    }

    /// Counts an APIService that became unavailable.
    pub fn lost(&self, name: &str, reason: &str) {
        self.changes.with_label_values(&[name, reason]).inc();
    }

    /// Removes a deleted APIService.
    pub fn remove(&self, name: &str) {
        let _ = self.unavailable.remove_label_values(&[name]);
        for family in self.changes.collect() {
            for metric in family.get_metric() {
                let labels: HashMap<&str, &str> =
                    metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
                if labels.get("name") == Some(&name) {
                    let _ = self.changes.remove(&labels);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    #[test]
    fn deleted_api_services_have_no_series() {
        let registry = Metrics::new(&Clock::system()).expect("a registry");
        let metrics = AggregatorMetrics::new(&registry).expect("registered");
        for number in 0..500 {
            let name = format!("v1.g{number}.example.com");
            metrics.set(&name, false);
            metrics.lost(&name, "EndpointsNotFound");
            metrics.lost(&name, "FailedDiscoveryCheck");
            metrics.remove(&name);
        }
        metrics.lost("v1.kept.example.com", "EndpointsNotFound");
        let text = String::from_utf8(registry.encode().expect("encoded")).expect("text");
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("aggregator_")).collect();
        let kept = "aggregator_unavailable_apiservice_total{name=\"v1.kept.example.com\",reason=\"EndpointsNotFound\"} 1";
        assert_eq!(rows, [kept]);
    }
}
