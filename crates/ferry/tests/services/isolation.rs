//! Network policies are enforced from a pod's first packet on.

use super::cluster::{Cluster, IMAGE, until};

const COUNT: usize = 6;

/// Pods that connect to `address` first and print the result.
fn tries(name: &str, address: &str, count: usize) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {count}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: {IMAGE}
        command:
        - sh
        - -c
        - printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 3 {address} 8080 2>/dev/null | grep -q . && echo reached || echo isolated; exec sleep 100000
"#
    )
}

fn outcomes(cluster: &Cluster, name: &str, count: usize) -> Vec<String> {
    let pods = cluster.wait_for_pods(name, count);
    let name_of = |(pod, _): &(String, String)| {
        until(&format!("{pod} prints its result"), || match cluster.try_kubectl(&["logs", pod]) {
            Ok(text) if !text.is_empty() => Ok(text),
            other => Err(format!("{other:?}")),
        })
    };
    pods.iter().map(name_of).collect()
}

pub fn run(cluster: &Cluster, pods: &[(String, String)]) {
    cluster.apply(
        r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut-in}
spec:
  podSelector: {matchLabels: {app: shut-in}}
  policyTypes: [Ingress, Egress]
"#,
    );
    // A pod that no policy selects connects: the server is reachable.
    let address = cluster.kubectl(&["get", "pod", &pods[0].0, "-o", "jsonpath={.status.podIP}"]);
    cluster.apply(&tries("free", &address, 1));
    assert_eq!(outcomes(cluster, "free", 1), ["reached"]);
    cluster.apply(&tries("shut-in", &address, COUNT));
    assert_eq!(outcomes(cluster, "shut-in", COUNT), vec!["isolated"; COUNT]);
    cluster.kubectl(&["delete", "deployment", "free", "shut-in"]);
    cluster.kubectl(&["delete", "networkpolicy", "shut-in"]);
}
