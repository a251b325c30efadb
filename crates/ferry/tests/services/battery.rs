//! Service test suite, in the cheapest order.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::cluster::{Cluster, IMAGE, ask, run as command, until};
use super::{described, isolation, kinds, names};
use testbase::Scenarios;

/// A web server per pod that returns the pod's name; spread over both nodes, with readiness probe and termination
/// grace period.
fn web(replicas: usize) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  strategy: {{rollingUpdate: {{maxUnavailable: 0, maxSurge: 2}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      tolerations:
      - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}}
      - {{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}}
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {{matchLabels: {{app: web}}}}}}
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, "mkdir -p /www; hostname > /www/index.html; exec httpd -f -v -p 8080 -h /www"]
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
        lifecycle: {{preStop: {{exec: {{command: [sleep, "3"]}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: NodePort
  selector: {{app: web}}
  ports: [{{name: http, port: 80, targetPort: 8080, nodePort: 30080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: near}}
spec:
  selector: {{app: web}}
  internalTrafficPolicy: Local
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: sticky}}
spec:
  selector: {{app: web}}
  sessionAffinity: ClientIP
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: headless}}
spec:
  clusterIP: None
  selector: {{app: web}}
  ports: [{{name: http, port: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: elsewhere}}
spec: {{type: ExternalName, externalName: web.default.svc.cluster.local}}
"#
    )
}

pub fn run(cluster: &Cluster) {
    cluster.apply(&web(4));
    let pods = cluster.wait_for_pods("web", 4);
    let nodes: BTreeSet<&String> = pods.iter().map(|(_, node)| node).collect();
    assert_eq!(nodes.len(), 2, "on both nodes: {pods:?}");
    let mut scenarios = Scenarios::default();
    let steps: [(&str, &dyn Fn()); 12] = [
        ("every_pod_reaches_every_pod", &|| every_pod_reaches_every_pod(cluster, &pods)),
        ("services_are_reachable_from_pods_and_nodes", &|| {
            services_are_reachable_from_pods_and_nodes(cluster, &pods);
        }),
        ("names", &|| names::run(cluster, &pods)),
        ("streams_from_both_nodes", &|| streams_from_both_nodes(cluster, &pods)),
        ("kinds", &|| kinds::run(cluster, &pods)),
        ("isolation", &|| isolation::run(cluster, &pods)),
        ("node_reads_only_its_own_pods", &|| node_reads_only_its_own_pods(cluster)),
        ("described", &|| described::run(cluster, &pods)),
        ("proxy_serves_health_and_metrics", &proxy_serves_health_and_metrics),
        ("cluster_dns_yields_to_user_pods", &|| cluster_dns_yields_to_user_pods(cluster)),
        ("pods_are_replaced_without_a_failed_request", &|| {
            pods_are_replaced_without_a_failed_request(cluster);
        }),
        // Last: the second node does not return.
        ("node_loss_is_recovered", &|| node_loss_is_recovered(cluster)),
    ];
    for (name, step) in steps {
        scenarios.run(name, step);
    }
    scenarios.finish();
}

/// The second node proxies services and enforces policies, and its own identity cannot read objects of other nodes.
fn node_reads_only_its_own_pods(cluster: &Cluster) {
    let kubeconfig = cluster.data().join("nodes/n-2/agent/kubeconfig").display().to_string();
    let as_node = |arguments: &[&str]| {
        let arguments: Vec<&str> = ["--kubeconfig", &kubeconfig].iter().chain(arguments).copied().collect();
        cluster.try_kubectl(&arguments)
    };
    for kind in ["pods", "namespaces", "nodes", "endpointslices", "networkpolicies", "secrets"] {
        let error = as_node(&["get", kind, "-A"]).expect_err("refused");
        assert!(error.contains("Forbidden"), "{kind}: {error}");
    }
    let own = as_node(&["get", "pods", "-A", "--field-selector", "spec.nodeName=n-2", "-o", "name"]);
    assert!(own.as_ref().is_ok_and(|names| names.contains("pod/web")), "{own:?}");
    let users = cluster.kubectl(&["get", "serviceaccounts", "-n", "kube-system", "-o", "name"]);
    assert!(users.contains("ferry-proxy") && users.contains("ferry-network-policy"), "{users}");
}

fn get(address: &str, port: u16) -> String {
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}")
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().to_owned()
}

