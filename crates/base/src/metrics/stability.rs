//! Kubernetes' stability levels of metrics.

/// Names of metrics of level STABLE, sorted.
const STABLE: [&str; 37] = [
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_admission_webhook_admission_duration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_total",
    "apiserver_requested_deprecated_apis",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "cronjob_controller_job_creation_skew_duration_seconds",
    "job_controller_job_pods_finished_total",
    "job_controller_job_sync_duration_seconds",
    "job_controller_job_syncs_total",
    "job_controller_jobs_finished_total",
    "kube_pod_resource_limit",
    "kube_pod_resource_request",
    "kubernetes_healthcheck",
    "kubernetes_healthchecks_total",
    "node_collector_evictions_total",
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "pod_cpu_usage_seconds_total",
    "pod_memory_working_set_bytes",
    "resource_scrape_error",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_pending_pods",
    "scheduler_pod_scheduling_attempts",
    "scheduler_preemption_attempts_total",
    "scheduler_preemption_victims",
    "scheduler_queue_incoming_pods_total",
    "scheduler_schedule_attempts_total",
    "scheduler_scheduling_attempt_duration_seconds",
];

/// Names of metrics of level BETA, sorted.
const BETA: [&str; 53] = [
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authentication_config_controller_automatic_reloads_total",
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authorization_config_controller_automatic_reloads_total",
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    "apiserver_flowcontrol_current_executing_requests",
    "apiserver_flowcontrol_current_executing_seats",
    "apiserver_flowcontrol_current_inqueue_requests",
    "apiserver_flowcontrol_dispatched_requests_total",
    "apiserver_flowcontrol_nominal_limit_seats",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "apiserver_storage_events_received_total",
    "apiserver_validating_admission_policy_check_duration_seconds",
    "apiserver_validating_admission_policy_check_total",
    "apiserver_validation_declarative_validation_mismatch_total",
    "apiserver_validation_declarative_validation_panic_total",
    "apiserver_watch_list_duration_seconds",
    "disabled_metrics_total",
    "endpoint_slice_controller_desired_endpoint_slices",
    "endpoint_slice_controller_endpoints_added_per_sync",
    "endpoint_slice_controller_endpoints_desired",
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "endpoint_slice_controller_num_endpoint_slices",
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "hidden_metrics_total",
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "job_controller_pod_failures_handled_by_failure_policy_total",
    "job_controller_terminated_pods_tracking_finalizer_total",
    "kubelet_image_volume_mounted_errors_total",
    "kubelet_image_volume_mounted_succeed_total",
    "kubelet_image_volume_requested_total",
    "kubernetes_build_info",
    "kubernetes_feature_enabled",
    "prober_probe_total",
    "registered_metrics_total",
    "running_managed_controllers",
    "scheduler_goroutines",
    "scheduler_permit_wait_duration_seconds",
    "scheduler_plugin_evaluation_total",
    "scheduler_pod_scheduling_sli_duration_seconds",
    "scheduler_unschedulable_pods",
    "workqueue_adds_total",
    "workqueue_depth",
    "workqueue_longest_running_processor_seconds",
    "workqueue_queue_duration_seconds",
    "workqueue_retries_total",
    "workqueue_unfinished_work_seconds",
    "workqueue_work_duration_seconds",
];

/// Deprecated metrics with the version that deprecated them, sorted by name.
const DEPRECATED: [(&str, &str); 10] = [
    ("apiserver_flowcontrol_request_concurrency_in_use", "1.31.0"),
    ("apiserver_flowcontrol_request_concurrency_limit", "1.30.0"),
    ("apiserver_request_slo_duration_seconds", "1.27.0"),
    ("apiserver_storage_db_total_size_in_bytes", "1.28.0"),
    ("apiserver_storage_objects", "1.34.0"),
    ("etcd_bookmark_counts", "1.36.0"),
    ("kube_apiserver_pod_logs_pods_logs_backend_tls_failure_total", "1.27.0"),
    ("kube_apiserver_pod_logs_pods_logs_insecure_backend_total", "1.27.0"),
    ("scrape_error", "1.29.0"),
    ("volume_operation_total_errors", "1.36.0"),
];

/// Stability level of a metric, and the version that deprecated it or an empty string. Metrics that Kubernetes does not
/// have are of level ALPHA.
#[must_use]
pub fn stability(name: &str) -> (&'static str, &'static str) {
    let level = match name {
        _ if STABLE.binary_search(&name).is_ok() => "STABLE",
        _ if BETA.binary_search(&name).is_ok() => "BETA",
        _ => "ALPHA",
    };
    let deprecated = DEPRECATED.binary_search_by_key(&name, |(deprecated, _)| deprecated);
    (level, deprecated.map_or("", |index| DEPRECATED[index].1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_for_the_search() {
        assert!(STABLE.is_sorted() && BETA.is_sorted() && DEPRECATED.is_sorted());
        assert_eq!(stability("apiserver_storage_objects"), ("STABLE", "1.34.0"));
        assert_eq!(stability("running_managed_controllers"), ("BETA", ""));
        assert_eq!(stability("ferry_trace_spans_dropped_total"), ("ALPHA", ""));
    }
}
