use super::expect;
use serde_json::json;

#[test]
fn node_has_system_resources_and_conditions() {
    let node = json!({"metadata": {"name": "a", "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": true, "providerID": "p://1", "podCIDR": "10.1.0.0/24",
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {"nodeInfo": {"kernelVersion": "6", "kubeletVersion": "v1.36", "osImage": "linux",
                "containerRuntimeVersion": "ferry://1", "systemUUID": "u"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "a"}],
            "capacity": {"cpu": "4300m", "memory": "2G", "pods": "1k", "storage": "3G", "hugepages-1Gi": "0",
                "nvidia.com/gpu": "4", "other": "1"},
            "allocatable": {"cpu": "3", "attachable-volumes-csi": "25"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
    expect(
        "nodes",
        r#"node="a""#,
        node,
        r#"
        kube_node_info{ID,kernel_version="6",os_image="linux",container_runtime_version="ferry://1",kubelet_version="v1.36",kubeproxy_version="deprecated",provider_id="p://1",pod_cidr="10.1.0.0/24",system_uuid="u",internal_ip="10.0.0.1"} 1
        kube_node_role{ID,role="control-plane"} 1
        kube_node_spec_taint{ID,key="k",value="v",effect="NoSchedule"} 1
        kube_node_spec_unschedulable{ID} 1
        kube_node_status_allocatable{ID,resource="attachable_volumes_csi",unit="byte"} 25
        kube_node_status_allocatable{ID,resource="cpu",unit="core"} 3
        kube_node_status_capacity{ID,resource="cpu",unit="core"} 4.3
        kube_node_status_capacity{ID,resource="hugepages_1Gi",unit="byte"} 0
        kube_node_status_capacity{ID,resource="memory",unit="byte"} 2e+09
        kube_node_status_capacity{ID,resource="nvidia_com_gpu",unit="integer"} 4
        kube_node_status_capacity{ID,resource="pods",unit="integer"} 1000
        kube_node_status_capacity{ID,resource="storage",unit="byte"} 3e+09
        kube_node_status_condition{ID,condition="Ready",status="true"} 1
        kube_node_status_condition{ID,condition="Ready",status="false"} 0
        kube_node_status_condition{ID,condition="Ready",status="unknown"} 0
        kube_node_status_addresses{ID,type="InternalIP",address="10.0.0.1"} 1
        kube_node_status_addresses{ID,type="Hostname",address="a"} 1
    "#,
    );
}

#[test]
fn namespace_has_phase_and_conditions() {
    let namespace = json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating",
        "conditions": [{"type": "NamespaceDeletionContentFailure", "status": "False"}]}});
    expect(
        "namespaces",
        r#"namespace="n""#,
        namespace,
        r#"
        kube_namespace_status_phase{ID,phase="Active"} 0
        kube_namespace_status_phase{ID,phase="Terminating"} 1
        kube_namespace_status_condition{ID,condition="NamespaceDeletionContentFailure",status="true"} 0
        kube_namespace_status_condition{ID,condition="NamespaceDeletionContentFailure",status="false"} 1
        kube_namespace_status_condition{ID,condition="NamespaceDeletionContentFailure",status="unknown"} 0
    "#,
    );
}

#[test]
fn quota_and_limit_range_have_quantities() {
    let quota = json!({"metadata": {"namespace": "n", "name": "q"},
        "status": {"hard": {"cpu": "4.3", "pods": "9"}, "used": {"cpu": "2100m"}}});
    expect(
        "resourcequotas",
        r#"namespace="n",resourcequota="q""#,
        quota,
        r#"
        kube_resourcequota{ID,resource="cpu",type="hard"} 4.3
        kube_resourcequota{ID,resource="pods",type="hard"} 9
        kube_resourcequota{ID,resource="cpu",type="used"} 2.1
    "#,
    );
    let range = json!({"metadata": {"namespace": "n", "name": "l"}, "spec": {"limits": [{"type": "Container",
        "min": {"memory": "2.1G"}, "max": {"memory": "9E"}, "default": {"cpu": "1"},
        "defaultRequest": {"cpu": "100m"}, "maxLimitRequestRatio": {"cpu": "2"}}]}});
    expect(
        "limitranges",
        r#"namespace="n",limitrange="l""#,
        range,
        r#"
        kube_limitrange{ID,resource="memory",type="Container",constraint="min"} 2.1e+09
        kube_limitrange{ID,resource="memory",type="Container",constraint="max"} 9e+18
        kube_limitrange{ID,resource="cpu",type="Container",constraint="default"} 1
        kube_limitrange{ID,resource="cpu",type="Container",constraint="defaultRequest"} 0.1
        kube_limitrange{ID,resource="cpu",type="Container",constraint="maxLimitRequestRatio"} 2
    "#,
    );
}

#[test]
fn certificate_request_has_conditions_and_length() {
    let request = json!({"metadata": {"name": "c"}, "spec": {"signerName": "example.com/s"},
        "status": {"certificate": "dGVzdGluZw==", "conditions": [{"type": "Approved"}, {"type": "Approved"}]}});
    expect(
        "certificatesigningrequests",
        r#"certificatesigningrequest="c",signer_name="example.com/s""#,
        request,
        r#"
        kube_certificatesigningrequest_condition{ID,condition="approved"} 2
        kube_certificatesigningrequest_condition{ID,condition="denied"} 0
        kube_certificatesigningrequest_condition{ID,condition="failed"} 0
        kube_certificatesigningrequest_cert_length{ID} 7
    "#,
    );
}

#[test]
fn lease_has_owner_and_renewal() {
    let lease = json!({"metadata": {"name": "l", "namespace": "kube-node-lease",
            "ownerReferences": [{"kind": "Node", "name": "a"}]},
        "spec": {"holderIdentity": "a", "renewTime": "2017-07-14T02:40:00.123456Z"}});
    expect(
        "leases",
        r#"lease="l""#,
        lease,
        r#"
        kube_lease_owner{ID,owner_kind="Node",owner_name="a",namespace="kube-node-lease",lease_holder="a"} 1
        kube_lease_renew_time{ID,namespace="kube-node-lease"} 1.5e+09
    "#,
    );
}

#[test]
fn webhook_configurations_have_services() {
    let configuration = || {
        json!({"metadata": {"name": "w", "resourceVersion": "1"}, "webhooks": [
        {"name": "a", "clientConfig": {"service": {"name": "s", "namespace": "ns"}}},
        {"name": "b", "clientConfig": {"url": "https://example.com"}}]})
    };
    for kind in ["mutating", "validating"] {
        let identity = format!(r#"namespace="",{kind}webhookconfiguration="w""#);
        expect(
            &format!("{kind}webhookconfigurations"),
            &identity,
            configuration(),
            &format!(
                r#"
            kube_{kind}webhookconfiguration_info{{ID}} 1
            kube_{kind}webhookconfiguration_metadata_resource_version{{ID}} 1
            kube_{kind}webhookconfiguration_webhook_clientconfig_service{{ID,webhook_name="a",service_name="s",service_namespace="ns"}} 1
            kube_{kind}webhookconfiguration_webhook_clientconfig_service{{ID,webhook_name="b",service_name="",service_namespace=""}} 1
        "#
            ),
        );
    }
}
