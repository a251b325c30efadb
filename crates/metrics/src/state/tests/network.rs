use super::expect;
use serde_json::json;

#[test]
fn service_has_addresses_and_load_balancer() {
    let service = json!({"metadata": {"namespace": "n", "name": "s", "uid": "u"},
        "spec": {"type": "LoadBalancer", "clusterIP": "1.2.3.4", "externalTrafficPolicy": "Cluster",
            "externalIPs": ["5.6.7.8"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "lb.example.com"}]}}});
    expect(
        "services",
        r#"namespace="n",service="s",uid="u""#,
        service,
        r#"
        kube_service_info{ID,cluster_ip="1.2.3.4",external_name="",load_balancer_ip="",external_traffic_policy="Cluster"} 1
        kube_service_spec_type{ID,type="LoadBalancer"} 1
        kube_service_spec_external_ip{ID,external_ip="5.6.7.8"} 1
        kube_service_status_load_balancer_ingress{ID,ip="9.9.9.9",hostname=""} 1
        kube_service_status_load_balancer_ingress{ID,ip="",hostname="lb.example.com"} 1
    "#,
    );
}

#[test]
fn endpoint_slice_has_endpoints_hints_and_ports() {
    let slice = json!({"metadata": {"namespace": "n", "name": "e"}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.2"], "nodeName": "node1", "hostname": "host", "zone": "west",
            "conditions": {"ready": true, "terminating": false},
            "hints": {"forZones": [{"name": "zone1"}]}, "targetRef": {"kind": "Pod", "name": "p", "namespace": "n"}},
            {"addresses": ["10.0.0.3"], "conditions": {"serving": true}}],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}, {}]});
    expect(
        "endpointslices",
        r#"endpointslice="e",namespace="n""#,
        slice,
        r#"
        kube_endpointslice_info{ID,addresstype="IPv4"} 1
        kube_endpointslice_endpoints_hints{ID,address="10.0.0.1",for_zone="zone1"} 1
        kube_endpointslice_endpoints{ID,ready="true",serving="false",hostname="",terminating="host",targetref_kind="Pod",targetref_name="p",targetref_namespace="n",endpoint_nodename="node1",endpoint_zone="west",address="10.0.0.1"} 1
        kube_endpointslice_endpoints{ID,ready="true",serving="false",hostname="",terminating="host",targetref_kind="Pod",targetref_name="p",targetref_namespace="n",endpoint_nodename="node1",endpoint_zone="west",address="10.0.0.2"} 1
        kube_endpointslice_endpoints{ID,ready="",serving="true",hostname="",terminating="",targetref_kind="",targetref_name="",targetref_namespace="",endpoint_nodename="",endpoint_zone="",address="10.0.0.3"} 1
        kube_endpointslice_ports{ID,port_name="http",port_protocol="TCP",port_number="80"} 1
        kube_endpointslice_ports{ID,port_name="",port_protocol="",port_number=""} 1
    "#,
    );
}

#[test]
fn ingress_has_class_paths_and_certificates() {
    let ingress = json!({"metadata": {"namespace": "n", "name": "i", "resourceVersion": "7",
            "annotations": {"kubernetes.io/ingress.class": "annotated"}},
        "spec": {"ingressClassName": "nginx",
            "rules": [{"host": "a.example.com", "http": {"paths": [
                {"path": "/x", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 1234}}}},
                {"backend": {"resource": {"apiGroup": "g", "kind": "K", "name": "r"}}}]}}, {"host": "b"}],
            "tls": [{"hosts": ["h1", "h2"], "secretName": "cert"}]}});
    expect(
        "ingresses",
        r#"namespace="n",ingress="i""#,
        ingress,
        r#"
        kube_ingress_info{ID,ingressclass="annotated"} 1
        kube_ingress_metadata_resource_version{ID} 7
        kube_ingress_path{ID,host="a.example.com",path="/x",path_type="Prefix",service_name="s",service_port="1234"} 1
        kube_ingress_path{ID,host="a.example.com",path="",path_type="",resource_api_group="g",resource_kind="K",resource_name="r"} 1
        kube_ingress_tls{ID,tls_host="h1",secret="cert"} 1
        kube_ingress_tls{ID,tls_host="h2",secret="cert"} 1
    "#,
    );
}

#[test]
fn network_policy_has_numbers_of_rules() {
    let policy = json!({"metadata": {"namespace": "n", "name": "p", "creationTimestamp": "2017-07-14T02:40:00Z"},
        "spec": {"ingress": [{}, {}], "egress": [{}]}});
    expect(
        "networkpolicies",
        r#"namespace="n",networkpolicy="p""#,
        policy,
        "
        kube_networkpolicy_created{ID} 1.5e+09
        kube_networkpolicy_spec_ingress_rules{ID} 2
        kube_networkpolicy_spec_egress_rules{ID} 1
    ",
    );
}
