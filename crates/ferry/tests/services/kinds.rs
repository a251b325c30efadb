//! Services that change their type, have several ports or manual endpoints, and services and pods through the API
//! server's proxy.

use std::collections::BTreeSet;

use super::cluster::{Cluster, ask, until};
use testbase::scenarios;

pub fn run(cluster: &Cluster, pods: &[(String, String)]) {
    scenarios![
        (cluster, pods);
        pods_and_services_are_proxied_by_api_server,
        affinity_is_switched,
        several_ports_and_manual_endpoints_are_served,
        both_families_are_served,
        service_types_are_changed,
    ];
}

fn pods_and_services_are_proxied_by_api_server(cluster: &Cluster, pods: &[(String, String)]) {
    for (pod, _) in pods {
        let path = format!("/api/v1/namespaces/default/pods/{pod}:8080/proxy/");
        assert_eq!(cluster.kubectl(&["get", "--raw", &path]), *pod);
    }
    for service in ["web:http", "http:web:http"] {
        let path = format!("/api/v1/namespaces/default/services/{service}/proxy/");
        let answer = cluster.kubectl(&["get", "--raw", &path]);
        assert!(pods.iter().any(|(name, _)| *name == answer), "{answer}");
    }
}

fn address(cluster: &Cluster, service: &str) -> String {
    cluster.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.clusterIP}"])
}

fn answers(to: &str) -> BTreeSet<String> {
    (0..30).map(|_| ask(to).unwrap_or_else(|error| error)).collect()
}

fn affinity_is_switched(cluster: &Cluster, _: &[(String, String)]) {
    let to = format!("{}:80", address(cluster, "sticky"));
    let set = |affinity: &str| {
        let patch = format!("{{\"spec\":{{\"sessionAffinity\":\"{affinity}\"}}}}");
        cluster.kubectl(&["patch", "service", "sticky", "--type=merge", "-p", &patch]);
    };
    for (affinity, sticks) in [("None", false), ("ClientIP", true)] {
        set(affinity);
        until(&format!("affinity {affinity} counts"), || {
            let seen = answers(&to);
            if (seen.len() == 1) == sticks { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
}

fn several_ports_and_manual_endpoints_are_served(cluster: &Cluster, pods: &[(String, String)]) {
    let ip = cluster.kubectl(&["get", "pod", &pods[0].0, "-o", "jsonpath={.status.podIP}"]);
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: ports}}
spec:
  selector: {{app: web}}
  ports: [{{name: one, port: 80, targetPort: 8080}}, {{name: two, port: 81, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: written}}
spec:
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Endpoints
metadata: {{name: written}}
subsets: [{{addresses: [{{ip: {ip}}}], ports: [{{port: 8080}}]}}]
"#
    ));
    let several = address(cluster, "ports");
    for port in [80, 81] {
        until(&format!("port {port} is served"), || ask(&format!("{several}:{port}")));
    }
    cluster.kubectl(&[
        "patch",
        "service",
        "ports",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/spec/ports/1"}]"#,
    ]);
    until("a removed port refuses connections", || match ask(&format!("{several}:81")) {
        Err(error) if error.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let written = format!("{}:80", address(cluster, "written"));
    until("a manual endpoint is reachable", || {
        let answer = ask(&written)?;
        if answer == pods[0].0 { Ok(()) } else { Err(answer) }
    });
}

fn both_families_are_served(cluster: &Cluster, pods: &[(String, String)]) {
    cluster.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#,
    );
    let six = cluster.kubectl(&["get", "service", "both", "-o", "jsonpath={.spec.clusterIPs[1]}"]);
    until("the node reaches all pods over IPv6", || {
        let seen = answers(&format!("[{six}]:80"));
        if seen.len() == pods.len() { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    for (pod, _) in pods {
        let own = cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIPs[1].ip}"]);
        for (from, _) in pods {
            let get = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {own} 8080");
            let answer = cluster.inside(from, &get).unwrap_or_else(|error| panic!("{from} → {own}: {error}"));
            assert!(answer.ends_with(pod.as_str()), "{from} → {own}: {answer}");
        }
        let get = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {six} 80");
        cluster.inside(pod, &get).unwrap_or_else(|error| panic!("{pod} → {six}: {error}"));
    }
}

/// An ExternalName service becomes a ClusterIP service, then NodePort, and ExternalName again.
fn service_types_are_changed(cluster: &Cluster, _: &[(String, String)]) {
    let patch = |patch: &str| {
        cluster.kubectl(&["patch", "service", "elsewhere", "--type=merge", "-p", patch]);
    };
    patch(
        r#"{"spec":{"type":"ClusterIP","externalName":null,"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}"#,
    );
    let to = format!("{}:80", address(cluster, "elsewhere"));
    until("the service has an address", || ask(&to));
    patch(r#"{"spec":{"type":"NodePort","ports":[{"port":80,"targetPort":8080,"nodePort":30099}]}}"#);
    for node in ["172.30.0.1:30099", "172.30.0.2:30099"] {
        until(&format!("the service has a port of {node}"), || ask(node));
    }
    patch(
        r#"{"spec":{"type":"ExternalName","externalName":"web.default.svc.cluster.local","clusterIP":null,"clusterIPs":null,"selector":null,"ports":null}}"#,
    );
    until("the port is closed again", || match ask("172.30.0.1:30099") {
        Err(error) if error.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
