//! Node conformance of pods: each behaviour as a small pod whose output proves it.

use serde_json::{Value, json};

use super::machine::{IMAGE, Machine};
use testbase::Scenarios;
use testbase::blocking::try_until;

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

const MESSAGE: &str = "{.status.containerStatuses[0].state.terminated.message}";
const RECURSIVE: &str = "{.status.containerStatuses[0].volumeMounts[0].recursiveReadOnly}";
const REASON: &str = "{.status.reason}";
const WAITING: &str = "{.status.containerStatuses[0].state.waiting.reason}";

/// A pod with its expected end.
struct ConformancePod {
    name: &'static str,
    script: &'static str,
    phase: &'static str,
    log: &'static str,
    /// Fields merged into the pod's spec, besides a container that runs the script; `container` is merged into the
    /// container.
    spec: Value,
    /// A field of the status, and its expected value.
    status: Option<(&'static str, &'static str)>,
}

impl ConformancePod {
    fn with_status(self, field: &'static str, value: &'static str) -> Self {
        Self { status: Some((field, value)), ..self }
    }
}

fn succeeds(name: &'static str, script: &'static str, log: &'static str, spec: Value) -> ConformancePod {
    ConformancePod { name, script, phase: "Succeeded", log, spec, status: None }
}

fn fails(name: &'static str, script: &'static str, log: &'static str, spec: Value) -> ConformancePod {
    ConformancePod { name, script, phase: "Failed", log, spec, status: None }
}

fn volume(name: &str, source: Value) -> Value {
    let mut volume = json!({"name": name});
    if let (Some(all), Some(more)) = (volume.as_object_mut(), source.as_object()) {
        all.extend(more.clone());
    }
    volume
}

