//! Names, labels and buckets of the controllers' metrics: those of Kubernetes.

use base::metrics::{DEFAULT_BUCKETS, exponential_buckets as exponential};

base::metric_table! {
    /// Metrics of the job controller.
    pub struct JobMetrics {
        sync_seconds: histograms("job_controller_job_sync_duration_seconds", &["completion_mode", "result", "action"], &exponential(0.004, 2.0, 15))
            "The time it took to sync a job";
        syncs: counters("job_controller_job_syncs_total", &["completion_mode", "result", "action"])
            "The number of job syncs";
        finished: counters("job_controller_jobs_finished_total", &["completion_mode", "result", "reason"])
            "The number of finished jobs";
        external: counters("job_controller_jobs_by_external_controller_total", &["controller_name"])
            "The number of Jobs managed by an external controller";
        pods_finished: counters("job_controller_job_pods_finished_total", &["completion_mode", "result"])
            "The number of finished Pods that are fully tracked";
        policy_actions: counters("job_controller_pod_failures_handled_by_failure_policy_total", &["action"])
            "The number of failed Pods handled by failure policy, by the action of the matched rule";
        tracked_pods: counters("job_controller_terminated_pods_tracking_finalizer_total", &["event"])
            "The number of terminated pods that gained or lost the tracking finalizer";
        indexes_finished: counters("job_controller_job_finished_indexes_total", &["status", "backoffLimit"])
            "The number of finished indexes";
        pods_created: counters("job_controller_job_pods_creation_total", &["reason", "status"])
            "The number of Pods created by the Job controller, by the reason of their creation";
    }
}

base::metric_table! {
    /// Metrics of the horizontal pod autoscaler.
    pub struct AutoscalerMetrics {
        reconciliations: counters("horizontal_pod_autoscaler_controller_reconciliations_total", &["action", "error"])
            "Number of reconciliations of HPA controller, by the action taken and the kind of the first error";
        reconciliation_seconds: histograms("horizontal_pod_autoscaler_controller_reconciliation_duration_seconds", &["action", "error"], &exponential(0.001, 2.0, 15))
            "The time(seconds) that the HPA controller takes to reconcile once";
        computations: counters("horizontal_pod_autoscaler_controller_metric_computation_total", &["action", "error", "metric_type"])
            "Number of metric computations";
        computation_seconds: histograms("horizontal_pod_autoscaler_controller_metric_computation_duration_seconds", &["action", "error", "metric_type"], &exponential(0.001, 2.0, 15))
            "The time(seconds) that the HPA controller takes to calculate one metric";
        autoscalers: computed("horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", &[])
            "Current number of controlled HPA objects.";
        desired: computed("horizontal_pod_autoscaler_controller_desired_replicas", &["namespace", "hpa_name"])
            "Current desired replica count for HPA objects.";
    }
}

base::metric_table! {
    /// Metrics of the endpoint slice controller.
    pub struct SliceMetrics {
        added: histogram("endpoint_slice_controller_endpoints_added_per_sync", &exponential(2.0, 2.0, 15))
            "Number of endpoints added on each Service sync";
        removed: histogram("endpoint_slice_controller_endpoints_removed_per_sync", &exponential(2.0, 2.0, 15))
            "Number of endpoints removed on each Service sync";
        endpoints: computed("endpoint_slice_controller_endpoints_desired", &[])
            "Number of endpoints desired";
        slices: computed("endpoint_slice_controller_num_endpoint_slices", &[])
            "Number of EndpointSlices";
        desired_slices: computed("endpoint_slice_controller_desired_endpoint_slices", &[])
            "Number of EndpointSlices that would exist with perfect endpoint allocation";
        changes: counters("endpoint_slice_controller_changes", &["operation"])
            "Number of EndpointSlice changes";
        changed: histograms("endpoint_slice_controller_endpointslices_changed_per_sync", &["topology", "traffic_distribution"], DEFAULT_BUCKETS)
            "Number of EndpointSlices changed on each Service sync";
        syncs: counters("endpoint_slice_controller_syncs", &["result"])
            "Number of EndpointSlice syncs";
        distributions: computed("endpoint_slice_controller_services_count_by_traffic_distribution", &["traffic_distribution"])
            "Number of Services using some specific trafficDistribution";
    }
}

