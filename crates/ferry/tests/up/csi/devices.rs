//! Block volumes of pods: of a CSI driver, and local ones; and repeated tokens for CSI drivers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use super::driver::{Driver, serve};
use crate::machine::{Machine, until};
use testbase::programs::has;

/// DEVICE is replaced with the test's device.
const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: raw.test.example}
spec:
  attachRequired: false
  podInfoOnMount: true
  requiresRepublish: true
  nodeAllocatableUpdatePeriodSeconds: 10
  serviceAccountTokenInSecrets: true
  tokenRequests: [{audience: vault}]
  volumeLifecycleModes: [Persistent, Ephemeral]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: raw}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: ""
  claimRef: {namespace: default, name: raw}
  csi: {driver: raw.test.example, volumeHandle: raw-handle}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: "", volumeName: raw, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: ""
  claimRef: {namespace: default, name: local}
  local: {path: DEVICE}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n1]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: "", volumeName: local, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "echo from a pod > /dev/raw && busybox sync && sleep 1000"]
    volumeDevices: [{name: raw, devicePath: /dev/raw}]
    volumeMounts: [{name: own, mountPath: /own}]
  volumes:
  - {name: raw, persistentVolumeClaim: {claimName: raw}}
  - {name: own, csi: {driver: raw.test.example}}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    volumeDevices: [{name: local, devicePath: /dev/local}]
  volumes: [{name: local, persistentVolumeClaim: {claimName: local, readOnly: true}}]
---
apiVersion: v1
kind: Pod
metadata: {name: mistaken}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    volumeMounts: [{name: local, mountPath: /local}]
  volumes: [{name: local, persistentVolumeClaim: {claimName: local}}]
"#;

/// A file as a block device, detached on drop.
struct Loop {
    device: PathBuf,
    file: PathBuf,
}

impl Loop {
    fn new(directory: &Path) -> Result<Self, String> {
        if !has("losetup") {
            return Err("no losetup here".to_owned());
        }
        let file = directory.join("device");
        let made = fs::File::create(&file).and_then(|made| made.set_len(1 << 20));
        made.map_err(|error| error.to_string())?;
        let outcome = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let outcome = outcome.map_err(|error| error.to_string())?;
        if !outcome.status.success() {
            return Err(String::from_utf8_lossy(&outcome.stderr).trim().to_owned());
        }
        Ok(Self { device: String::from_utf8_lossy(&outcome.stdout).trim().into(), file })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
    }
}

pub fn run(machine: &Machine) {
    let disk = match Loop::new(machine.directory.path()) {
        Ok(disk) => disk,
        Err(reason) => return println!("partly skipped: no device to try with: {reason}"),
    };
    machine.apply(OBJECTS.split("---").next().unwrap_or_default());
    let driver = serve(machine, "raw.test.example", Some(&disk.device));
    machine.wait_until("csinode/n1", "{.spec.drivers[*].name}", "names the driver", |text| {
        text.contains("raw.test.example")
    });
    machine.apply(&OBJECTS.replace("DEVICE", &disk.device.display().to_string()));
    for pod in ["pod/writer", "pod/reader"] {
        machine.wait_for(pod, "{.status.phase}", "Running");
    }
    let calls = driver.calls();
    for wanted in ["stage device raw-handle   ", "publish device raw-handle writer", "publish inline  writer"]
    {
        assert!(calls.contains(&wanted.to_owned()), "{wanted}: {calls:?}");
    }
    until("the pod's data is on the device", || {
        let found = fs::read(&disk.file).unwrap_or_default();
        let text = String::from_utf8_lossy(&found[..found.len().min(20)]).into_owned();
        if text.starts_with("from a pod\n") { Ok(()) } else { Err(text) }
    });
    let read = machine.kubectl(&["exec", "reader", "--", "head", "-n", "1", "/dev/local"]);
    assert_eq!(read, "from a pod\n");
    let refused = machine.try_kubectl(&["exec", "reader", "--", "sh", "-c", "echo x > /dev/local"]);
    assert!(refused.as_ref().is_err_and(|text| text.contains("not permitted")), "{refused:?}");
    until("a device is not mounted", || {
        let events = machine.try_kubectl(&["get", "events", "--field-selector=reason=FailedMount"])?;
        let wanted = "volume local has volumeMode Block, but is specified in volumeMounts";
        if events.contains(wanted) { Ok(()) } else { Err(events) }
    });

    tokens_are_republished(machine, &driver);
    let claims = machine.kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/metrics"]);
    let size =
        "kubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=\"local\"} 1048576";
    assert!(claims.contains(size), "{claims}");

    driver.most.store(9, Ordering::SeqCst);
    let most = "{.spec.drivers[?(@.name==\"raw.test.example\")].allocatable.count}";
    machine.wait_for("csinode/n1", most, "9");

    machine.kubectl(&["delete", "pod", "writer", "reader", "mistaken", "--timeout=60s"]);
    let calls = driver.calls();
    assert!(calls.contains(&"unpublish raw-handle".to_owned()), "{calls:?}");
    assert!(calls.contains(&"unstage raw-handle".to_owned()), "{calls:?}");
    let left = machine.data().join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    for part in ["publish", "staging"] {
        let found: Vec<_> = fs::read_dir(left.join(part)).into_iter().flatten().flatten().collect();
        assert!(found.is_empty(), "{found:?}");
    }
}

/// NodePublishVolume is repeated on every sync of the pod's volumes, with a token for the driver's audience among the
/// secrets.
fn tokens_are_republished(machine: &Machine, driver: &Driver) {
    let (secret, text) = driver.tokens().expect("tokens");
    assert!(secret, "this driver has them among its secrets");
    let tokens: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(tokens["vault"]["expirationTimestamp"].is_string(), "{tokens}");
    let token = tokens["vault"]["token"].as_str().expect("a token");
    let review = format!(
        "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {{token: {token}, audiences: [vault]}}\n"
    );
    let file = machine.directory.path().join("review.yaml");
    fs::write(&file, review).expect("a file");
    let field = "jsonpath={.status.authenticated} {.status.audiences} {.status.user.username}";
    let reviewed = machine.kubectl(&["create", "-f", &file.display().to_string(), "-o", field]);
    assert_eq!(reviewed, "true [\"vault\"] system:serviceaccount:default:default");

    let count = || driver.calls().iter().filter(|call| call.starts_with("publish inline")).count();
    let before = count();
    machine.kubectl(&["label", "pod", "writer", "look=again"]);
    until("NodePublishVolume is repeated", || {
        let now = count();
        if now > before { Ok(()) } else { Err(format!("{now} times")) }
    });
    let devices = driver.calls().iter().filter(|call| call.starts_with("publish device")).count();
    assert_eq!(devices, 1, "a published device is not published again");
}
