//! Clusters with IPv6 alone, and with IPv6 before IPv4: nodes, pods, services, names, host ports and network policies.

use std::collections::BTreeSet;

use testbase::Scenarios;

use super::cluster::{Cluster, IMAGE, Ranges, ask, until};

/// IPv6 alone.
pub const IPV6: Ranges = Ranges { services: "fd96::/112", pods: "fd44::/56" };
/// Both families, IPv6 first.
pub const IPV6_FIRST: Ranges =
    Ranges { services: "fd96::/112,10.96.0.0/16", pods: "fd44::/56,10.244.0.0/16" };

fn manifests() -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: web}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -p 8080 -h /www"]
        ports: [{{containerPort: 8080, hostPort: 8099}}]
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080, nodePort: 30080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: headless}}
spec: {{clusterIP: None, selector: {{app: web}}, ports: [{{port: 8080}}]}}
"#
    )
}

pub fn run(ranges: Ranges) {
    let cluster = Cluster::start_in(ranges);
    cluster.apply(&manifests());
    let pods = cluster.wait_for_pods("web", 2);
    let both = ranges.pods.contains(',');
    let mut scenarios = Scenarios::default();
    let steps: [(&str, &dyn Fn()); 6] = [
        ("objects_have_addresses_of_the_families", &|| objects_have_addresses(&cluster, both)),
        ("pods_reach_pods_services_and_the_api_server", &|| pods_reach_each_other(&cluster, &pods)),
        ("names_resolve", &|| names_resolve(&cluster, &pods, both)),
        ("node_and_host_ports_are_served", &|| ports_are_served(&pods, both)),
        ("api_server_reaches_kubelets_and_pods", &|| api_server_reaches_nodes(&cluster, &pods)),
        ("network_policies_are_enforced", &|| policies_are_enforced(&cluster, &pods)),
    ];
    for (name, step) in steps {
        scenarios.run(name, step);
    }
    scenarios.finish();
}

type Pods<'a> = &'a [(String, String)];

/// Words that a JSONPath prints.
fn words(cluster: &Cluster, object: &[&str], path: &str) -> Vec<String> {
    let output = format!("jsonpath={path}");
    let text = cluster.kubectl(&[&["get"], object, &["-o", &output]].concat());
    text.split_whitespace().map(str::to_owned).collect()
}

/// HTTP response to a pod's request.
fn get(cluster: &Cluster, pod: &str, address: &str, port: u16) -> Result<String, String> {
    cluster.inside(pod, &format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {address} {port}"))
}

fn objects_have_addresses(cluster: &Cluster, both: bool) {
    let families = |addresses: &[String]| -> Vec<bool> {
        addresses.iter().map(|address| address.contains(':')).collect()
    };
    let wanted = if both { vec![true, false] } else { vec![true] };
    for (object, path) in [
        (["node", "n"], "{.status.addresses[?(@.type==\"InternalIP\")].address}"),
        (["node", "n-2"], "{.status.addresses[?(@.type==\"InternalIP\")].address}"),
        (["node", "n-2"], "{.spec.podCIDRs[*]}"),
        (["service", "web"], "{.spec.clusterIPs[*]}"),
    ] {
        let found = words(cluster, &object, path);
        assert_eq!(families(&found), wanted, "{object:?} {path}: {found:?}");
    }
    assert_eq!(words(cluster, &["service", "kubernetes"], "{.spec.clusterIPs[*]}"), ["fd96::1"]);
    let slice = ["endpointslices", "-l", "kubernetes.io/service-name=kubernetes"];
    assert_eq!(words(cluster, &slice, "{.items[*].addressType}"), ["IPv6"]);
}

fn pods_reach_each_other(cluster: &Cluster, pods: Pods<'_>) {
    let services = words(cluster, &["service", "web"], "{.spec.clusterIPs[*]}");
    for (from, _) in pods {
        for (to, _) in pods {
            for address in words(cluster, &["pod", to], "{.status.podIPs[*].ip}") {
                let answer = get(cluster, from, &address, 8080);
                assert!(
                    answer.as_ref().is_ok_and(|text| text.ends_with(to)),
                    "{from} to {address}: {answer:?}"
                );
            }
        }
        for service in &services {
            until(&format!("{from} reaches {service}"), || {
                let answer = get(cluster, from, service, 80)?;
                if answer.contains("200 OK") { Ok(()) } else { Err(answer) }
            });
        }
        let host = cluster.inside(from, "echo $KUBERNETES_SERVICE_HOST").expect("a variable");
        assert_eq!(host, "fd96::1");
        cluster.inside(from, "nc -w 3 fd96::1 443 < /dev/null").expect("the API server accepts connections");
    }
}

fn names_resolve(cluster: &Cluster, pods: Pods<'_>, both: bool) {
    let services = words(cluster, &["service", "web"], "{.spec.clusterIPs[*]}");
    let all = words(cluster, &["pods", "-l", "app=web"], "{.items[*].status.podIPs[0].ip}");
    for (pod, _) in pods {
        let config = cluster.inside(pod, "cat /etc/resolv.conf").expect("a file");
        assert!(config.contains("nameserver fd96::a"), "{config}");
        for (name, addresses) in
            [("web.default.svc.cluster.local", &services), ("headless.default.svc.cluster.local", &all)]
        {
            until(&format!("{pod} finds {name}"), || {
                let text = cluster.inside(pod, &format!("nslookup {name} || true"))?;
                let missing: Vec<_> = addresses.iter().filter(|address| !text.contains(*address)).collect();
                if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} in {text}")) }
            });
        }
        let text = cluster.inside(pod, &format!("nslookup {}", services[0])).expect("a reverse lookup");
        assert!(text.contains("web.default.svc.cluster.local"), "{text}");
    }
    let dns = words(cluster, &["service", "kube-dns", "-n", "kube-system"], "{.spec.clusterIPs[*]}");
    assert_eq!(dns.first().map(String::as_str), Some("fd96::a"));
    assert!(both || dns.len() == 1, "{dns:?}");
}

