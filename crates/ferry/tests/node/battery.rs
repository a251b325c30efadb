//! Node test suite, driven with kubectl.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use super::machine::{Engine, Machine, until};
use testbase::Scenarios;

const PODS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {k: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: full, labels: {x: "y"}}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 2000}
  hostAliases: [{ip: 1.2.3.4, hostnames: [elsewhere]}]
  initContainers:
  - name: init
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "echo first > /shared/file"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: sidecar
    image: docker.io/test/busybox:1
    restartPolicy: Always
    command: [/bin/sleep, "1000"]
  containers:
  - name: main
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "echo hello $(NAME); echo to stderr >&2; echo page > /tmp/index.html; httpd -p 8080 -h /tmp; while true; do sleep 1; done"]
    ports: [{containerPort: 8080, name: web}]
    envFrom: [{prefix: FROM_, configMapRef: {name: settings}}]
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: HIDDEN, valueFrom: {secretKeyRef: {name: secret, key: k}}}
    - {name: JOINED, value: "$(NAME)-$(FROM_a)"}
    readinessProbe: {httpGet: {port: web, path: /index.html}, periodSeconds: 1, timeoutSeconds: 30}
    livenessProbe: {tcpSocket: {port: 8080}, initialDelaySeconds: 5, periodSeconds: 1, timeoutSeconds: 30}
    lifecycle: {postStart: {exec: {command: [/bin/touch, /tmp/started]}}}
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: shared, mountPath: /part, subPath: deep/part}
    - {name: settings, mountPath: /settings}
    - {name: secret, mountPath: /secret}
    - {name: about, mountPath: /about}
    - {name: memory, mountPath: /memory}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: settings, configMap: {name: settings}}
  - {name: secret, secret: {secretName: secret, defaultMode: 0400}}
  - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  containers:
  - {name: c, image: "docker.io/test/busybox:1", command: [/bin/sh, -c, "echo dying > /dev/termination-log; exit 3"]}
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  restartPolicy: Never
  containers:
  - {name: c, image: "docker.io/test/busybox:1", command: [/bin/echo, "all done"]}
