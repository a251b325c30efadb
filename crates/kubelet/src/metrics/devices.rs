//! Metrics of device plugins and of the pod resources API.

use std::time::Instant;

use base::metrics::{HistogramVec, IntCounterVec, Metrics, MetricsError};

use super::DEFAULT;

/// Metrics of device plugins.
#[derive(Clone, Debug)]
pub struct DeviceMetrics {
    registrations: IntCounterVec,
    allocations: HistogramVec,
}

impl DeviceMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            registrations: metrics.counters(
                "kubelet_device_plugin_registration_total",
                "Cumulative number of device plugin registrations. Broken down by resource name.",
                &["resource_name"],
            )?,
            allocations: metrics.histograms(
                "kubelet_device_plugin_alloc_duration_seconds",
                "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
                &["resource_name"],
                &DEFAULT,
            )?,
        })
    }

    pub fn registered(&self, resource: &str) {
        self.registrations.with_label_values(&[resource]).inc();
    }

    pub fn allocated(&self, resource: &str, begun: Instant) {
        self.allocations.with_label_values(&[resource]).observe(begun.elapsed().as_secs_f64());
    }
}

/// Calls of the pod resources API: all, and those of each method with their errors.
#[derive(Clone, Debug)]
pub struct PodResourcesMetrics {
    requests: IntCounterVec,
    methods: [(&'static str, IntCounterVec, IntCounterVec); 3],
}

impl PodResourcesMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let counter = |name: &str, help: &str| metrics.counters(name, help, &["server_api_version"]);
        let of_method = |method: &'static str, suffix: &str, call: &str| {
            let requests = counter(
                &format!("kubelet_pod_resources_endpoint_requests_{suffix}"),
                &format!(
                    "Number of requests to the PodResource {call} endpoint. Broken down by server api version."
                ),
            )?;
            let errors = counter(
                &format!("kubelet_pod_resources_endpoint_errors_{suffix}"),
                &format!(
                    "Number of requests to the PodResource {call} endpoint which returned error. Broken down by \
                     server api version."
                ),
            )?;
            Ok::<_, MetricsError>((method, requests, errors))
        };
        Ok(Self {
            requests: counter(
                "kubelet_pod_resources_endpoint_requests_total",
                "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
            )?,
            methods: [
                of_method("List", "list", "List")?,
                of_method("GetAllocatableResources", "get_allocatable", "GetAllocatableResources")?,
                of_method("Get", "get", "Get")?,
            ],
        })
    }

    /// Records a call.
    pub fn called(&self, method: &str, failed: bool) {
        self.requests.with_label_values(&["v1"]).inc();
        if let Some((_, requests, errors)) = self.methods.iter().find(|(name, ..)| *name == method) {
            requests.with_label_values(&["v1"]).inc();
            if failed {
                errors.with_label_values(&["v1"]).inc();
            }
        }
    }
}