base::metric_table! {
    /// Metrics of the endpoint slice mirroring controller.
    pub struct MirroringMetrics {
        added: histogram("endpoint_slice_mirroring_controller_endpoints_added_per_sync", &exponential(2.0, 2.0, 15))
            "Number of endpoints added on each Endpoints sync";
        updated: histogram("endpoint_slice_mirroring_controller_endpoints_updated_per_sync", &exponential(2.0, 2.0, 15))
            "Number of endpoints updated on each Endpoints sync";
        removed: histogram("endpoint_slice_mirroring_controller_endpoints_removed_per_sync", &exponential(2.0, 2.0, 15))
            "Number of endpoints removed on each Endpoints sync";
        skipped: histogram("endpoint_slice_mirroring_controller_addresses_skipped_per_sync", &exponential(2.0, 2.0, 15))
            "Number of addresses skipped on each Endpoints sync: invalid ones, and those beyond the limit of a subset";
        seconds: histogram("endpoint_slice_mirroring_controller_endpoints_sync_duration", &exponential(0.001, 2.0, 15))
            "Duration of a sync of endpoints in seconds";
        endpoints: computed("endpoint_slice_mirroring_controller_endpoints_desired", &[])
            "Number of endpoints desired";
        slices: computed("endpoint_slice_mirroring_controller_num_endpoint_slices", &[])
            "Number of EndpointSlices";
        desired_slices: computed("endpoint_slice_mirroring_controller_desired_endpoint_slices", &[])
            "Number of EndpointSlices that would exist with perfect endpoint allocation";
        changes: counters("endpoint_slice_mirroring_controller_changes", &["operation"])
            "Number of EndpointSlice changes";
    }
}

base::metric_table! {
    /// Metrics of volumes and claims.
    pub struct VolumeMetrics {
        total: computed("pv_collector_total_pv_count", &["plugin_name", "volume_mode"])
            "Gauge measuring total number of persistent volumes";
        bound: computed("pv_collector_bound_pv_count", &["storage_class"])
            "Gauge measuring number of persistent volume currently bound";
        unbound: computed("pv_collector_unbound_pv_count", &["storage_class"])
            "Gauge measuring number of persistent volume currently unbound";
        bound_claims: computed("pv_collector_bound_pvc_count", &["namespace", "storage_class", "volume_attributes_class"])
            "Gauge measuring number of persistent volume claim currently bound";
        unbound_claims: computed("pv_collector_unbound_pvc_count", &["namespace", "storage_class", "volume_attributes_class"])
            "Gauge measuring number of persistent volume claim currently unbound";
        retroactive: counter("retroactive_storageclass_total")
            "Total number of retroactive StorageClass assignments to persistent volume claim";
        retroactive_errors: counter("retroactive_storageclass_errors_total")
            "Total number of failed retroactive StorageClass assignments to persistent volume claim";
        attachable: computed("attachdetach_controller_total_volumes", &["plugin_name", "state"])
            "Number of volumes in A/D Controller";
        in_use: computed("storage_count_attachable_volumes_in_use", &["node", "volume_plugin"])
            "Measure number of volumes in use";
        ephemeral_creations: counter("ephemeral_volume_controller_create_total")
            "Number of PersistenVolumeClaims creation requests";
        ephemeral_failures: counter("ephemeral_volume_controller_create_failures_total")
            "Number of PersistenVolumeClaims creation requests that failed";
    }
}

