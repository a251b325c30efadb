use super::expect;
use serde_json::json;

const CREATED: &str = "2017-07-14T02:40:00Z";

#[test]
fn deployment_has_replicas_conditions_and_rolling_update() {
    let deployment = json!({
        "metadata": {"namespace": "n", "name": "d", "creationTimestamp": CREATED, "generation": 21},
        "spec": {"replicas": 200, "paused": true,
            "strategy": {"rollingUpdate": {"maxUnavailable": "33%", "maxSurge": 10}}},
        "status": {"replicas": 15, "availableReplicas": 10, "unavailableReplicas": 5, "updatedReplicas": 2,
            "terminatingReplicas": 0, "observedGeneration": 111,
            "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
                {"type": "Available", "status": "False", "reason": "Whatever"}]},
    });
    expect(
        "deployments",
        r#"namespace="n",deployment="d""#,
        deployment,
        r#"
        kube_deployment_owner{ID,owner_kind="",owner_name=""} 1
        kube_deployment_created{ID} 1.5e+09
        kube_deployment_status_replicas{ID} 15
        kube_deployment_status_replicas_ready{ID} 0
        kube_deployment_status_replicas_available{ID} 10
        kube_deployment_status_replicas_unavailable{ID} 5
        kube_deployment_status_replicas_updated{ID} 2
        kube_deployment_status_terminating_replicas{ID} 0
        kube_deployment_status_observed_generation{ID} 111
        kube_deployment_status_condition{ID,reason="NewReplicaSetAvailable",condition="Progressing",status="true"} 1
        kube_deployment_status_condition{ID,reason="NewReplicaSetAvailable",condition="Progressing",status="false"} 0
        kube_deployment_status_condition{ID,reason="NewReplicaSetAvailable",condition="Progressing",status="unknown"} 0
        kube_deployment_status_condition{ID,reason="unknown",condition="Available",status="true"} 0
        kube_deployment_status_condition{ID,reason="unknown",condition="Available",status="false"} 1
        kube_deployment_status_condition{ID,reason="unknown",condition="Available",status="unknown"} 0
        kube_deployment_spec_replicas{ID} 200
        kube_deployment_spec_paused{ID} 1
        kube_deployment_spec_strategy_rollingupdate_max_unavailable{ID} 66
        kube_deployment_spec_strategy_rollingupdate_max_surge{ID} 10
        kube_deployment_metadata_generation{ID} 21
    "#,
    );
}

#[test]
fn daemon_set_has_numbers_of_nodes() {
    let set = json!({"metadata": {"namespace": "n", "name": "d", "generation": 15},
        "status": {"currentNumberScheduled": 10, "numberMisscheduled": 5, "desiredNumberScheduled": 0,
                   "observedGeneration": 2}});
    expect(
        "daemonsets",
        r#"namespace="n",daemonset="d""#,
        set,
        "
        kube_daemonset_status_current_number_scheduled{ID} 10
        kube_daemonset_status_desired_number_scheduled{ID} 0
        kube_daemonset_status_number_available{ID} 0
        kube_daemonset_status_number_misscheduled{ID} 5
        kube_daemonset_status_number_ready{ID} 0
        kube_daemonset_status_number_unavailable{ID} 0
        kube_daemonset_status_observed_generation{ID} 2
        kube_daemonset_status_updated_number_scheduled{ID} 0
        kube_daemonset_metadata_generation{ID} 15
    ",
    );
}