/// Without NAT: the server sees the pod's own address.
fn every_pod_reaches_every_pod(cluster: &Cluster, pods: &[(String, String)]) {
    let ips = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"]);
    let ips: Vec<&str> = ips.split(' ').collect();
    assert_eq!(ips.len(), 4, "{ips:?}");
    for (pod, _) in pods {
        for ip in &ips {
            let answer =
                cluster.inside(pod, &get(ip, 8080)).unwrap_or_else(|error| panic!("{pod} → {ip}: {error}"));
            assert!(pods.iter().any(|(name, _)| *name == last_line(&answer)), "{pod} → {ip}: {answer}");
        }
    }
    let (one, other) = (&pods[0], pods.iter().find(|(_, node)| *node != pods[0].1).expect("another node"));
    let own = cluster.kubectl(&["get", "pod", &one.0, "-o", "jsonpath={.status.podIP}"]);
    let theirs = cluster.kubectl(&["get", "pod", &other.0, "-o", "jsonpath={.status.podIP}"]);
    cluster.inside(&one.0, &get(&theirs, 8080)).expect("an answer");
    until("the server saw the caller's own address", || {
        let log = cluster.kubectl(&["logs", &other.0]);
        if log.contains(&own) { Ok(()) } else { Err(format!("{own} is not in {log}")) }
    });
}

fn cluster_ip(cluster: &Cluster, service: &str) -> String {
    cluster.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.clusterIP}"])
}

