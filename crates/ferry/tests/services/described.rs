//! The descriptions of Kubernetes' conformance suite for the network group, each with a test of our own: in this
//! file, or in a neighbouring one that covers it.

use super::cluster::{Cluster, IMAGE, ask, until};
use super::endpoints;
use super::objects;
use super::udp;
use testbase::Scenarios;

type Pods<'a> = &'a [(String, String)];

/// Descriptions and their tests.
type Row = (&'static [&'static str], fn(&Cluster, Pods<'_>));

const TABLE: &[Row] = &[
    (
        &[
            "API Server should have Endpoints and EndpointSlices pointing to API Server",
            "API Server should provide secure master service",
            "Services should find a service from listing all namespaces",
        ],
        api_server_is_reachable_as_service,
    ),
    (
        &[
            "DNS should provide /etc/hosts entries for the cluster",
            "DNS should provide DNS for pods for Hostname",
            "DNS should provide DNS for pods for Subdomain",
        ],
        pods_have_dns_names,
    ),
    (&["DNS should support configurable pod DNS nameservers"], pod_dns_config_is_applied),
    (
        &[
            "EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service",
            "EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods",
            "EndpointsController should create Endpoints for Pods matching a Service",
            "EndpointsController should create and delete Endpoints for a Service with a selector that matches no pods",
            "Services should serve a basic endpoint from pods",
        ],
        endpoints::follow_pods,
    ),
    (
        &[
            "EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices",
            "EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices",
        ],
        endpoints::in_several_slices,
    ),
    (
        &[
            "EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete",
        ],
        endpoints::are_mirrored,
    ),
    (&["Service endpoints latency should not be very high"], endpoints::of_many_services),
    (
        &[
            "HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol",
        ],
        host_ports_differ_by_address_and_protocol,
    ),
    (
        &[
            "Networking Granular Checks: Pods should function for intra-pod communication: udp",
            "Networking Granular Checks: Pods should function for node-pod communication: udp",
            "Services should serve endpoints on same port and different protocols",
        ],
        udp::run,
    ),
    (
        &["Networking Granular Checks: Pods should function for node-pod communication: http"],
        nodes_reach_pods,
    ),
    (
        &[
            "EndpointSlice should support creating EndpointSlice API operations",
            "Endpoints should test the lifecycle of an Endpoint",
            "Ingress API should support creating Ingress API operations",
            "IngressClass API should support creating IngressClass API operations",
            "ServiceCIDR and IPAddress API should support IPAddress API operations",
            "ServiceCIDR and IPAddress API should support ServiceCIDR API operations",
            "Services should complete a service status lifecycle",
            "Services should delete a collection of services",
        ],
        objects::run,
    ),
    (
        &[
            "Services should be able to switch session affinity for NodePort service",
            "Services should have session affinity work for NodePort service",
            "Services should be able to change the type from ClusterIP to ExternalName",
        ],
        node_port_affinity_and_type_change,
    ),
];

/// Descriptions covered by the suite that ran before.
const TESTED_BEFORE: &[(&str, &[&str])] = &[
    (
        "names",
        &[
            "DNS should provide DNS for ExternalName services",
            "DNS should provide DNS for services",
            "DNS should provide DNS for the cluster",
            "DNS should resolve DNS of partial qualified names for services",
        ],
    ),
    (
        "battery",
        &[
            "Networking Granular Checks: Pods should function for intra-pod communication: http",
            "Services should be able to create a functioning NodePort service",
            "Services should have session affinity work for service with type clusterIP",
        ],
    ),
    (
        "kinds",
        &[
            "Proxy version v1 A set of valid responses are returned for both pod and service Proxy",
            "Proxy version v1 A set of valid responses are returned for both pod and service ProxyWithPath",
            "Proxy version v1 should proxy through a service and a pod",
            "Services should be able to change the type from ExternalName to ClusterIP",
            "Services should be able to change the type from ExternalName to NodePort",
            "Services should be able to change the type from NodePort to ExternalName",
            "Services should be able to switch session affinity for service with type clusterIP",
            "Services should serve multiport endpoints from pods",
        ],
    ),
];

/// Number of descriptions in the conformance suite.
const DESCRIBED: usize = 47;

pub fn run(cluster: &Cluster, pods: Pods<'_>) {
    let here: usize = TABLE.iter().map(|(descriptions, _)| descriptions.len()).sum();
    let before: usize = TESTED_BEFORE.iter().map(|(_, descriptions)| descriptions.len()).sum();
    assert_eq!(here + before, DESCRIBED, "every description has a test");
    let mut scenarios = Scenarios::default();
    for (descriptions, test) in TABLE {
        scenarios.run(&descriptions.join("; "), || test(cluster, pods));
    }
    scenarios.finish();
}

fn api_server_is_reachable_as_service(cluster: &Cluster, pods: Pods<'_>) {
    let service = cluster.kubectl(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]);
    let all = "jsonpath={.items[?(@.metadata.name==\"kubernetes\")].spec.clusterIP}";
    assert_eq!(cluster.kubectl(&["get", "services", "-A", "-o", all]), service);
    let endpoints =
        cluster.kubectl(&["get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[*].addresses[*].ip}"]);
    let slices = "jsonpath={.items[*].endpoints[*].addresses[*]}";
    let label = "kubernetes.io/service-name=kubernetes";
    assert_eq!(cluster.kubectl(&["get", "endpointslices", "-l", label, "-o", slices]), endpoints);
    for (pod, _) in pods {
        let reached = "nc -w 3 kubernetes.default.svc 443 < /dev/null && echo reached";
        until(&format!("{pod} reaches the API server by name"), || cluster.inside(pod, reached));
    }
}

