//! Container escape attempts by pods of a namespace under Pod Security `baseline`. The scenarios are those of the
//! container runtime's own tests.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use serde_json::{Value, json};

use super::machine::{Machine, until};
use testbase::escape_table::{CAPABILITIES, LINKS, MASKED, MOUNTS, REFUSED, TARGETS, WRITES};
use testbase::{images, scenarios};

const NAMESPACE: &str = "baseline";
const IMAGE: &str = "docker.io/test/escape:1";
/// File descriptors that a shim could leak.
const DESCRIPTORS: std::ops::Range<u32> = 3..11;

/// A pod with one container; `container` adds and overrides its fields.
fn pod(name: &str, container: Value, spec: Value) -> Value {
    let mut main = json!({"name": "c", "image": IMAGE, "command": ["sleep", "100000"]});
    merge(&mut main, container);
    let mut whole =
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main]});
    merge(&mut whole, spec);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": whole,
    })
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Pods by the error that prevents their start.
fn refused() -> Vec<(Value, &'static str)> {
    let volumes = json!([
        {"name": "d", "emptyDir": {}},
        {"name": "f", "configMap": {"name": "status"}},
    ]);
    let mounted = |name: &str, target: &str, is_file: bool| {
        let mount = match is_file {
            true => json!({"name": "f", "mountPath": target, "subPath": "status"}),
            false => json!({"name": "d", "mountPath": target}),
        };
        pod(name, json!({"volumeMounts": [mount]}), json!({"volumes": volumes}))
    };
    let mut pods: Vec<(Value, &'static str)> = TARGETS
        .iter()
        .enumerate()
        .map(|(at, (target, is_file))| (mounted(&format!("mount-{at}"), target, *is_file), REFUSED))
        .collect();
    pods.push((mounted("mount-root", "/", false), "root of the container"));
    // CVE-2024-21626.
    for fd in DESCRIPTORS {
        let container = json!({"workingDir": format!("/proc/self/fd/{fd}")});
        pods.push((pod(&format!("cwd-{fd}"), container, json!({})), "working directory"));
    }
    // Links created by an earlier container: in a volume on the path to a target, and as a subPath.
    let init = |script: &str| {
        json!([{"name": "i", "image": IMAGE, "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "d", "mountPath": "/v"}]}])
    };
    let spec = |script: &str| json!({"initContainers": init(script), "volumes": volumes});
    pods.push((
        pod(
            "link-in-volume",
            json!({"volumeMounts": [
                {"name": "d", "mountPath": "/v"},
                {"name": "f", "mountPath": "/v/link/self/status", "subPath": "status"}]}),
            spec("busybox ln -s /proc /v/link"),
        ),
        REFUSED,
    ));
    for (name, to) in [("sub-path-root", "/"), ("sub-path-up", "../../../../../../../../etc")] {
        let container = json!({"volumeMounts": [{"name": "d", "mountPath": "/m", "subPath": "sub"}]});
        pods.push((
            pod(name, container, spec(&format!("busybox ln -s {to} /v/sub"))),
            "failed to prepare subPath",
        ));
    }
    // CVE-2025-52565.
    pods.push((
        pod(
            "terminal",
            json!({"tty": true, "volumeMounts": [{"name": "d", "mountPath": "/dev/pts"}]}),
            spec("busybox ln -s /proc/sysrq-trigger /v/ptmx"),
        ),
        "open a terminal",
    ));
    pods
}

fn state(machine: &Machine, name: &str) -> Result<String, String> {
    let path = "jsonpath={.status.containerStatuses[0].state}{.status.containerStatuses[0].lastState}";
    machine.try_kubectl(&["-n", NAMESPACE, "get", "pod", name, "-o", path])
}

fn create(machine: &Machine, pods: &[&Value]) {
    machine.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
}

fn exec(machine: &Machine, pod: &str, script: &str) -> Result<String, String> {
    machine.try_kubectl(&["-n", NAMESPACE, "exec", pod, "--", "sh", "-c", script])
}

pub fn run(machine: &Machine) {
    let directory = machine.directory.path();
    let root = images::root(directory, IMAGE);
    fs::create_dir_all(root.join("deep")).expect("a directory");
    for (name, to) in LINKS {
        symlink(to, root.join(name)).expect("a link");
    }
    let archive = images::make(directory, IMAGE, &["/bin/sh"], &[]);
    let imported = machine.ferry(&["images", "import", &archive.display().to_string()]);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    machine.apply(&format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}, labels: {{pod-security.kubernetes.io/enforce: baseline}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: status, namespace: {NAMESPACE}}}
data: {{status: "CapBnd:\t{CAPABILITIES}\n"}}
"#
    ));
    until("the namespace has its service account", || {
        machine.try_kubectl(&["-n", NAMESPACE, "get", "serviceaccount", "default"]).map(|_| ())
    });
    let privileged = pod("privileged", json!({"securityContext": {"privileged": true}}), json!({}));
    let file = directory.join("privileged.json");
    fs::write(&file, privileged.to_string()).expect("a file");
    let error = machine.try_kubectl(&["create", "-f", &file.display().to_string()]).expect_err("refused");
    assert!(error.contains("violates PodSecurity \"baseline"), "{error}");

    scenarios![
        (machine);
        pods_do_not_start,
        running_container_cannot_escape,
        swapped_sub_path_does_not_escape,
        fs_group_does_not_follow_links,
    ];
}

/// CVE-2025-31133, CVE-2025-52881, CVE-2024-21626, CVE-2025-52565: escaping paths prevent the container's start.
fn pods_do_not_start(machine: &Machine) {
    let refused = refused();
    create(machine, &refused.iter().map(|(pod, _)| pod).collect::<Vec<_>>());
    for (pod, error) in &refused {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        until(&format!("{name} is rejected"), || match state(machine, name) {
            Ok(text) if text.contains(error) => Ok(()),
            Ok(text) if text.contains("running") => panic!("{name} runs: {text}"),
            other => Err(format!("{other:?}\n{}", machine.log())),
        });
        assert!(!state(machine, name).unwrap_or_default().contains("running"), "{name}");
    }
    machine.kubectl(&["-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force"]);
}

fn running_container_cannot_escape(machine: &Machine) {
    let program = env!("CARGO_BIN_EXE_ferry");
    let binary = fs::metadata(program).expect("the binary");
    let pattern = fs::read("/proc/sys/kernel/core_pattern").expect("a pattern");
    // CVE-2019-5736: a container executes the runtime's own process.
    let own = pod("own-exe", json!({"command": ["/proc/self/exe", "version"]}), json!({}));
    create(machine, &[&pod("inside", json!({}), json!({})), &own]);
    until("a container runs", || {
        let state = state(machine, "inside");
        if state.as_ref().is_ok_and(|text| text.contains("running")) {
            Ok(())
        } else {
            Err(format!("{state:?}"))
        }
    });
    let inside = |script: &str| exec(machine, "inside", script);
    for path in MASKED {
        let script =
            format!("if [ -d {path} ]; then ls -A {path}; else cat {path} 2>/dev/null; fi | head -c 64");
        assert_eq!(inside(&script).unwrap_or_default().trim(), "", "{path}");
    }
    for path in WRITES {
        assert!(inside(&format!("echo h > {path}")).is_err(), "{path}");
    }
    for script in MOUNTS {
        assert!(inside(&format!("busybox {script}")).is_err(), "{script}");
    }
    for process in ["1", "self"] {
        let status = inside(&format!("cat /proc/{process}/status")).expect("a status");
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert!(status.contains(&format!("{set}:\t{CAPABILITIES}")), "{process}: {status}");
        }
    }
    // CVE-2024-21626.
    let open = inside("ls /proc/1/fd").expect("descriptors");
    assert_eq!(open.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"]);
    assert_eq!(inside("busybox readlink /proc/1/cwd").expect("a directory").trim(), "/");
    // CVE-2019-5736.
    assert!(inside("exec 9< /proc/self/exe; echo x > /proc/self/fd/9").is_err());
    until("the container of the runtime's own program ends", || {
        let state = state(machine, "own-exe");
        if state.as_ref().is_ok_and(|text| text.contains("terminated")) {
            Ok(())
        } else {
            Err(format!("{state:?}"))
        }
    });
    let after = fs::metadata(program).expect("the binary");
    assert_eq!((after.ino(), after.size(), after.mtime()), (binary.ino(), binary.size(), binary.mtime()));
    assert_eq!(fs::read("/proc/sys/kernel/core_pattern").expect("a pattern"), pattern);
}

/// One container repeatedly exchanges a directory for a link to the root while others mount it as their subPath.
fn swapped_sub_path_does_not_escape(machine: &Machine) {
    let secret = machine.directory.path().join("of-the-host");
    fs::write(&secret, "host").expect("a file");
    let flip = "mkdir -p /v/sub; while true; do busybox mv /v/sub /v/was; busybox ln -s / /v/sub; \
                rm /v/sub; busybox mv /v/was /v/sub; done";
    let look = format!("[ -e /m{} ] && echo escaped; echo looked", secret.display());
    let mut containers = vec![json!({"name": "flip", "image": IMAGE, "command": ["sh", "-c", flip],
        "volumeMounts": [{"name": "d", "mountPath": "/v"}]})];
    containers.extend((0..8).map(|at| {
        json!({"name": format!("look-{at}"), "image": IMAGE, "command": ["sh", "-c", look],
            "volumeMounts": [{"name": "d", "mountPath": "/m", "subPath": "sub"}]})
    }));
    let race =
        pod("race", json!({}), json!({"containers": containers, "volumes": [{"name": "d", "emptyDir": {}}]}));
    create(machine, &[&race]);
    let path = "jsonpath={range .status.containerStatuses[*]}{.name}={.state}{\"\\n\"}{end}";
    let states = until("every container has run or was rejected", || {
        let text =
            machine.try_kubectl(&["-n", NAMESPACE, "get", "pod", "race", "-o", path]).unwrap_or_default();
        let lookers: Vec<&str> = text.lines().filter(|line| line.starts_with("look-")).collect();
        let settled = |line: &&str| line.contains("terminated") || line.contains("Error");
        if lookers.len() == 8 && lookers.iter().all(settled) { Ok(text) } else { Err(text) }
    });
    let mut looked = 0;
    for at in 0..8 {
        let log = machine.try_kubectl(&["-n", NAMESPACE, "logs", "race", "-c", &format!("look-{at}")]);
        let log = log.unwrap_or_default();
        assert!(!log.contains("escaped"), "look-{at}: {log}\n{states}");
        looked += usize::from(log.contains("looked"));
    }
    println!("{looked} of 8 containers were started during the exchange");
    machine.kubectl(&["-n", NAMESPACE, "delete", "pod", "race", "--grace-period=0", "--force"]);
}

/// A pod creates a link to a host file in a volume; the next pod's fsGroup applies to the volume, not to the file.
fn fs_group_does_not_follow_links(machine: &Machine) {
    const GROUP: u32 = 4242;
    let victim = machine.directory.path().join("victim");
    fs::create_dir(&victim).expect("a directory");
    fs::write(victim.join("file"), "host").expect("a file");
    let before: Vec<_> =
        [victim.clone(), victim.join("file")].map(|path| fs::metadata(path).expect("a file")).into();
    machine.apply(&format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: shared, namespace: {NAMESPACE}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
"#
    ));
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "shared"}}]);
    let mounts = json!([{"name": "d", "mountPath": "/v"}]);
    let plant = format!(
        "echo own > /v/own; busybox ln -s {} /v/directory; busybox ln -s {} /v/file",
        victim.display(),
        victim.join("file").display()
    );
    let planter = pod(
        "plant",
        json!({"command": ["sh", "-c", plant], "volumeMounts": mounts}),
        json!({"volumes": volumes}),
    );
    create(machine, &[&planter]);
    until("links are planted", || {
        let state = state(machine, "plant");
        if state.as_ref().is_ok_and(|text| text.contains("Completed")) {
            Ok(())
        } else {
            Err(format!("{state:?}"))
        }
    });
    let group = pod(
        "group",
        json!({"command": ["sh", "-c", "busybox stat -c %g /v/own"], "volumeMounts": mounts}),
        json!({"volumes": volumes, "securityContext": {"fsGroup": GROUP}}),
    );
    create(machine, &[&group]);
    until("the volume is the group's", || match machine.try_kubectl(&["-n", NAMESPACE, "logs", "group"]) {
        Ok(text) if text.trim() == GROUP.to_string() => Ok(()),
        other => Err(format!("{other:?}\n{}", machine.log())),
    });
    for (path, before) in [victim.clone(), victim.join("file")].iter().zip(&before) {
        let after = fs::metadata(path).expect("a file");
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()), "{}", path.display());
    }
}
