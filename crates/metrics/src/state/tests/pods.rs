use super::expect;
use serde_json::{Value, json};

fn running_pod() -> Value {
    json!({
        "metadata": {"namespace": "n", "name": "web", "uid": "u", "creationTimestamp": "2017-08-01T06:30:18Z",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": true}]},
        "spec": {"nodeName": "node1", "restartPolicy": "Always", "serviceAccountName": "default",
            "schedulerName": "default-scheduler", "priorityClassName": "high", "hostNetwork": true,
            "runtimeClassName": "gvisor", "overhead": {"cpu": "100m", "memory": "120Mi"},
            "initContainers": [{"name": "init", "image": "i:spec", "restartPolicy": "Always",
                "resources": {"limits": {"cpu": "200m"}, "requests": {"memory": "1M"}}}],
            "containers": [{"name": "main", "image": "m:spec", "resources": {
                "limits": {"cpu": "200m", "memory": "100M", "ephemeral-storage": "300M", "example.com/gpu": "1",
                           "hugepages-2Mi": "4Mi", "unknown": "1"},
                "requests": {"cpu": "1500m"}}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
                {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
                {"key": "a", "operator": "Equal", "value": "b"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
                {"name": "e", "emptyDir": {}}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "hostIP": "10.0.0.1", "podIP": "10.1.0.2",
            "podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}], "startTime": "2017-08-01T06:30:19Z",
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2017-08-01T06:30:28Z"},
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2017-08-01T06:30:27Z"},
                {"type": "Initialized", "status": "True", "lastTransitionTime": "2017-08-01T06:30:26Z"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2017-08-01T06:30:25Z"}],
            "initContainerStatuses": [{"name": "init", "image": "i", "imageID": "sha256:i",
                "containerID": "c://1", "ready": true, "restartCount": 1,
                "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}],
            "containerStatuses": [{"name": "main", "image": "m", "imageID": "sha256:m", "containerID": "c://2",
                "ready": true, "restartCount": 3, "state": {"running": {"startedAt": "2017-08-01T06:30:20Z"}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137,
                    "finishedAt": "2017-08-01T06:30:21Z"}}}]},
    })
}

const SERIES_OF_RUNNING_POD: &str = r#"
        kube_pod_container_info{ID,container="main",image_spec="m:spec",image="m",image_id="sha256:m",container_id="c://2"} 1
        kube_pod_container_resource_limits{ID,container="main",node="node1",resource="cpu",unit="core"} 0.2
        kube_pod_container_resource_limits{ID,container="main",node="node1",resource="ephemeral_storage",unit="byte"} 3e+08
        kube_pod_container_resource_limits{ID,container="main",node="node1",resource="example_com_gpu",unit="integer"} 1
        kube_pod_container_resource_limits{ID,container="main",node="node1",resource="hugepages_2Mi",unit="byte"} 4.194304e+06
        kube_pod_container_resource_limits{ID,container="main",node="node1",resource="memory",unit="byte"} 1e+08
        kube_pod_container_resource_requests{ID,container="main",node="node1",resource="cpu",unit="core"} 1.5
        kube_pod_container_state_started{ID,container="main"} 1.50156902e+09
        kube_pod_container_status_last_terminated_reason{ID,container="main",reason="OOMKilled"} 1
        kube_pod_container_status_last_terminated_exitcode{ID,container="main"} 137
        kube_pod_container_status_last_terminated_timestamp{ID,container="main"} 1.501569021e+09
        kube_pod_container_status_ready{ID,container="main"} 1
        kube_pod_container_status_restarts_total{ID,container="main"} 3
        kube_pod_container_status_running{ID,container="main"} 1
        kube_pod_container_status_terminated{ID,container="main"} 0
        kube_pod_container_status_waiting{ID,container="main"} 0
        kube_pod_created{ID} 1.501569018e+09
        kube_pod_info{ID,host_ip="10.0.0.1",pod_ip="10.1.0.2",node="node1",created_by_kind="ReplicaSet",created_by_name="web-1",priority_class="high",host_network="true"} 1
        kube_pod_ips{ID,ip="10.1.0.2",ip_family="4"} 1
        kube_pod_ips{ID,ip="fd00::2",ip_family="6"} 1
        kube_pod_init_container_info{ID,container="init",image_spec="i:spec",image="i",image_id="sha256:i",container_id="c://1",restart_policy="Always"} 1
        kube_pod_init_container_resource_limits{ID,container="init",node="node1",resource="cpu",unit="core"} 0.2
        kube_pod_init_container_resource_requests{ID,container="init",node="node1",resource="memory",unit="byte"} 1e+06
        kube_pod_init_container_status_ready{ID,container="init"} 1
        kube_pod_init_container_status_restarts_total{ID,container="init"} 1
        kube_pod_init_container_status_running{ID,container="init"} 0
        kube_pod_init_container_status_terminated{ID,container="init"} 1
        kube_pod_init_container_status_terminated_reason{ID,container="init",reason="Completed"} 1
        kube_pod_init_container_status_waiting{ID,container="init"} 0
        kube_pod_overhead_cpu_cores{ID} 0.1
        kube_pod_overhead_memory_bytes{ID} 1.2582912e+08
        kube_pod_owner{ID,owner_kind="ReplicaSet",owner_name="web-1",owner_is_controller="true"} 1
        kube_pod_restart_policy{ID,type="Always"} 1
        kube_pod_runtimeclass_name_info{ID,runtimeclass_name="gvisor"} 1
        kube_pod_spec_volumes_persistentvolumeclaims_info{ID,volume="v",persistentvolumeclaim="c"} 1
        kube_pod_spec_volumes_persistentvolumeclaims_readonly{ID,volume="v",persistentvolumeclaim="c"} 1
        kube_pod_start_time{ID} 1.501569019e+09
        kube_pod_status_phase{ID,phase="Pending"} 0
        kube_pod_status_phase{ID,phase="Succeeded"} 0
        kube_pod_status_phase{ID,phase="Failed"} 0
        kube_pod_status_phase{ID,phase="Unknown"} 0
        kube_pod_status_phase{ID,phase="Running"} 1
        kube_pod_status_qos_class{ID,qos_class="BestEffort"} 0
        kube_pod_status_qos_class{ID,qos_class="Burstable"} 1
        kube_pod_status_qos_class{ID,qos_class="Guaranteed"} 0
        kube_pod_status_ready{ID,condition="true"} 1
        kube_pod_status_ready{ID,condition="false"} 0
        kube_pod_status_ready{ID,condition="unknown"} 0
        kube_pod_status_ready_time{ID} 1.501569028e+09
        kube_pod_status_initialized_time{ID} 1.501569026e+09
        kube_pod_status_container_ready_time{ID} 1.501569027e+09
        kube_pod_status_reason{ID,reason="Evicted"} 0
        kube_pod_status_reason{ID,reason="NodeAffinity"} 0
        kube_pod_status_reason{ID,reason="NodeLost"} 0
        kube_pod_status_reason{ID,reason="PreemptionByScheduler"} 0
        kube_pod_status_reason{ID,reason="SchedulingGated"} 0
        kube_pod_status_reason{ID,reason="Shutdown"} 0
        kube_pod_status_reason{ID,reason="TerminationByKubelet"} 0
        kube_pod_status_reason{ID,reason="UnexpectedAdmissionError"} 0
        kube_pod_status_scheduled{ID,condition="true"} 1
        kube_pod_status_scheduled{ID,condition="false"} 0
        kube_pod_status_scheduled{ID,condition="unknown"} 0
        kube_pod_status_scheduled_time{ID} 1.501569025e+09
        kube_pod_tolerations{ID,key="k",operator="Exists",value="",effect="NoExecute",toleration_seconds="30"} 1
        kube_pod_tolerations{ID,key="a",operator="Equal",value="b",effect="",toleration_seconds=""} 1
        kube_pod_service_account{ID,service_account="default"} 1
        kube_pod_scheduler{ID,name="default-scheduler"} 1
    "#;

#[test]
fn running_pod_has_series_of_its_containers() {
    expect("pods", r#"namespace="n",pod="web",uid="u""#, running_pod(), SERIES_OF_RUNNING_POD);
}

#[test]
fn waiting_and_ended_containers_have_reasons() {
    let pod = json!({
        "metadata": {"namespace": "n", "name": "a", "uid": "u", "deletionTimestamp": "2017-08-01T06:30:18Z"},
        "spec": {},
        "status": {"phase": "Failed", "reason": "Evicted",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "lastTransitionTime": "2017-08-01T06:30:25Z"}],
            "containerStatuses": [
                {"name": "x", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                {"name": "y", "state": {"terminated": {"reason": "Error", "startedAt": "2017-08-01T06:30:20Z",
                    "finishedAt": "2017-08-01T06:30:30Z"}}}]},
    });
    let text = super::section("pods", &[pod], &super::StateMetricsConfig::default());
    for (family, want) in [
        ("kube_pod_completion_time", vec![r#"{ID} 1.50156903e+09"#]),
        ("kube_pod_container_state_started", vec![r#"{ID,container="y"} 1.50156902e+09"#]),
        (
            "kube_pod_container_status_waiting_reason",
            vec![r#"{ID,container="x",reason="CrashLoopBackOff"} 1"#],
        ),
        ("kube_pod_container_status_terminated_reason", vec![r#"{ID,container="y",reason="Error"} 1"#]),
        ("kube_pod_deletion_timestamp", vec!["{ID} 1.501569018e+09"]),
        ("kube_pod_owner", vec![r#"{ID,owner_kind="",owner_name="",owner_is_controller=""} 1"#]),
        ("kube_pod_status_unschedulable", vec!["{ID} 1"]),
        ("kube_pod_status_unscheduled_time", vec!["{ID} 1.501569025e+09"]),
        ("kube_pod_status_scheduled_time", vec![]),
    ] {
        let want: Vec<_> = want
            .into_iter()
            .map(|line| format!("{family}{}", line.replacen("ID", r#"namespace="n",pod="a",uid="u""#, 1)))
            .collect();
        let lines = super::lines_of(&text);
        let got: Vec<_> = lines.iter().filter(|line| line.starts_with(&format!("{family}{{"))).collect();
        assert_eq!(got, want.iter().collect::<Vec<_>>(), "{family}");
    }
    for reason in ["Evicted", "SchedulingGated"] {
        assert!(text.contains(&format!("uid=\"u\",reason=\"{reason}\"}} 1\n")), "{reason}");
    }
    assert!(text.contains("reason=\"Shutdown\"} 0\n"));
}