---
apiVersion: v1
kind: Pod
metadata: {name: stuck}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  containers:
  - {name: c, image: "docker.io/test/none:1", imagePullPolicy: Never}
  - {name: d, image: "docker.io/test/busybox:1", env: [{name: X, valueFrom: {configMapKeyRef: {name: none, key: k}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  containers:
  - {name: c, image: "127.0.0.1:1/test/none:1"}
  - {name: d, image: "test//none:1"}
---
apiVersion: v1
kind: Pod
metadata: {name: sick}
spec:
  nodeName: n1
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    livenessProbe: {exec: {command: [/bin/false]}, periodSeconds: 1, failureThreshold: 1}
"#;

const READY: &str = "{.status.conditions[?(@.type==\"Ready\")].status}";

pub fn run(machine: &mut Machine) {
    until("the default service account", || {
        machine
            .try_kubectl(&["get", "serviceaccount", "default"])
            .or_else(|_| machine.try_kubectl(&["create", "serviceaccount", "default"]))
            .map(|_| ())
    });
    machine.apply(PODS);
    machine.wait_for("full", READY, "True");
    let mut scenarios = Scenarios::default();
    scenarios.run("pod_settings_reach_containers", || pod_settings_reach_containers(machine));
    scenarios.run("commands_run_in_containers", || commands_run_in_containers(machine));
    scenarios.run("ports_are_reachable", || ports_are_reachable(machine));
    scenarios.run("failures_are_reported", || failures_are_reported(machine));
    scenarios.run("measurements", || measurements(machine));
    if machine.engine() == Engine::Own {
        scenarios.run("node_joins_with_token", || node_joins_with_token(machine));
    }
    scenarios.run("restarted_kubelet_resumes_pods", || restarted_kubelet_resumes_pods(machine));
    scenarios.finish();
    machine.kubectl(&["delete", "pods", "--all", "--timeout=120s"]);
    until("nothing of the pods is left", || {
        let left: Vec<_> = std::fs::read_dir(machine.node_directory())
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

fn pod_settings_reach_containers(machine: &Machine) {
    let inside = |script: &str| machine.kubectl(&["exec", "full", "-c", "main", "--", "sh", "-c", script]);
    let environment = inside("echo $NAME $HIDDEN $JOINED $FROM_b $KUBERNETES_SERVICE_PORT");
    assert_eq!(environment.trim(), "full hidden full-1 2 443");
    assert_eq!(inside("cat /shared/file /settings/a /secret/k").trim(), "first\n1hidden");
    assert_eq!(inside("cat /about/labels"), "x=\"y\"");
    assert!(inside("cat /etc/hosts").contains("1.2.3.4\telsewhere"));
    assert!(inside("id").contains("2000"), "{}", inside("id"));
    assert_eq!(inside("hostname").trim(), "full");
    assert_eq!(inside("echo x > /part/f; cat /shared/deep/part/f").trim(), "x");
    assert_eq!(inside("ls /tmp/started").trim(), "/tmp/started");
    until("both streams are in the log", || {
        let logs = machine.try_kubectl(&["logs", "full", "-c", "main"])?;
        if logs.lines().count() == 2 { Ok(()) } else { Err(logs) }
    });
    let logs = machine.kubectl(&["logs", "full", "-c", "main"]);
    // Both streams have their own pipes with every runtime, so their relative order is undefined; Kubernetes does not
    // guarantee any either.
    let mut lines: Vec<&str> = logs.lines().collect();
    let last = lines.last().copied().unwrap_or_default().to_owned();
    lines.sort_unstable();
    assert_eq!(lines, ["hello full", "to stderr"]);
    assert_eq!(machine.kubectl(&["logs", "full", "-c", "main", "--tail=1"]).trim_end(), last);
    let phase = "{.status.phase} {.status.containerStatuses[0].state.terminated.reason}";
    machine.wait_for("once", phase, "Succeeded Completed");
    assert_eq!(machine.kubectl(&["logs", "once"]), "all done\n");
}

fn commands_run_in_containers(machine: &Machine) {
    let output = machine.output(&["exec", "full", "-c", "main", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let mut cat = machine
        .command(&["exec", "-i", "full", "-c", "main", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    cat.stdin.take().expect("its input").write_all(b"through and back").expect("written");
    let output = cat.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "through and back");
}

fn ports_are_reachable(machine: &Machine) {
    let page =
        machine.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/full:8080/proxy/index.html"]);
    assert_eq!(page, "page\n");
    let mut forward = machine
        .command(&["port-forward", "full", "18080:8080"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl runs");
    let mut answer = String::new();
    until("the forwarded port answers", || {
        let fail = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", 18080)).map_err(fail)?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(fail)?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").map_err(fail)?;
        answer.clear();
        stream.read_to_string(&mut answer).map_err(fail)?;
        if answer.contains("page") { Ok(()) } else { Err(answer.clone()) }
    });
    let _ = forward.kill();
    let _ = forward.wait();
}

fn failures_are_reported(machine: &Machine) {
    let waiting = |index: usize| format!("{{.status.containerStatuses[{index}].state.waiting.reason}}");
    machine.wait_for("crash", &waiting(0), "CrashLoopBackOff");
    let last = "{.status.containerStatuses[0].lastState.terminated.exitCode} {.status.containerStatuses[0].lastState.terminated.message}";
    machine.wait_for("crash", last, "3 dying\n");
    machine.wait_for("stuck", &waiting(0), "ErrImageNeverPull");
    machine.wait_for("stuck", &waiting(1), "CreateContainerConfigError");
    machine.wait_for("absent", &waiting(0), "ImagePullBackOff");
    machine.wait_for("absent", &waiting(1), "InvalidImageName");
    until("the sick container is restarted", || {
        let count = machine.kubectl(&[
            "get",
            "pod",
            "sick",
            "-o",
            "jsonpath={.status.containerStatuses[0].restartCount}",
        ]);
        if count.parse::<u32>().is_ok_and(|count| count > 0) { Ok(()) } else { Err(count) }
    });
    for text in [
        "Container started",
        "failed liveness probe, will be restarted",
        "Back-off restarting failed container c in pod crash_default",
        "is not present with pull policy of Never",
        "Back-off pulling image \"127.0.0.1:1/test/none:1\"",
        "couldn't parse image name \"test//none:1\": invalid reference format",
        "Error: configmap \"none\" not found",
    ] {
        until(&format!("an event contains {text:?}"), || {
            let events = machine.try_kubectl(&["get", "events"])?;
            if events.contains(text) { Ok(()) } else { Err(events) }
        });
    }
}

/// The kubelet has its own certificate, loaded its configuration file, and serves with a certificate signed by the
/// cluster.
fn node_joins_with_token(machine: &Machine) {
    let pki = machine.path("node/kubelet/pki");
    let kubeconfig =
        std::fs::read_to_string(machine.path("node.kubeconfig")).expect("a kubeconfig of its own");
    assert!(
        kubeconfig.contains("kubelet-client-current.pem") && !kubeconfig.contains("token"),
        "{kubeconfig}"
    );
    let field = "jsonpath={.status.capacity.pods}";
    assert_eq!(machine.kubectl(&["get", "node", "n1", "-o", field]), "42");
    let signer = "{.items[?(@.spec.signerName==\"kubernetes.io/kubelet-serving\")].metadata.name}";
    let served = || std::fs::read_to_string(pki.join("kubelet-server-current.pem")).unwrap_or_default();
    until("the serving certificate is signed", || {
        let names = machine.try_kubectl(&["get", "csr", "-o", &format!("jsonpath={signer}")])?;
        for name in names.split_whitespace() {
            machine.try_kubectl(&["certificate", "approve", name])?;
        }
        if served().contains("BEGIN CERTIFICATE") { Ok(()) } else { Err(format!("requests: {names}")) }
    });
    machine.kubectl(&["exec", "full", "-c", "main", "--", "true"]);
}

fn restarted_kubelet_resumes_pods(machine: &mut Machine) {
    let id = "{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
    let before = machine.kubectl(&["get", "pod", "full", "-o", &format!("jsonpath={id}")]);
    machine.replace_kubelet();
    until("the new kubelet answers", || {
        machine.try_kubectl(&["exec", "full", "-c", "main", "--", "true"]).map(|_| ())
    });
    machine.wait_for("full", READY, "True");
    assert_eq!(machine.kubectl(&["get", "pod", "full", "-o", &format!("jsonpath={id}")]), before);
}

fn measurements(machine: &Machine) {
    for (path, text) in [
        ("stats/summary", "\"nodeName\":\"n1\""),
        ("stats/summary", "\"name\":\"full\""),
        ("metrics/resource", "container_memory_working_set_bytes{container=\"main\""),
    ] {
        until(&format!("{path} has {text}"), || {
            let answer = machine.try_kubectl(&["get", "--raw", &format!("/api/v1/nodes/n1/proxy/{path}")])?;
            if answer.contains(text) { Ok(()) } else { Err(answer) }
        });
    }
}