#[test]
fn stateful_set_has_revisions_and_retention() {
    let set = json!({"metadata": {"namespace": "n", "name": "s", "generation": 3},
        "spec": {"replicas": 3, "ordinals": {"start": 1},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"}},
        "status": {"observedGeneration": 1, "replicas": 2, "currentRevision": "s-1", "updateRevision": "s-2"}});
    expect(
        "statefulsets",
        r#"namespace="n",statefulset="s""#,
        set,
        r#"
        kube_statefulset_status_replicas{ID} 2
        kube_statefulset_status_replicas_available{ID} 0
        kube_statefulset_status_replicas_current{ID} 0
        kube_statefulset_status_replicas_ready{ID} 0
        kube_statefulset_status_replicas_updated{ID} 0
        kube_statefulset_status_observed_generation{ID} 1
        kube_statefulset_replicas{ID} 3
        kube_statefulset_ordinals_start{ID} 1
        kube_statefulset_metadata_generation{ID} 3
        kube_statefulset_persistentvolumeclaim_retention_policy{ID,when_deleted="Retain",when_scaled="Delete"} 1
        kube_statefulset_status_current_revision{ID,revision="s-1"} 1
        kube_statefulset_status_update_revision{ID,revision="s-2"} 1
    "#,
    );
}

#[test]
fn replica_set_and_replication_controller_have_owners() {
    let set = json!({"metadata": {"namespace": "n", "name": "r", "generation": 21,
            "ownerReferences": [{"kind": "Deployment", "name": "d", "controller": true}]},
        "spec": {"replicas": 5}, "status": {"replicas": 5, "readyReplicas": 4}});
    expect(
        "replicasets",
        r#"namespace="n",replicaset="r""#,
        set,
        r#"
        kube_replicaset_status_replicas{ID} 5
        kube_replicaset_status_fully_labeled_replicas{ID} 0
        kube_replicaset_status_ready_replicas{ID} 4
        kube_replicaset_status_observed_generation{ID} 0
        kube_replicaset_spec_replicas{ID} 5
        kube_replicaset_metadata_generation{ID} 21
        kube_replicaset_owner{ID,owner_kind="Deployment",owner_name="d",owner_is_controller="true"} 1
    "#,
    );
    let controller = json!({"metadata": {"namespace": "n", "name": "r",
            "ownerReferences": [{"kind": "X", "name": "x"}]}, "status": {"availableReplicas": 2}});
    expect(
        "replicationcontrollers",
        r#"namespace="n",replicationcontroller="r""#,
        controller,
        r#"
        kube_replicationcontroller_status_replicas{ID} 0
        kube_replicationcontroller_status_fully_labeled_replicas{ID} 0
        kube_replicationcontroller_status_ready_replicas{ID} 0
        kube_replicationcontroller_status_available_replicas{ID} 2
        kube_replicationcontroller_status_observed_generation{ID} 0
        kube_replicationcontroller_metadata_generation{ID} 0
        kube_replicationcontroller_owner{ID,owner_kind="X",owner_name="x",owner_is_controller="false"} 1
    "#,
    );
}

#[test]
fn job_has_conditions_and_failures() {
    let job = json!({"metadata": {"namespace": "n", "name": "j"},
        "spec": {"parallelism": 1, "completions": 2, "activeDeadlineSeconds": 900},
        "status": {"failed": 1, "startTime": "2017-05-26T18:58:07Z", "conditions": [
            {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"},
            {"type": "Suspended", "status": "True"}]}});
    expect(
        "jobs",
        r#"namespace="n",job_name="j""#,
        job,
        r#"
        kube_job_info{ID} 1
        kube_job_spec_parallelism{ID} 1
        kube_job_spec_completions{ID} 2
        kube_job_spec_active_deadline_seconds{ID} 900
        kube_job_status_succeeded{ID} 0
        kube_job_status_failed{ID,reason="BackoffLimitExceeded"} 0
        kube_job_status_failed{ID,reason="DeadlineExceeded"} 1
        kube_job_status_failed{ID,reason="Evicted"} 0
        kube_job_status_active{ID} 0
        kube_job_status_ready{ID} 0
        kube_job_failed{ID,condition="true"} 1
        kube_job_failed{ID,condition="false"} 0
        kube_job_failed{ID,condition="unknown"} 0
        kube_job_status_start_time{ID} 1.495825087e+09
        kube_job_status_suspended{ID} 1
        kube_job_owner{ID,owner_kind="",owner_name="",owner_is_controller=""} 1
    "#,
    );
}

#[test]
fn cron_job_has_its_next_schedule() {
    let job = json!({"metadata": {"namespace": "n", "name": "c", "resourceVersion": "11111"},
        "spec": {"schedule": "hourly", "concurrencyPolicy": "Forbid", "suspend": false, "timeZone": "Asia/Tokyo",
            "startingDeadlineSeconds": 300, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 0},
        "status": {"active": [{}, {}], "lastScheduleTime": "2017-07-14T01:40:00Z",
            "lastSuccessfulTime": "2017-07-14T01:40:00Z"}});
    expect(
        "cronjobs",
        r#"namespace="n",cronjob="c""#,
        job,
        r#"
        kube_cronjob_info{ID,schedule="hourly",concurrency_policy="Forbid",timezone="Asia/Tokyo"} 1
        kube_cronjob_status_active{ID} 2
        kube_cronjob_status_last_schedule_time{ID} 1.4999964e+09
        kube_cronjob_status_last_successful_time{ID} 1.4999964e+09
        kube_cronjob_spec_suspend{ID} 0
        kube_cronjob_spec_starting_deadline_seconds{ID} 300
        kube_cronjob_next_schedule_time{ID} 1.5e+09
        kube_cronjob_metadata_resource_version{ID} 11111
        kube_cronjob_spec_successful_job_history_limit{ID} 3
        kube_cronjob_spec_failed_job_history_limit{ID} 0
    "#,
    );
    let invalid = json!({"metadata": {"namespace": "n", "name": "c"}, "spec": {"schedule": "never ever"}});
    expect(
        "cronjobs",
        r#"namespace="n",cronjob="c""#,
        invalid,
        r#"
        kube_cronjob_info{ID,schedule="never ever",concurrency_policy="",timezone="local"} 1
        kube_cronjob_status_active{ID} 0
        kube_cronjob_schedule_invalid{ID} 1
    "#,
    );
}

#[test]
fn autoscaler_has_targets_and_present_values() {
    let autoscaler = json!({"metadata": {"namespace": "n", "name": "h", "generation": 2},
        "spec": {"minReplicas": 2, "maxReplicas": 4,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "metrics": [
                {"type": "Object", "object": {"metric": {"name": "hits"},
                    "target": {"value": "10", "averageValue": "0.5"}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                {"type": "ContainerResource", "containerResource": {"name": "memory", "container": "c",
                    "target": {"averageValue": "800Ki"}}},
                {"type": "Pods"}]},
        "status": {"currentReplicas": 2, "desiredReplicas": 3,
            "currentMetrics": [{"type": "Pods", "pods": {"metric": {"name": "tx"},
                "current": {"averageValue": "35m"}}}],
            "conditions": [{"type": "AbleToScale", "status": "Unknown"}]}});
    expect(
        "horizontalpodautoscalers",
        r#"namespace="n",horizontalpodautoscaler="h""#,
        autoscaler,
        r#"
        kube_horizontalpodautoscaler_info{ID,scaletargetref_api_version="apps/v1",scaletargetref_kind="Deployment",scaletargetref_name="d"} 1
        kube_horizontalpodautoscaler_metadata_generation{ID} 2
        kube_horizontalpodautoscaler_spec_max_replicas{ID} 4
        kube_horizontalpodautoscaler_spec_min_replicas{ID} 2
        kube_horizontalpodautoscaler_spec_target_metric{ID,metric_name="hits",metric_target_type="value",container=""} 10
        kube_horizontalpodautoscaler_spec_target_metric{ID,metric_name="hits",metric_target_type="average",container=""} 0.5
        kube_horizontalpodautoscaler_spec_target_metric{ID,metric_name="cpu",metric_target_type="utilization",container=""} 80
        kube_horizontalpodautoscaler_spec_target_metric{ID,metric_name="memory",metric_target_type="average",container="c"} 819200
        kube_horizontalpodautoscaler_status_target_metric{ID,metric_name="tx",metric_target_type="average",container=""} 0.035
        kube_horizontalpodautoscaler_status_current_replicas{ID} 2
        kube_horizontalpodautoscaler_status_desired_replicas{ID} 3
        kube_horizontalpodautoscaler_status_condition{ID,condition="AbleToScale",status="true"} 0
        kube_horizontalpodautoscaler_status_condition{ID,condition="AbleToScale",status="false"} 0
        kube_horizontalpodautoscaler_status_condition{ID,condition="AbleToScale",status="unknown"} 1
    "#,
    );
}

#[test]
fn disruption_budget_has_its_status() {
    let budget = json!({"metadata": {"namespace": "n", "name": "b", "creationTimestamp": CREATED},
        "status": {"currentHealthy": 12, "desiredHealthy": 10, "disruptionsAllowed": 2, "expectedPods": 15,
                   "observedGeneration": 111}});
    expect(
        "poddisruptionbudgets",
        r#"namespace="n",poddisruptionbudget="b""#,
        budget,
        "
        kube_poddisruptionbudget_created{ID} 1.5e+09
        kube_poddisruptionbudget_status_current_healthy{ID} 12
        kube_poddisruptionbudget_status_desired_healthy{ID} 10
        kube_poddisruptionbudget_status_pod_disruptions_allowed{ID} 2
        kube_poddisruptionbudget_status_expected_pods{ID} 15
        kube_poddisruptionbudget_status_observed_generation{ID} 111
    ",
    );
}
