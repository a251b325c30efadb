//! Pods.

mod containers;
mod status;

use super::*;
use crate::state::family::Source::{Annotations, Each, Info, Labels, OneOf, Owners, Time};
use crate::state::family::{CREATED, DELETED, Kind, alpha, stable};

pub static KIND: Kind = Kind {
    resource: "pods",
    kind: "Pod",
    path: "/api/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("pod", NAME), ("uid", UID)],
    families: &[
        stable(
            "kube_pod_completion_time",
            "Unix time at which the last container ended.",
            Each(status::completion),
        ),
        stable("kube_pod_container_info", "Images of a container.", Each(containers::info)),
        stable("kube_pod_container_resource_limits", "Limits of a container.", Each(containers::limits)),
        stable(
            "kube_pod_container_resource_requests",
            "Requests of a container.",
            Each(containers::requests),
        ),
        stable(
            "kube_pod_container_state_started",
            "Unix time of a container's start.",
            Each(containers::started),
        ),
        alpha(
            "kube_pod_container_status_last_terminated_reason",
            "Reason of a container's previous end.",
            Each(containers::last_reason),
        ),
        alpha(
            "kube_pod_container_status_last_terminated_exitcode",
            "Exit code of a container's previous end.",
            Each(containers::last_exit_code),
        ),
        alpha(
            "kube_pod_container_status_last_terminated_timestamp",
            "Unix time of a container's previous end.",
            Each(containers::last_finish),
        ),
        stable("kube_pod_container_status_ready", "True if a container is ready.", Each(containers::ready)),
        stable(
            "kube_pod_container_status_restarts_total",
            "Number of restarts of a container.",
            Each(containers::restarts),
        )
        .counter(),
        stable("kube_pod_container_status_running", "True if a container runs.", Each(containers::running)),
        stable(
            "kube_pod_container_status_terminated",
            "True if a container has ended.",
            Each(containers::terminated),
        ),
        alpha(
            "kube_pod_container_status_terminated_reason",
            "Reason of a container's end.",
            Each(containers::terminated_reason),
        ),
        stable("kube_pod_container_status_waiting", "True if a container waits.", Each(containers::waiting)),
        stable(
            "kube_pod_container_status_waiting_reason",
            "Reason for which a container waits.",
            Each(containers::waiting_reason),
        ),
        stable("kube_pod_created", CREATED_HELP, CREATED),
        alpha("kube_pod_deletion_timestamp", DELETED_HELP, DELETED),
        stable("kube_pod_info", "Node, addresses, controller and priority of a pod.", Each(status::info)),
        alpha("kube_pod_ips", "Addresses of a pod.", Each(status::ips)),
        stable("kube_pod_init_container_info", "Images of an init container.", Each(containers::init_info)),
        alpha(
            "kube_pod_init_container_resource_limits",
            "Limits of an init container.",
            Each(containers::init_limits),
        ),
        alpha(
            "kube_pod_init_container_resource_requests",
            "Requests of an init container.",
            Each(containers::init_requests),
        ),
        alpha(
            "kube_pod_init_container_status_last_terminated_reason",
            "Reason of an init container's previous end.",
            Each(containers::init_last_reason),
        ),
        stable(
            "kube_pod_init_container_status_ready",
            "True if an init container is ready.",
            Each(containers::init_ready),
        ),
        stable(
            "kube_pod_init_container_status_restarts_total",
            "Number of restarts of an init container.",
            Each(containers::init_restarts),
        )
        .counter(),
        stable(
            "kube_pod_init_container_status_running",
            "True if an init container runs.",
            Each(containers::init_running),
        ),
        stable(
            "kube_pod_init_container_status_terminated",
            "True if an init container has ended.",
            Each(containers::init_terminated),
        ),
        alpha(
            "kube_pod_init_container_status_terminated_reason",
            "Reason of an init container's end.",
            Each(containers::init_terminated_reason),
        ),
        stable(
            "kube_pod_init_container_status_waiting",
            "True if an init container waits.",
            Each(containers::init_waiting),
        ),
        alpha(
            "kube_pod_init_container_status_waiting_reason",
            "Reason for which an init container waits.",
            Each(containers::init_waiting_reason),
        ),
        alpha("kube_pod_annotations", ANNOTATIONS_HELP, Annotations),
        stable("kube_pod_labels", LABELS_HELP, Labels),
        alpha("kube_pod_overhead_cpu_cores", "CPU that the pod itself takes.", Each(status::overhead_cpu)),
        alpha(
            "kube_pod_overhead_memory_bytes",
            "Memory that the pod itself takes.",
            Each(status::overhead_memory),
        ),
        stable("kube_pod_owner", OWNER_HELP, Owners),
        stable(
            "kube_pod_restart_policy",
            "Restart policy of a pod.",
            Info(&[("type", "spec.restartPolicy")]),
        ),
        alpha("kube_pod_runtimeclass_name_info", "Runtime class of a pod.", Each(status::runtime_class)),
        stable(
            "kube_pod_spec_volumes_persistentvolumeclaims_info",
            "Claims that a pod uses.",
            Each(status::claim_info),
        ),
        stable(
            "kube_pod_spec_volumes_persistentvolumeclaims_readonly",
            "True if a claim is mounted read-only.",
            Each(status::claim_is_read_only),
        ),
        stable(
            "kube_pod_start_time",
            "Unix time at which a kubelet accepted the pod.",
            Time("status.startTime"),
        ),
        stable(
            "kube_pod_status_phase",
            "Phase of a pod.",
            OneOf("phase", "status.phase", &["Pending", "Succeeded", "Failed", "Unknown", "Running"]),
        ),
        alpha(
            "kube_pod_status_qos_class",
            "Quality of service class of a pod.",
            OneOf("qos_class", "status.qosClass", &["BestEffort", "Burstable", "Guaranteed"]),
        ),
        stable("kube_pod_status_ready", "Status of the condition Ready.", Each(status::ready)),
        alpha("kube_pod_status_ready_time", "Unix time from which a pod is ready.", Each(status::ready_time)),
        alpha(
            "kube_pod_status_initialized_time",
            "Unix time from which a pod is initialized.",
            Each(status::initialized_time),
        ),
        alpha(
            "kube_pod_status_container_ready_time",
            "Unix time from which all containers are ready.",
            Each(status::containers_ready_time),
        ),
        alpha("kube_pod_status_reason", "Reasons of a pod's state.", Each(status::reasons)),
        stable("kube_pod_status_scheduled", "Status of the condition PodScheduled.", Each(status::scheduled)),
        stable(
            "kube_pod_status_scheduled_time",
            "Unix time from which a pod is scheduled.",
            Each(status::scheduled_time),
        ),
        stable(
            "kube_pod_status_unschedulable",
            "1 if a pod could not be scheduled.",
            Each(status::unschedulable),
        ),
        alpha(
            "kube_pod_status_unscheduled_time",
            "Unix time from which a pod could not be scheduled.",
            Each(status::unscheduled_time),
        ),
        alpha("kube_pod_tolerations", "Tolerations of a pod.", Each(status::tolerations)),
        alpha("kube_pod_nodeselectors", "Node selector of a pod.", Each(status::node_selectors)).opt_in(),
        alpha(
            "kube_pod_service_account",
            "Service account of a pod.",
            Info(&[("service_account", "spec.serviceAccountName")]),
        ),
        alpha("kube_pod_scheduler", "Scheduler of a pod.", Info(&[("name", "spec.schedulerName")])),
    ],
};