base::metric_table! {
    /// Metrics of the controllers of nodes.
    pub struct NodeMetrics {
        evictions: counters("node_collector_evictions_total", &["zone"])
            "Number of Node evictions that happened since current instance of NodeController started.";
        zone_health: computed("node_collector_zone_health", &["zone"])
            "Gauge measuring percentage of healthy nodes per zone.";
        zone_size: computed("node_collector_zone_size", &["zone"])
            "Gauge measuring number of registered Nodes per zones.";
        unhealthy: computed("node_collector_unhealthy_nodes_in_zone", &["zone"])
            "Gauge measuring number of not Ready Nodes per zones.";
        health_seconds: histogram("node_collector_update_node_health_duration_seconds", &exponential(0.001, 4.0, 8))
            "Duration in seconds for NodeController to update the health of a single node.";
        cidr_allocations: counters("node_ipam_controller_cidrset_cidrs_allocations_total", &["clusterCIDR"])
            "Counter measuring total number of CIDR allocations.";
        cidr_releases: counters("node_ipam_controller_cidrset_cidrs_releases_total", &["clusterCIDR"])
            "Counter measuring total number of CIDR releases.";
        cidr_usage: computed("node_ipam_controller_cidrset_usage_cidrs", &["clusterCIDR"])
            "Gauge measuring percentage of allocated CIDRs.";
        // Kubernetes' spelling.
        max_cidrs: computed("node_ipam_controller_cirdset_max_cidrs", &["clusterCIDR"])
            "Maximum number of CIDRs that can be allocated.";
        cidr_tries: histograms("node_ipam_controller_cidrset_allocation_tries_per_request", &["clusterCIDR"], &exponential(1.0, 5.0, 5))
            "Number of subnets that were tried for an allocation";
        running: computed("running_managed_controllers", &["name", "manager"])
            "Indicates where instances of a controller are currently running";
    }
}

base::metric_table! {
    /// Metrics of the other controllers.
    pub struct OtherMetrics {
        taint_evictions: counter("taint_eviction_controller_pod_deletions_total")
            "Total number of Pods deleted by TaintEvictionController since its start.";
        taint_eviction_delay: histogram("taint_eviction_controller_pod_deletion_duration_seconds", &EVICTION_DELAYS)
            "Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.";
        device_evictions: counter("device_taint_eviction_controller_pod_deletions_total")
            "Total number of Pods deleted by DeviceTaintEvictionController since its start.";
        device_eviction_delay: histogram("device_taint_eviction_controller_pod_deletion_duration_seconds", &EVICTION_DELAYS)
            "Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.";
        ttl_deletion_delay: histogram("ttl_after_finished_controller_job_deletion_duration_seconds", &exponential(0.1, 2.0, 14))
            "The time it took to delete the job since it became eligible for deletion";
        cron_job_skew: histogram("cronjob_controller_job_creation_skew_duration_seconds", &exponential(1.0, 2.0, 10))
            "Time between when a cronjob is scheduled to be run, and when the corresponding job is created";
        garbage_sync_errors: counter("garbagecollector_controller_resources_sync_error_total")
            "Number of garbage collector resources sync errors";
        age_ratio: histogram("replicaset_controller_sorting_deletion_age_ratio", &exponential(0.25, 2.0, 6))
            "The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2.";
        unavailable: computed("statefulset_controller_statefulset_unavailable_replicas", &["statefulset_namespace", "statefulset_name", "pod_management_policy"])
            "Current number of unavailable pods in StatefulSet";
        max_unavailable: computed("statefulset_controller_statefulset_max_unavailable", &["statefulset_namespace", "statefulset_name", "pod_management_policy"])
            "Maximum number of unavailable pods allowed during StatefulSet rolling updates";
        claim_creations: counters("resourceclaim_controller_creates_total", &["status", "admin_access"])
            "Number of ResourceClaims creation requests, categorized by creation status and admin access";
        claims: computed("resourceclaim_controller_resource_claims", &["allocated", "admin_access", "source"])
            "Number of ResourceClaims, categorized by allocation status, admin access, and source.";
        root_ca_syncs: counters("root_ca_cert_publisher_sync_total", &["code"])
            "Number of namespace syncs happened in root ca cert publisher.";
        root_ca_seconds: histograms("root_ca_cert_publisher_sync_duration_seconds", &["code"], &exponential(0.001, 2.0, 15))
            "Durations of the namespace syncs of the root ca cert publisher in seconds.";
        pod_deletions: counters("pod_gc_collector_force_delete_pods_total", &["namespace", "reason"])
            "Number of pods that are being forcefully deleted since the Pod GC Controller started.";
        pod_deletion_errors: counters("pod_gc_collector_force_delete_pod_errors_total", &["namespace", "reason"])
            "Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.";
    }
}

const EVICTION_DELAYS: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];
