//! Pod resources and probes: limits, eviction, in-place resize; and updates that reach a running pod.

use std::fs;
use std::path::{Path, PathBuf};

use super::machine::{Machine, until};
use testbase::scenarios;

const PODS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {key: before}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {key: before}
---
apiVersion: v1
kind: Pod
metadata: {name: reads, labels: {colour: red}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    volumeMounts: [{name: all, mountPath: /all}]
  volumes:
  - name: all
    projected:
      sources:
      - configMap: {name: settings, items: [{key: key, path: settings}]}
      - secret: {name: hidden, items: [{key: key, path: hidden}]}
      - configMap: {name: later, optional: true}
      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "sleep 1; x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"]
    resources: {limits: {memory: 24Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: fills}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "head -c 3000000 /dev/zero > /data/file; sleep 1000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]
---
apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 32Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
---
apiVersion: v1
kind: Pod
metadata: {name: unready}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "touch /tmp/fine; sleep 1000"]
    readinessProbe: {exec: {command: [cat, /tmp/fine]}, periodSeconds: 1, timeoutSeconds: 30}
    startupProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 30}
"#;

const READY: &str = "{.status.conditions[?(@.type==\"Ready\")].status}";

pub fn run(machine: &Machine) {
    machine.apply(PODS);
    scenarios![
        (machine);
        changes_reach_a_running_pod,
        memory_is_limited,
        readiness_follows_the_probe,
        pod_is_resized_in_place,
        disk_is_limited,
        node_reports_its_status,
        pod_deleted_during_start_leaves_nothing,
    ];
}