fn ports_are_served(pods: Pods<'_>, both: bool) {
    let mut nodes = vec![("n", "[fd30::1]"), ("n-2", "[fd30::2]")];
    if both {
        nodes.extend([("n", "172.30.0.1"), ("n-2", "172.30.0.2")]);
    }
    for (node, address) in nodes {
        until(&format!("all pods are behind the node port of {address}"), || {
            let seen: BTreeSet<String> =
                (0..20).map(|_| ask(&format!("{address}:30080"))).collect::<Result<_, _>>()?;
            if seen.len() == pods.len() { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        let own = pods.iter().find(|(_, at)| at == node).map(|(pod, _)| pod.clone());
        let answer = ask(&format!("{address}:8099"));
        assert_eq!(answer.ok(), own, "host port of {address}");
    }
}

fn api_server_reaches_nodes(cluster: &Cluster, pods: Pods<'_>) {
    for (pod, _) in pods {
        assert_eq!(cluster.inside(pod, "hostname").as_ref(), Ok(pod));
        cluster.try_kubectl(&["logs", pod]).expect("the log");
        let path = format!("/api/v1/namespaces/default/pods/{pod}:8080/proxy/");
        assert_eq!(cluster.kubectl(&["get", "--raw", &path]), *pod);
    }
}

fn policies_are_enforced(cluster: &Cluster, pods: Pods<'_>) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: friend, labels: {{role: friend}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: {IMAGE}, command: [sleep, "1000"]}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: friends}}
spec:
  podSelector: {{matchLabels: {{app: web}}}}
  ingress: [{{from: [{{podSelector: {{matchLabels: {{role: friend}}}}}}]}}]
"#
    ));
    cluster.kubectl(&["wait", "pod/friend", "--for=condition=Ready", "--timeout=60s"]);
    for (to, _) in pods {
        for address in words(cluster, &["pod", to], "{.status.podIPs[*].ip}") {
            until(&format!("friend reaches {address}"), || {
                get(cluster, "friend", &address, 8080).map(|_| ())
            });
            for (from, _) in pods.iter().filter(|(from, _)| from != to) {
                until(&format!("{from} does not reach {address}"), || {
                    match get(cluster, from, &address, 8080) {
                        Ok(text) => Err(text),
                        Err(_) => Ok(()),
                    }
                });
            }
        }
    }
    cluster.kubectl(&["delete", "networkpolicy", "friends"]);
}
