//! Container termination and restarts: restart policies and rules, whole pods, ordering; and static pods.

use std::fs;
use std::path::Path;

use super::machine::{Machine, until};
use testbase::Scenarios;

/// DIRECTORY is replaced with the test's directory.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: by-rule}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "[ -e /s/once ] && exit 0; touch /s/once; exit 42"]
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
    volumeMounts: [{name: s, mountPath: /s}]
  volumes: [{name: s, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: together}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: first
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "echo begun >> /s/log"]
    volumeMounts: [{name: s, mountPath: /s}]
  containers:
  - name: asks
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "while [ ! -e /s/other ]; do sleep 0.1; done; [ -e /s/once ] && exec sleep 1000; touch /s/once; exit 88"]
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]
    volumeMounts: [{name: s, mountPath: /s}]
  - name: other
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "touch /s/other; exec sleep 1000"]
    volumeMounts: [{name: s, mountPath: /s}]
  volumes: [{name: s, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: in-order}
spec:
  terminationGracePeriodSeconds: 60
  initContainers:
  - name: one
    image: docker.io/test/busybox:1
    restartPolicy: Always
    command: [/bin/sh, -c, "trap 'echo one >> /o/order; exit' TERM; sleep 1000 & wait"]
    volumeMounts: [{name: o, mountPath: /o}]
  - name: two
    image: docker.io/test/busybox:1
    restartPolicy: Always
    command: [/bin/sh, -c, "trap 'echo two >> /o/order; exit' TERM; sleep 1000 & wait"]
    lifecycle: {preStop: {exec: {command: [/bin/sh, -c, "echo hook >> /o/order"]}}}
    volumeMounts: [{name: o, mountPath: /o}]
  containers:
  - name: app
    image: docker.io/test/busybox:1
    # It ends once the hook of its sidecar has run, which therefore does not wait for it.
    command: [/bin/sh, -c, "trap 'while [ ! -e /o/order ]; do sleep 0.1; done; echo app >> /o/order; exit' TERM; touch /o/ready; sleep 1000 & wait"]
    volumeMounts: [{name: o, mountPath: /o}]
  volumes: [{name: o, hostPath: {path: DIRECTORY}}]
"#;

const STATIC: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: file}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "docker.io/test/busybox:1", command: [/bin/sh, -c, "echo WORD; exec sleep 1000"]}
"#;

pub fn run(machine: &Machine) {
    let directory = machine.directory.path().join("order");
    fs::create_dir_all(&directory).expect("a directory");
    machine.apply(&PODS.replace("DIRECTORY", &directory.display().to_string()));
    let mut scenarios = Scenarios::default();
    scenarios.run("exit_code_rule_restarts_container", || {
        let ended = "{.status.phase} {.status.containerStatuses[0].restartCount}";
        machine.wait_for("pod/by-rule", ended, "Succeeded 1");
    });
    scenarios.run("restart_all_containers_rule_restarts_pod", || {
        restart_all_containers_rule_restarts_pod(machine);
    });
    scenarios.run("sidecars_terminate_last", || sidecars_terminate_last(machine, &directory));
    scenarios.run("manifest_files_are_static_pods", || manifest_files_are_static_pods(machine));
    scenarios.finish();
}

fn restart_all_containers_rule_restarts_pod(machine: &Machine) {
    let states =
        "{.status.phase} {.status.containerStatuses[*].restartCount} {.status.containerStatuses[*].ready}";
    machine.wait_for("pod/together", states, "Running 1 1 true true");
    let log = machine.kubectl(&["exec", "together", "-c", "other", "--", "cat", "/s/log"]);
    assert_eq!(log, "begun\nbegun\n", "init containers run again, volumes stay");
    let why = "{.status.containerStatuses[1].lastState.terminated.reason} {.status.initContainerStatuses[0].restartCount}";
    machine.wait_for("pod/together", why, "RestartingAllContainers 1");
    let condition = "{.status.conditions[?(@.type==\"AllContainersRestarting\")].status}";
    machine.wait_for("pod/together", condition, "False");
}

fn sidecars_terminate_last(machine: &Machine, directory: &Path) {
    machine.wait_for("pod/in-order", "{.status.phase}", "Running");
    until("the program has set its trap", || {
        if directory.join("ready").exists() { Ok(()) } else { Err("not yet".to_owned()) }
    });
    machine.kubectl(&["delete", "pod", "in-order", "--timeout=90s"]);
    let order = fs::read_to_string(directory.join("order")).expect("they wrote");
    assert_eq!(order, "hook\napp\ntwo\none\n");
}

/// A manifest file is a static pod with a mirror pod; only the file creates and deletes it.
fn manifest_files_are_static_pods(machine: &Machine) {
    let file = machine.data().join("manifests/file.yaml");
    fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
    fs::write(&file, STATIC.replace("WORD", "first")).expect("a file");
    machine.wait_for("pod/file-n1", "{.status.phase}", "Running");
    let expect_log = |word: &str| {
        until(&format!("the pod prints {word}"), || {
            let log = machine.try_kubectl(&["logs", "file-n1"])?;
            if log == format!("{word}\n") { Ok(()) } else { Err(log) }
        });
    };
    expect_log("first");
    let id = "{.status.containerStatuses[0].containerID}";
    let before = machine.kubectl(&["get", "pod/file-n1", "-o", &format!("jsonpath={id}")]);
    machine.kubectl(&["delete", "pod", "file-n1", "--wait=false"]);
    machine.wait_for("pod/file-n1", id, &before);
    fs::write(&file, STATIC.replace("WORD", "second")).expect("a file");
    expect_log("second");
    fs::remove_file(&file).expect("removed");
    until("the static pod is deleted with its file", || {
        match machine.try_kubectl(&["get", "pod", "file-n1"]) {
            Err(error) if error.contains("NotFound") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}