fn changes_reach_a_running_pod(machine: &Machine) {
    machine.wait_for("pod/reads", READY, "True");
    let read = |name: &str| machine.try_kubectl(&["exec", "reads", "--", "cat", &format!("/all/{name}")]);
    assert_eq!(read("settings").as_deref(), Ok("before"));
    machine.kubectl(&["patch", "configmap", "settings", "-p", "{\"data\": {\"key\": \"after\"}}"]);
    machine.kubectl(&["patch", "secret", "hidden", "-p", "{\"stringData\": {\"key\": \"after\"}}"]);
    machine.kubectl(&["create", "configmap", "later", "--from-literal=late=come"]);
    machine.kubectl(&["label", "pod", "reads", "colour=blue", "--overwrite"]);
    for (name, want) in
        [("settings", "after"), ("hidden", "after"), ("late", "come"), ("labels", "colour=\"blue\"")]
    {
        until(&format!("{name} prints {want}"), || match read(name) {
            Ok(text) if text == want => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    machine.kubectl(&["delete", "configmap", "later"]);
    until("removed keys are removed in the pod", || match read("late") {
        Err(_) => Ok(()),
        Ok(text) => Err(text),
    });
}

fn memory_is_limited(machine: &Machine) {
    let killed = "{.status.containerStatuses[0].lastState.terminated.reason}";
    machine.wait_for("pod/greedy", killed, "OOMKilled");
    machine.kubectl(&["delete", "pod", "greedy", "--timeout=120s"]);
}

fn readiness_follows_the_probe(machine: &Machine) {
    machine.wait_for("pod/unready", READY, "True");
    machine.kubectl(&["exec", "unready", "--", "rm", "/tmp/fine"]);
    machine.wait_for("pod/unready", READY, "False");
    machine.kubectl(&["exec", "unready", "--", "touch", "/tmp/fine"]);
    machine.wait_for("pod/unready", READY, "True");
}

/// Files of this name in a pod's cgroups, the pod's own first.
fn limits(machine: &Machine, pod: &str, v1: &str, v2: &str) -> Vec<String> {
    let uid = machine.kubectl(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"]);
    fn find(directory: &Path, uid: &str, depth: usize, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
            if path.ends_with(format!("pod{uid}")) {
                found.push(path);
            } else if depth < 5 {
                find(&path, uid, depth + 1, found);
            }
        }
    }
    let mut groups = Vec::new();
    find(Path::new("/sys/fs/cgroup"), &uid, 0, &mut groups);
    let read = |path: &Path| {
        [v1, v2]
            .iter()
            .find_map(|name| fs::read_to_string(path.join(name)).ok())
            .map(|text| text.trim().to_owned())
    };
    let mut values = Vec::new();
    for group in groups {
        values.extend(read(&group));
        let children = fs::read_dir(&group).into_iter().flatten().flatten().map(|entry| entry.path());
        values.extend(children.filter(|path| path.is_dir()).filter_map(|path| read(&path)));
    }
    values
}

const NEIGHBOUR: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: neighbour}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    resources: {requests: {cpu: 10m}}
"#;

fn pod_is_resized_in_place(machine: &Machine) {
    machine.wait_for("pod/sized", READY, "True");
    let quota = || limits(machine, "sized", "cpu.cfs_quota_us", "cpu.max");
    let found = quota();
    assert!(found.len() >= 2 && found.iter().all(|value| value.starts_with("20000")), "{found:?}");
    let ask = |request: &str, cpu: &str, memory: &str| {
        let resources = format!(
            r#"{{"spec":{{"containers":[{{"name":"c","resources":{{"requests":{{"cpu":"{request}","memory":"{memory}"}},"limits":{{"cpu":"{cpu}","memory":"{memory}"}}}}}}]}}}}"#
        );
        machine.try_kubectl(&["patch", "pod", "sized", "--subresource=resize", "-p", &resources])
    };
    let patch = |request: &str, cpu: &str, memory: &str| {
        ask(request, cpu, memory).expect("a resize within the node's capacity");
    };
    patch("100m", "300m", "32Mi");
    until("the cgroup has the new quota", || {
        let found = quota();
        if found.iter().all(|value| value.starts_with("30000")) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    machine.wait_for("pod/sized", "{.status.containerStatuses[0].restartCount}", "0");
    // This container's resizePolicy restarts it when its memory changes.
    patch("100m", "300m", "48Mi");
    machine.wait_for("pod/sized", "{.status.containerStatuses[0].restartCount}", "1");
    until("the cgroup has the new limit", || {
        let found = limits(machine, "sized", "memory.limit_in_bytes", "memory.max");
        if found.iter().all(|value| value == "50331648") { Ok(()) } else { Err(format!("{found:?}")) }
    });
    // Requests above the node's capacity are infeasible; capacity of other pods is not assigned before they
    // terminate.
    let refused = ask("1000", "2000", "48Mi").expect_err("more than the node has");
    assert!(refused.contains("node didn't have enough allocatable resources: cpu"), "{refused}");
    machine.apply(NEIGHBOUR);
    machine.wait_for("pod/neighbour", READY, "True");
    let all = machine.kubectl(&["get", "node", "n1", "-o", "jsonpath={.status.allocatable.cpu}"]);
    patch(&all, "1000", "48Mi");
    let pending = "{.status.conditions[?(@.type==\"PodResizePending\")].reason}";
    machine.wait_for("pod/sized", pending, "Deferred");
    assert!(quota().iter().all(|value| value.starts_with("30000")));
    patch("100m", "200m", "48Mi");
    machine.wait_for("pod/sized", pending, "");
}

fn disk_is_limited(machine: &Machine) {
    machine.wait_for("pod/fills", "{.status.phase} {.status.reason}", "Failed Evicted");
    let message = machine.kubectl(&["get", "pod", "fills", "-o", "jsonpath={.status.message}"]);
    assert_eq!(message, "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ");
    let target = "{.status.conditions[?(@.type==\"DisruptionTarget\")].reason}";
    machine.wait_for("pod/fills", target, "TerminationByKubelet");
}

fn node_reports_its_status(machine: &Machine) {
    let raw = |path: &str| machine.kubectl(&["get", "--raw", &format!("/api/v1/nodes/n1/proxy/{path}")]);
    for (path, text) in [
        ("metrics", "kubelet_running_pods"),
        ("metrics/cadvisor", "container_cpu_usage_seconds_total{container=\"c\""),
        ("metrics/resource", "node_cpu_usage_seconds_total"),
        ("metrics/probes", "prober_probe_total{"),
        ("configz", "\"kubeletconfig\""),
        ("healthz", "ok"),
        ("pods", "\"kind\":\"PodList\""),
        ("logs/", "<pre>"),
    ] {
        until(&format!("{path} has {text}"), || {
            let answer = raw(path);
            if answer.contains(text) { Ok(()) } else { Err(answer) }
        });
    }
}

/// Sandboxes are created while their pods are deleted; leaked ones would exhaust the addresses.
fn pod_deleted_during_start_leaves_nothing(machine: &Machine) {
    let pod = |number: usize| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: hasty-{number}, labels: {{hasty: \"yes\"}}}}\nspec:\n  \
             terminationGracePeriodSeconds: 0\n  containers: [{{name: c, image: docker.io/test/busybox:1, command: [/bin/sleep, \"1000\"]}}]\n---\n"
        )
    };
    machine.apply(&(0..12).map(pod).collect::<String>());
    machine.kubectl(&["delete", "pods", "-l", "hasty=yes", "--timeout=60s"]);
    let sandboxes = machine.data().join("runtime/sandboxes");
    until("no sandbox of a deleted pod is left", || {
        let left: Vec<_> = fs::read_dir(&sandboxes)
            .map_err(|error| error.to_string())?
            .flatten()
            .filter_map(|entry| fs::read(entry.path().join("config.pb")).ok())
            .filter(|config| config.windows(6).any(|window| window == b"hasty-"))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{} are left", left.len())) }
    });
}
