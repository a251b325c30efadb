//! What Kubernetes' node conformance promises of pods, each as a small pod whose output says whether it holds.

use serde_json::{Value, json};

use super::machine::{IMAGE, Machine, until};

const OBJECTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {one: value-1, two: value-2}
binaryData: {raw: 3q2+7w==}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {one: hidden-1}
"#;

/// A pod, and what it must come to: its phase and its log.
struct Promise {
    name: &'static str,
    script: &'static str,
    phase: &'static str,
    log: &'static str,
    /// What the pod has besides a container that runs the script, merged into its spec; `container` into the container.
    spec: Value,
}

fn promise(name: &'static str, script: &'static str, log: &'static str, spec: Value) -> Promise {
    Promise { name, script, phase: "Succeeded", log, spec }
}

fn promises() -> Vec<Promise> {
    let volume = |name: &str, source: Value| {
        let mut volume = json!({"name": name});
        if let (Some(all), Some(more)) = (volume.as_object_mut(), source.as_object()) {
            all.extend(more.clone());
        }
        volume
    };
    let mounted = |source: Value| json!({"volumes": [volume("v", source)], "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}});
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, which: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"containerName": "c", "resource": which}}});
    vec![
        promise(
            "environment",
            "echo $ONE $ALL_two $HIDDEN",
            "value-1 value-2 hidden-1\n",
            json!({"container": {
                "env": [
                    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "one"}}},
                    {"name": "HIDDEN", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "one"}}}],
                "envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "map"}}]}}),
        ),
        promise(
            "downward-fields",
            "[ -n \"$UID_\" ] && [ \"$HOST\" = \"$HOSTS\" ] && ip=$(hostname -i) && [ \"$ip\" = \"$IP\" ] && echo $NAME $NS",
            "downward-fields default\n",
            json!({"container": {"env": [
                field("NAME", "metadata.name"), field("NS", "metadata.namespace"), field("UID_", "metadata.uid"),
                field("IP", "status.podIP"), field("HOST", "status.hostIP"), field("HOSTS", "status.hostIPs")]}}),
        ),
        promise(
            "downward-resources",
            "echo $CPU $MEMORY $CPU_REQUEST $MEMORY_REQUEST",
            "2 67108864 1 33554432\n",
            json!({"container": {
                "resources": {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1250m", "memory": "64Mi"}},
                "env": [resource("CPU", "limits.cpu"), resource("MEMORY", "limits.memory"),
                        resource("CPU_REQUEST", "requests.cpu"), resource("MEMORY_REQUEST", "requests.memory")]}}),
        ),
        promise(
            "downward-defaults",
            "[ \"$CPU\" -gt 0 ] && [ \"$MEMORY\" -gt 1000000 ] && echo the node\\'s own",
            "the node's own\n",
            json!({"container": {"env": [resource("CPU", "limits.cpu"), resource("MEMORY", "limits.memory")]}}),
        ),
        promise(
            "config-map-volume",
            "cat /v/one /v/sub/two; ls -lL /v/one | head -c 10; ls -lL /v/raw | grep -c ' 4 '",
            "value-1value-2-rw-r--r--1\n",
            mounted(json!({"configMap": {"name": "map", "items": [
                {"key": "one", "path": "one"}, {"key": "two", "path": "sub/two"}, {"key": "raw", "path": "raw"}]}})),
        ),
        promise(
            "secret-modes",
            "cat /v/one; ls -lL /v/one | head -c 10; ls -lnL /v/one | grep -q ' 1001 ' && echo; id -u",
            "hidden-1-r--r-----\n1000\n",
            json!({
                "securityContext": {"runAsUser": 1000, "fsGroup": 1001},
                "volumes": [{"name": "v", "secret": {"secretName": "secret", "defaultMode": 0o440}}],
                "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}),
        ),
        promise(
            "item-modes",
            "ls -lL /v/one | head -c 10",
            "-r--------",
            mounted(json!({"projected": {"sources": [
                {"secret": {"name": "secret", "items": [{"key": "one", "path": "one", "mode": 0o400}]}}]}})),
        ),
        promise(
            "variables-of-a-file",
            "echo $FROM and $NONE",
            "value of a file and\n",
            json!({
                "initContainers": [{"name": "i", "image": IMAGE, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "command": ["sh", "-c", "echo \"A='value of a file'\" > /v/env"]}],
                "volumes": [volume("v", json!({"emptyDir": {}}))],
                "container": {"env": [
                    {"name": "FROM", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "A"}}},
                    {"name": "NONE", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "B", "optional": true}}}]}}),
        ),
        promise(
            "image-volume",
            "ls /v/bin/busybox /part/busybox; touch /v/file 2>/dev/null || echo refused",
            "/part/busybox\n/v/bin/busybox\nrefused\n",
            json!({
                "volumes": [volume("v", json!({"image": {"reference": IMAGE, "pullPolicy": "Never"}}))],
                "container": {"volumeMounts": [
                    {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/part", "subPath": "bin"}]}}),
        ),
        promise(
            "empty-dir",
            "ls -ld /v | head -c 10; umask 0; touch /v/f; ls -l /v/f | head -c 10",
            "drwxrwxrwx-rw-rw-rw-",
            mounted(json!({"emptyDir": {}})),
        ),
        promise(
            "empty-dir-in-memory",
            "ls -ld /v | head -c 10; grep -c ' /v tmpfs ' /proc/mounts",
            "drwxrwxrwt1\n",
            mounted(json!({"emptyDir": {"medium": "Memory"}})),
        ),
        promise(
            "read-only-root",
            "touch /file 2>/dev/null || echo refused",
            "refused\n",
            json!({"container": {"securityContext": {"readOnlyRootFilesystem": true}}}),
        ),
        promise(
            "user",
            "id -u; id -g",
            "65534\n65533\n",
            json!({"securityContext": {"runAsUser": 65534, "runAsGroup": 65533}}),
        ),
        promise(
            "own-users",
            "read inside outside length < /proc/self/uid_map; [ $outside -ge 65536 ] && echo $inside $length; \
             id -u; cat /v/one; touch /e/file && ls -ln /e/file | grep -c ' 0 *0 '",
            "0 65536\n0\nvalue-11\n",
            json!({
                "hostUsers": false,
                "volumes": [volume("v", json!({"configMap": {"name": "map"}})), volume("e", json!({"emptyDir": {}}))],
                "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}]}}),
        ),
        promise(
            "read-only-to-the-ground",
            "touch /v/file 2>/dev/null || echo refused",
            "refused\n",
            json!({
                "volumes": [volume("v", json!({"emptyDir": {}}))],
                "container": {"volumeMounts": [
                    {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled"}]}}),
        ),
        promise(
            "unprivileged",
            "hostname other 2>/dev/null || echo refused; grep NoNewPrivs /proc/self/status",
            "refused\nNoNewPrivs:\t1\n",
            json!({"container": {"securityContext": {"privileged": false, "allowPrivilegeEscalation": false}}}),
        ),
        promise(
            "sysctls",
            "cat /proc/sys/kernel/shm_rmid_forced",
            "1\n",
            json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}),
        ),
        promise(
            "hosts",
            "head -n 1 /etc/hosts; grep -c 'foo.local' /etc/hosts; grep -c \"$(hostname -i).hosts\" /etc/hosts",
            "# Kubernetes-managed hosts file.\n1\n1\n",
            json!({"hostAliases": [{"ip": "123.45.67.89", "hostnames": ["foo.local", "bar.local"]}]}),
        ),
        promise(
            "hosts-of-the-host",
            "head -n 1 /etc/hosts",
            "# Kubernetes-managed hosts file (host network).\n",
            json!({"hostNetwork": true}),
        ),
        promise(
            "init-containers",
            "cat /v/order",
            "first\nsecond\n",
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "initContainers": [
                    {"name": "i1", "image": IMAGE, "command": ["/bin/sh", "-c", "echo first >> /v/order"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                    {"name": "i2", "image": IMAGE, "command": ["/bin/sh", "-c", "echo second >> /v/order"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}),
        ),
        Promise {
            name: "init-fails",
            script: "echo never",
            phase: "Failed",
            log: "",
            spec: json!({"initContainers": [{"name": "i1", "image": IMAGE, "command": ["/bin/false"]}]}),
        },
        Promise {
            name: "deadline",
            script: "sleep 1000",
            phase: "Failed",
            log: "",
            spec: json!({"activeDeadlineSeconds": 2}),
        },
        Promise {
            name: "unsafe-sysctl",
            script: "echo never",
            phase: "Failed",
            log: "",
            spec: json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "10000"}]}}),
        },
        promise(
            "silent-success",
            "echo said",
            "said\n",
            json!({"container": {"terminationMessagePolicy": "FallbackToLogsOnError"}}),
        ),
        Promise {
            name: "last-words",
            script: "echo -n DONE; exit 1",
            phase: "Failed",
            log: "DONE",
            spec: json!({"container": {"terminationMessagePolicy": "FallbackToLogsOnError"}}),
        },
        promise(
            "last-words-in-a-file",
            "echo -n DONE > /dev/termination-custom-log",
            "",
            json!({"container": {"terminationMessagePath": "/dev/termination-custom-log", "securityContext": {"runAsUser": 1000}}}),
        ),
        promise(
            "expanded-sub-path",
            "echo x > /v/file; ls /all",
            "expanded-sub-path\n",
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "container": {
                    "env": [field("NAME", "metadata.name")],
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(NAME)"}, {"name": "v", "mountPath": "/all"}]}}),
        ),
        promise(
            "own-host-name",
            "hostname; hostname -f",
            "box\nbox.sub.default.svc.cluster.local\n",
            json!({"hostname": "box", "subdomain": "sub"}),
        ),
        promise(
            "service-variables",
            "echo $KUBERNETES_SERVICE_PORT $KUBERNETES_PORT_443_TCP_PROTO",
            "443 tcp\n",
            json!({}),
        ),
    ]
}

fn pod(promise: &Promise) -> Value {
    let mut spec = promise.spec.clone();
    let mut container = json!({"name": "c", "image": IMAGE, "command": ["/bin/sh", "-c", promise.script]});
    let more = spec.as_object_mut().and_then(|spec| spec.remove("container"));
    if let (Some(all), Some(Value::Object(more))) = (container.as_object_mut(), more) {
        all.extend(more);
    }
    spec["containers"] = json!([container]);
    spec["restartPolicy"] = json!("Never");
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": promise.name}, "spec": spec})
}

pub fn run(machine: &Machine) {
    machine.apply(OBJECTS);
    let promises = promises();
    let list =
        json!({"apiVersion": "v1", "kind": "List", "items": promises.iter().map(pod).collect::<Vec<_>>()});
    machine.apply(&list.to_string());
    let mut broken = Vec::new();
    for promise in &promises {
        let object = format!("pod/{}", promise.name);
        until(&format!("{} ends", promise.name), || {
            let phase = machine.try_kubectl(&["get", &object, "-o", "jsonpath={.status.phase}"])?;
            match phase.as_str() {
                "Succeeded" | "Failed" => Ok(()),
                _ => Err(machine.try_kubectl(&["describe", &object]).unwrap_or(phase)),
            }
        });
        let phase = machine.kubectl(&["get", &object, "-o", "jsonpath={.status.phase}"]);
        let log = machine.try_kubectl(&["logs", promise.name]).unwrap_or_default();
        if (phase.as_str(), log.as_str()) != (promise.phase, promise.log) {
            let described = machine.try_kubectl(&["describe", &object]).unwrap_or_default();
            broken.push(format!(
                "{}: {phase}, {log:?} instead of {:?}\n{described}",
                promise.name, promise.log
            ));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let message = "{.status.containerStatuses[0].state.terminated.message}";
    for (name, want) in [("silent-success", ""), ("last-words", "DONE"), ("last-words-in-a-file", "DONE")] {
        machine.wait_for(&format!("pod/{name}"), message, want);
    }
    let recursive = "{.status.containerStatuses[0].volumeMounts[0].recursiveReadOnly}";
    machine.wait_for("pod/read-only-to-the-ground", recursive, "Enabled");
    machine.wait_for("pod/unsafe-sysctl", "{.status.reason}", "SysctlForbidden");
    machine.wait_for("pod/deadline", "{.status.reason}", "DeadlineExceeded");
    machine.wait_for(
        "pod/init-fails",
        "{.status.containerStatuses[0].state.waiting.reason}",
        "PodInitializing",
    );
}