fn services_are_reachable_from_pods_and_nodes(cluster: &Cluster, pods: &[(String, String)]) {
    let names: BTreeSet<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
    let (web, near, sticky) =
        (cluster_ip(cluster, "web"), cluster_ip(cluster, "near"), cluster_ip(cluster, "sticky"));
    until("the node reaches all pods through the service", || {
        let seen: BTreeSet<String> = (0..40).filter_map(|_| ask(&format!("{web}:80")).ok()).collect();
        if seen.len() == names.len() { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    for (pod, node) in pods {
        let answer = until(&format!("{pod} reaches the service"), || cluster.inside(pod, &get(&web, 80)));
        assert!(names.contains(last_line(&answer).as_str()), "{answer}");
        let answer =
            until(&format!("{pod} reaches a pod of its node"), || cluster.inside(pod, &get(&near, 80)));
        let there = pods.iter().find(|(name, _)| *name == last_line(&answer)).map(|(_, node)| node);
        assert_eq!(there, Some(node), "{pod} → {answer}");
        // The API server, as pods reach it.
        cluster
            .inside(
                pod,
                "nc -w 3 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo reached",
            )
            .unwrap_or_else(|error| panic!("{pod} → the API server: {error}"));
    }
    for address in ["172.30.0.1:30080", "172.30.0.2:30080"] {
        let answer = until(address, || ask(address));
        assert!(names.contains(answer.as_str()), "{answer}");
    }
    let first = until("a sticky service answers", || ask(&format!("{sticky}:80")));
    let later: BTreeSet<String> = (0..10).filter_map(|_| ask(&format!("{sticky}:80")).ok()).collect();
    assert_eq!(later, BTreeSet::from([first]));
    // Also from the second node itself.
    let mut second = Command::new("nsenter");
    second.arg(format!("--net={}", cluster.second().display()));
    let answer = command(second.args(["busybox", "sh", "-c", &get(&web, 80)]));
    assert!(names.contains(last_line(&answer).as_str()), "{answer}");
}

fn streams_from_both_nodes(cluster: &Cluster, pods: &[(String, String)]) {
    for (pod, node) in pods {
        assert_eq!(cluster.kubectl(&["exec", pod, "--", "hostname"]), *pod, "on {node}");
        cluster.kubectl(&["logs", pod]);
    }
}

fn proxy_serves_health_and_metrics() {
    let fetch = |port: u16, path: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a port");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    assert!(fetch(10249, "/proxyMode").ends_with("nftables"));
    assert!(fetch(10249, "/metrics").contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds"));
    for path in ["/healthz", "/livez"] {
        let text = fetch(10256, path);
        assert!(text.contains(" 200 ") && text.contains("lastUpdated"), "{text}");
    }
}

/// User pods replace the endpoints of cluster DNS.
fn cluster_dns_yields_to_user_pods(cluster: &Cluster) {
    let slices = || cluster.kubectl(&["get", "endpointslices", "-n", "kube-system", "-o", "name"]);
    assert!(slices().contains("kube-dns-ferry"), "{}", slices());
    let patch = |selector: &str| {
        let patch = format!("{{\"spec\":{{\"selector\":{selector}}}}}");
        cluster.kubectl(&["patch", "service", "kube-dns", "-n", "kube-system", "--type=merge", "-p", &patch]);
    };
    patch(r#"{"k8s-app":"theirs"}"#);
    until("ours is taken back", || {
        let all = slices();
        if all.contains("kube-dns-ferry") { Err(all) } else { Ok(()) }
    });
    patch("null");
    until("the built-in endpoints are restored", || {
        let all = slices();
        if all.contains("kube-dns-ferry") { Ok(()) } else { Err(all) }
    });
}

fn pods_are_replaced_without_a_failed_request(cluster: &Cluster) {
    let address = format!("{}:80", cluster_ip(cluster, "web"));
    let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, requests, address) = (Arc::clone(&stop), Arc::clone(&requests), address.clone());
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = ask(&address) {
                        failed.push(error);
                    }
                    requests.fetch_add(1, Ordering::Relaxed);
                    // Limits the load.
                    std::thread::sleep(Duration::from_millis(5));
                }
                failed
            })
        })
        .collect();
    cluster.kubectl(&["rollout", "restart", "deployment/web"]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    stop.store(true, Ordering::Relaxed);
    let failed: Vec<String> =
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
    let requests = requests.load(Ordering::Relaxed);
    assert!(failed.is_empty(), "{} of {requests} failed: {:?}", failed.len(), failed.first());
    assert!(requests > 100, "only {requests} requests");
    println!("{requests} requests while all pods were replaced, none failed");
}

/// The second node's link is cut: its endpoints are removed, its pods are replaced, and all requests succeed again.
fn node_loss_is_recovered(cluster: &Cluster) {
    let links = command(Command::new("ip").args(["-br", "link"]));
    let cable = links.split_whitespace().find(|word| word.starts_with("fnodes") && word.contains("-2@"));
    let cable = cable.and_then(|word| word.split('@').next()).expect("the cable").to_owned();
    command(Command::new("ip").args(["link", "set", &cable, "down"]));
    let address = format!("{}:80", cluster_ip(cluster, "web"));
    until("the node is known to be lost", || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        match cluster.try_kubectl(&["get", "node", "n-2", "-o", ready]) {
            Ok(text) if text == "Unknown" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    until("four pods are ready on the node that is left", || {
        let pods = cluster.ready_pods("web");
        let here = pods.iter().filter(|(_, node)| node == "n").count();
        if here == 4 { Ok(()) } else { Err(format!("{pods:?}")) }
    });
    until("every request is answered", || {
        let answers: Vec<_> = (0..20).map(|_| ask(&address)).collect();
        match answers.iter().find(|answer| answer.is_err()) {
            None => Ok(()),
            Some(error) => Err(format!("{error:?}")),
        }
    });
    command(Command::new("ip").args(["link", "set", &cable, "up"]));
    until("the node recovers", || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        match cluster.try_kubectl(&["get", "node", "n-2", "-o", ready]) {
            Ok(text) if text == "True" => Ok(()),
            other => Err(format!("{other:?}\n{}", cluster.log())),
        }
    });
}
