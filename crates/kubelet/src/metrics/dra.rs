//! Metrics of dynamic resource allocation.

use std::collections::BTreeMap;
use std::time::Instant;

use base::metrics::{HistogramVec, IntGaugeVec, Metrics, MetricsError};

use crate::dra::ClaimInfo;

/// Buckets from 0.1 s to 40 s, as in Kubernetes.
fn buckets() -> Vec<f64> {
    (0..15).map(|at| 0.1 * 400_f64.powf(f64::from(at) / 14.0)).collect()
}

/// Label of claims of any driver.
const ANY_DRIVER: &str = "<any>";

#[derive(Clone, Debug)]
pub struct DraMetrics {
    operations: HistogramVec,
    calls: HistogramVec,
    claims: IntGaugeVec,
}

impl DraMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            operations: metrics.histograms(
                "dra_operations_duration_seconds",
                "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod \
                 when the pod starts or stops. Identified by the name of the operation (PrepareResources or \
                 UnprepareResources) and separated by the success of the operation. The number of failed operations \
                 is provided through the histogram's overall count.",
                &["operation_name", "is_error"],
                &buckets(),
            )?,
            calls: metrics.histograms(
                "dra_grpc_operations_duration_seconds",
                "Duration in seconds of the DRA gRPC operations",
                &["driver_name", "method_name", "grpc_status_code"],
                &buckets(),
            )?,
            claims: metrics.gauges(
                "dra_resource_claims_in_use",
                "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name \
                 label value) and across all drivers (special value <any> for driver_name). Note that the sum of all \
                 by-driver counts is not the total number of in-use ResourceClaims because the same ResourceClaim \
                 might use devices from different drivers. Instead, use the count for the <any> driver_name.",
                &["driver_name"],
            )?,
        })
    }

    pub fn operation(&self, name: &str, is_error: bool, begun: Instant) {
        let labels = [name, if is_error { "true" } else { "false" }];
        self.operations.with_label_values(&labels).observe(begun.elapsed().as_secs_f64());
    }

    pub fn called(&self, driver: &str, method: &str, code: tonic::Code, begun: Instant) {
        let code = if code == tonic::Code::Ok { "OK".to_owned() } else { format!("{code:?}") };
        self.calls.with_label_values(&[driver, method, &code]).observe(begun.elapsed().as_secs_f64());
    }

    /// Sets the numbers of prepared claims.
    pub fn in_use<'a>(&self, claims: impl Iterator<Item = &'a ClaimInfo>) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::from([(ANY_DRIVER, 0)]);
        for claim in claims.filter(|claim| claim.prepared) {
            *counts.entry(ANY_DRIVER).or_default() += 1;
            for driver in claim.driver_state.keys() {
                *counts.entry(driver).or_default() += 1;
            }
        }
        self.claims.reset();
        for (driver, count) in counts {
            self.claims.with_label_values(&[driver]).set(count);
        }
    }
}