/// A pod with hostname and subdomain is resolvable by both names, also by itself.
fn pods_have_dns_names(cluster: &Cluster, pods: Pods<'_>) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: family}}
spec: {{clusterIP: None, selector: {{app: named}}, ports: [{{port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: named, labels: {{app: named}}}}
spec:
  hostname: child
  subdomain: family
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: "{IMAGE}"}}]
"#
    ));
    cluster.wait_for_pods("named", 1);
    let ip = cluster.kubectl(&["get", "pod", "named", "-o", "jsonpath={.status.podIP}"]);
    let hosts = cluster.inside("named", "cat /etc/hosts").expect("a file");
    let own = "child.family.default.svc.cluster.local";
    assert!(hosts.lines().any(|line| line.starts_with(&ip) && line.contains(own)), "{hosts}");
    assert_eq!(cluster.inside("named", "hostname").as_deref(), Ok("child"));
    for name in [own, "family.default.svc.cluster.local"] {
        until(&format!("{name} is known"), || {
            let text = cluster.inside(&pods[0].0, &format!("nslookup {name} || true"))?;
            if text.contains(&ip) { Ok(()) } else { Err(text) }
        });
    }
    cluster.kubectl(&["delete", "pod/named", "service/family"]);
}

fn pod_dns_config_is_applied(cluster: &Cluster, _: Pods<'_>) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: asks, labels: {{app: asks}}}}
spec:
  dnsPolicy: None
  dnsConfig: {{nameservers: [1.1.1.1], searches: [resolv.conf.local], options: [{{name: ndots, value: "2"}}]}}
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: "{IMAGE}"}}]
"#
    ));
    cluster.wait_for_pods("asks", 1);
    let file = cluster.inside("asks", "cat /etc/resolv.conf").expect("a file");
    let lines: Vec<&str> = file.lines().collect();
    assert_eq!(lines, ["search resolv.conf.local", "nameserver 1.1.1.1", "options ndots:2"]);
    cluster.kubectl(&["delete", "pod/asks"]);
}

/// Three pods of one node use the same host port: at two addresses, and with another protocol.
fn host_ports_differ_by_address_and_protocol(cluster: &Cluster, _: Pods<'_>) {
    const PORT: u16 = 30_123;
    let pod = |name: &str, ip: &str, protocol: &str| {
        format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: host-port}}}}
spec:
  nodeName: "n"
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -p 8080 -h /www"]
    ports: [{{containerPort: 8080, hostPort: {PORT}, hostIP: {ip}, protocol: {protocol}}}]
---"#
        )
    };
    let own = "172.30.0.1";
    cluster.apply(&format!(
        "{}{}{}",
        pod("port-one", "127.0.0.1", "TCP"),
        pod("port-two", own, "TCP"),
        pod("port-three", own, "UDP")
    ));
    cluster.wait_for_pods("host-port", 3);
    for (ip, name) in [("127.0.0.1", "port-one"), (own, "port-two")] {
        until(&format!("{ip} leads to {name}"), || {
            let answer = ask(&format!("{ip}:{PORT}"))?;
            if answer == name { Ok(()) } else { Err(answer) }
        });
    }
    cluster.kubectl(&["delete", "pods", "-l", "app=host-port"]);
}

fn nodes_reach_pods(cluster: &Cluster, pods: Pods<'_>) {
    for (pod, node) in pods {
        let ip = cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"]);
        let answer = until(&format!("the first node reaches {pod} on {node}"), || ask(&format!("{ip}:8080")));
        assert_eq!(answer, *pod);
    }
}

fn node_port_affinity_and_type_change(cluster: &Cluster, _: Pods<'_>) {
    cluster.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: changing}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30124}]
"#,
    );
    let patch = |patch: &str| {
        cluster.kubectl(&["patch", "service", "changing", "--type=merge", "-p", patch]);
    };
    for (affinity, sticks) in [("ClientIP", true), ("None", false), ("ClientIP", true)] {
        patch(&format!("{{\"spec\":{{\"sessionAffinity\":\"{affinity}\"}}}}"));
        until(&format!("affinity {affinity} counts at the node's port"), || {
            let answers = (0..30).map(|_| ask("172.30.0.1:30124").unwrap_or_else(|error| error));
            let seen: std::collections::BTreeSet<String> = answers.collect();
            if (seen.len() == 1) == sticks { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
    patch(r#"{"spec":{"type":"ClusterIP","sessionAffinity":"None"}}"#);
    until("the port is closed", || match ask("172.30.0.1:30124") {
        Err(error) if error.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    patch(
        r#"{"spec":{"type":"ExternalName","externalName":"web.default.svc.cluster.local","clusterIP":null,"clusterIPs":null,"selector":null,"ports":null}}"#,
    );
    let kind = "jsonpath={.spec.type} {.spec.clusterIP}";
    assert_eq!(cluster.kubectl(&["get", "service", "changing", "-o", kind]), "ExternalName");
    cluster.kubectl(&["delete", "service", "changing"]);
}