/// A volume mounted at `/v`.
fn mounted(source: Value) -> Value {
    json!({"volumes": [volume("v", source)], "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}})
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn resource(name: &str, which: &str) -> Value {
    json!({"name": name, "valueFrom": {"resourceFieldRef": {"containerName": "c", "resource": which}}})
}

/// Environment variables.
fn environment() -> Vec<ConformancePod> {
    vec![
        succeeds(
            "environment",
            "echo $ONE $ALL_two $HIDDEN",
            "value-1 value-2 hidden-1\n",
            json!({"container": {
                "env": [
                    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "one"}}},
                    {"name": "HIDDEN", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "one"}}}],
                "envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "map"}}]}}),
        ),
        succeeds(
            "downward-fields",
            "[ -n \"$UID_\" ] && [ \"$HOST\" = \"$HOSTS\" ] && ip=$(hostname -i) && [ \"$ip\" = \"$IP\" ] && echo $NAME $NS",
            "downward-fields default\n",
            json!({"container": {"env": [
                field("NAME", "metadata.name"), field("NS", "metadata.namespace"), field("UID_", "metadata.uid"),
                field("IP", "status.podIP"), field("HOST", "status.hostIP"), field("HOSTS", "status.hostIPs")]}}),
        ),
        succeeds(
            "downward-resources",
            "echo $CPU $MEMORY $CPU_REQUEST $MEMORY_REQUEST",
            "2 67108864 1 33554432\n",
            json!({"container": {
                "resources": {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1250m", "memory": "64Mi"}},
                "env": [resource("CPU", "limits.cpu"), resource("MEMORY", "limits.memory"),
                        resource("CPU_REQUEST", "requests.cpu"), resource("MEMORY_REQUEST", "requests.memory")]}}),
        ),
        succeeds(
            "downward-defaults",
            "[ \"$CPU\" -gt 0 ] && [ \"$MEMORY\" -gt 1000000 ] && echo the node\\'s own",
            "the node's own\n",
            json!({"container": {"env": [resource("CPU", "limits.cpu"), resource("MEMORY", "limits.memory")]}}),
        ),
        succeeds(
            "environment-from-file",
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
        succeeds(
            "service-environment",
            "echo $KUBERNETES_SERVICE_PORT $KUBERNETES_PORT_443_TCP_PROTO",
            "443 tcp\n",
            json!({}),
        ),
    ]
}

/// Volumes and their permissions.
fn volumes() -> Vec<ConformancePod> {
    vec![
        succeeds(
            "config-map-volume",
            "cat /v/one /v/sub/two; ls -lL /v/one | head -c 10; ls -lL /v/raw | grep -c ' 4 '",
            "value-1value-2-rw-r--r--1\n",
            mounted(json!({"configMap": {"name": "map", "items": [
                {"key": "one", "path": "one"}, {"key": "two", "path": "sub/two"}, {"key": "raw", "path": "raw"}]}})),
        ),
        succeeds(
            "secret-modes",
            "cat /v/one; ls -lL /v/one | head -c 10; ls -lnL /v/one | grep -q ' 1001 ' && echo; id -u",
            "hidden-1-r--r-----\n1000\n",
            json!({
                "securityContext": {"runAsUser": 1000, "fsGroup": 1001},
                "volumes": [{"name": "v", "secret": {"secretName": "secret", "defaultMode": 0o440}}],
                "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}}),
        ),
        succeeds(
            "item-modes",
            "ls -lL /v/one | head -c 10",
            "-r--------",
            mounted(json!({"projected": {"sources": [
                {"secret": {"name": "secret", "items": [{"key": "one", "path": "one", "mode": 0o400}]}}]}})),
        ),
        succeeds(
            "image-volume",
            "ls /v/bin/busybox /part/busybox; touch /v/file 2>/dev/null || echo refused",
            "/part/busybox\n/v/bin/busybox\nrefused\n",
            json!({
                "volumes": [volume("v", json!({"image": {"reference": IMAGE, "pullPolicy": "Never"}}))],
                "container": {"volumeMounts": [
                    {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/part", "subPath": "bin"}]}}),
        ),
        succeeds(
            "empty-dir",
            "ls -ld /v | head -c 10; umask 0; touch /v/f; ls -l /v/f | head -c 10",
            "drwxrwxrwx-rw-rw-rw-",
            mounted(json!({"emptyDir": {}})),
        ),
        succeeds(
            "empty-dir-in-memory",
            "ls -ld /v | head -c 10; grep -c ' /v tmpfs ' /proc/mounts",
            "drwxrwxrwt1\n",
            mounted(json!({"emptyDir": {"medium": "Memory"}})),
        ),
        succeeds(
            "expanded-sub-path",
            "echo x > /v/file; ls /all",
            "expanded-sub-path\n",
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "container": {
                    "env": [field("NAME", "metadata.name")],
                    "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(NAME)"}, {"name": "v", "mountPath": "/all"}]}}),
        ),
    ]
}

/// Users, privileges and read-only file systems.
fn security() -> Vec<ConformancePod> {
    vec![
        succeeds(
            "read-only-root",
            "touch /file 2>/dev/null || echo refused",
            "refused\n",
            json!({"container": {"securityContext": {"readOnlyRootFilesystem": true}}}),
        ),
        succeeds(
            "run-as-user",
            "id -u; id -g",
            "65534\n65533\n",
            json!({"securityContext": {"runAsUser": 65534, "runAsGroup": 65533}}),
        ),
        succeeds(
            "user-namespace",
            "read inside outside length < /proc/self/uid_map; [ $outside -ge 65536 ] && echo $inside $length; \
             id -u; cat /v/one; touch /e/file && ls -ln /e/file | grep -c ' 0 *0 '",
            "0 65536\n0\nvalue-11\n",
            json!({
                "hostUsers": false,
                "volumes": [volume("v", json!({"configMap": {"name": "map"}})), volume("e", json!({"emptyDir": {}}))],
                "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}]}}),
        ),
        succeeds(
            "recursive-read-only-mount",
            "touch /v/file 2>/dev/null || echo refused",
            "refused\n",
            json!({
                "volumes": [volume("v", json!({"emptyDir": {}}))],
                "container": {"volumeMounts": [
                    {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled"}]}}),
        )
        .with_status(RECURSIVE, "Enabled"),
        succeeds(
            "no-privilege-escalation",
            "hostname other 2>/dev/null || echo refused; grep NoNewPrivs /proc/self/status",
            "refused\nNoNewPrivs:\t1\n",
            json!({"container": {"securityContext": {"privileged": false, "allowPrivilegeEscalation": false}}}),
        ),
        succeeds(
            "sysctls",
            "cat /proc/sys/kernel/shm_rmid_forced",
            "1\n",
            json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}),
        ),
        fails(
            "unsafe-sysctl",
            "echo never",
            "",
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "10000"}]}}),
        )
        .with_status(REASON, "SysctlForbidden"),
    ]
}

/// Host names and `/etc/hosts`.
fn host_names() -> Vec<ConformancePod> {
    vec![
        succeeds(
            "hosts",
            "head -n 1 /etc/hosts; grep -c 'foo.local' /etc/hosts; grep -c \"$(hostname -i).hosts\" /etc/hosts",
            "# Kubernetes-managed hosts file.\n1\n1\n",
            json!({"hostAliases": [{"ip": "123.45.67.89", "hostnames": ["foo.local", "bar.local"]}]}),
        ),
        succeeds(
            "hosts-with-host-network",
            "head -n 1 /etc/hosts",
            "# Kubernetes-managed hosts file (host network).\n",
            json!({"hostNetwork": true}),
        ),
        succeeds(
            "host-name-and-subdomain",
            "hostname; hostname -f",
            "box\nbox.sub.default.svc.cluster.local\n",
            json!({"hostname": "box", "subdomain": "sub"}),
        ),
    ]
}

/// Init containers, deadlines and termination messages.
fn lifecycle() -> Vec<ConformancePod> {
    vec![
        succeeds(
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
        fails("init-fails", "echo never", "", json!({"initContainers": [{"name": "i1", "image": IMAGE, "command": ["/bin/false"]}]}))
        .with_status(WAITING, "PodInitializing"),
        fails("deadline", "sleep 1000", "", json!({"activeDeadlineSeconds": 2}))
        .with_status(REASON, "DeadlineExceeded"),
        succeeds(
            "no-termination-message-after-success",
            "echo said",
            "said\n",
            json!({"container": {"terminationMessagePolicy": "FallbackToLogsOnError"}}),
        )
        .with_status(MESSAGE, ""),
        fails("termination-message-from-log", "echo -n DONE; exit 1", "DONE", json!({"container": {"terminationMessagePolicy": "FallbackToLogsOnError"}}))
        .with_status(MESSAGE, "DONE"),
        succeeds(
            "termination-message-from-file",
            "echo -n DONE > /dev/termination-custom-log",
            "",
            json!({"container": {"terminationMessagePath": "/dev/termination-custom-log", "securityContext": {"runAsUser": 1000}}}),
        )
        .with_status(MESSAGE, "DONE"),
    ]
}

fn pod(row: &ConformancePod) -> Value {
    let mut spec = row.spec.clone();
    let mut container = json!({"name": "c", "image": IMAGE, "command": ["/bin/sh", "-c", row.script]});
    let more = spec.as_object_mut().and_then(|spec| spec.remove("container"));
    if let (Some(all), Some(Value::Object(more))) = (container.as_object_mut(), more) {
        all.extend(more);
    }
    spec["containers"] = json!([container]);
    spec["restartPolicy"] = json!("Never");
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": row.name}, "spec": spec})
}

/// Waits for the end of a pod and compares it with the row.
fn check(machine: &Machine, row: &ConformancePod) -> Result<(), String> {
    let object = format!("pod/{}", row.name);
    let read = |field: &str| machine.try_kubectl(&["get", &object, "-o", &format!("jsonpath={field}")]);
    let described = |found: String| {
        let described = machine.try_kubectl(&["describe", &object]).unwrap_or_default();
        format!("{found}\n{described}")
    };
    let phase = try_until(|| match read("{.status.phase}")?.as_str() {
        phase @ ("Succeeded" | "Failed") => Ok(phase.to_owned()),
        phase => Err(phase.to_owned()),
    });
    let phase = phase.map_err(|phase| described(format!("still {phase:?}")))?;
    let log = machine.try_kubectl(&["logs", row.name]).unwrap_or_default();
    if (phase.as_str(), log.as_str()) != (row.phase, row.log) {
        return Err(described(format!("{phase}, {log:?} instead of {}, {:?}", row.phase, row.log)));
    }
    let Some((field, want)) = row.status else { return Ok(()) };
    let found = try_until(|| match read(field)? {
        found if found == want => Ok(()),
        found => Err(found),
    });
    found.map_err(|found| described(format!("{field} is {found:?} instead of {want:?}")))
}

pub fn run(machine: &Machine) {
    machine.apply(OBJECTS);
    let rows: Vec<ConformancePod> =
        [environment(), volumes(), security(), host_names(), lifecycle()].into_iter().flatten().collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": rows.iter().map(pod).collect::<Vec<_>>()});
    machine.apply(&list.to_string());
    let mut scenarios = Scenarios::default();
    for row in &rows {
        scenarios.check(row.name, || check(machine, row));
    }
    scenarios.finish();
}
