//! CSI volumes, with drivers of this test.

mod devices;
mod driver;

use std::fs;

use serde_json::Value;

use super::machine::{Machine, until};
use driver::{Driver, serve};
use testbase::scenarios;

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: plain.test.example}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], fsGroupPolicy: File, tokenRequests: [{audience: "", expirationSeconds: 600}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: attached.test.example}
spec: {attachRequired: true}
---
apiVersion: v1
kind: Secret
metadata: {name: staging}
stringData: {password: hidden}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: plain}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: plain}
  csi:
    driver: plain.test.example
    volumeHandle: plain-handle
    volumeAttributes: {colour: green}
    nodeStageSecretRef: {name: staging, namespace: default}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: attached}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: attached}
  csi: {driver: attached.test.example, volumeHandle: attached-handle}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: plain}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: plain, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: attached}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: attached, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 3000}
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "echo from one > /plain/file; sleep 1000"]
    volumeMounts: [{name: plain, mountPath: /plain}, {name: plain, mountPath: /part, subPath: part}, {name: own, mountPath: /own}]
  volumes:
  - {name: plain, persistentVolumeClaim: {claimName: plain}}
  - {name: own, csi: {driver: plain.test.example, volumeAttributes: {colour: blue}}}
---
apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    volumeMounts: [{name: plain, mountPath: /plain}, {name: attached, mountPath: /attached}]
  volumes:
  - {name: plain, persistentVolumeClaim: {claimName: plain}}
  - {name: attached, persistentVolumeClaim: {claimName: attached}}
"#;

pub fn run(machine: &Machine) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let plain = serve(machine, "plain.test.example", None);
    let attached = serve(machine, "attached.test.example", None);
    scenarios![
        (machine, &plain, &attached);
        drivers_are_registered,
        volumes_are_mounted,
        volume_waits_for_attachment,
        volumes_in_use_are_reported,
        volume_stats_are_reported,
        volumes_grow,
        volume_is_unstaged_after_its_last_pod,
        devices_are_provided,
        removed_socket_unregisters_driver,
    ];
}

fn drivers_are_registered(machine: &Machine, plain: &Driver, _: &Driver) {
    machine.wait_until("csinode/n1", "{.spec.drivers[*].name}", "names both drivers", |text| {
        text.contains("plain.test.example") && text.contains("attached.test.example")
    });
    let row =
        "{.spec.drivers[0].nodeID} {.spec.drivers[0].allocatable.count} {.spec.drivers[0].topologyKeys[0]}";
    machine.wait_for("csinode/n1", row, "here 7 test.example/rack");
    machine.wait_for("node/n1", "{.metadata.labels.test\\.example/rack}", "r1");
    assert_eq!(plain.is_registered(), Some(true));
}

fn volumes_are_mounted(machine: &Machine, plain: &Driver, _: &Driver) {
    machine.apply(OBJECTS);
    machine.wait_for("pod/one", "{.status.phase}", "Running");
    until("the pod wrote to its volume", || {
        let found = fs::read_to_string(plain.directory.join("plain-handle/file"));
        if found.as_deref().is_ok_and(|text| text == "from one\n") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
    let group = machine.kubectl(&["exec", "one", "--", "ls", "-ldn", "/plain", "/own"]);
    assert_eq!(group.matches(" 3000 ").count(), 2, "{group}");
    let calls = plain.calls();
    assert!(calls.contains(&"stage plain-handle green hidden ".to_owned()), "{calls:?}");
    assert!(calls.contains(&"publish plain-handle green one".to_owned()), "{calls:?}");
    assert!(calls.contains(&"publish inline blue one".to_owned()), "{calls:?}");
    let tokens = plain.tokens().expect("tokens");
    assert!(!tokens.0 && tokens.1.starts_with("{\"\":{"), "{tokens:?}");
}

fn volumes_in_use_are_reported(machine: &Machine, _: &Driver, _: &Driver) {
    assert_eq!(machine.kubectl(&["exec", "two", "--", "cat", "/plain/file"]), "from one\n");
    machine.wait_until("node/n1", "{.status.volumesInUse}", "names both volumes", |text| {
        text.contains("plain.test.example^plain-handle")
            && text.contains("attached.test.example^attached-handle")
    });
}

fn volume_is_unstaged_after_its_last_pod(machine: &Machine, plain: &Driver, attached: &Driver) {
    machine.kubectl(&["delete", "pod", "one", "--timeout=60s"]);
    let calls = plain.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("unpublish")).count(), 2, "{calls:?}");
    assert!(!calls.contains(&"unstage plain-handle".to_owned()), "another pod has it: {calls:?}");
    machine.kubectl(&["delete", "pod", "two", "--timeout=60s"]);
    assert!(plain.calls().contains(&"unstage plain-handle".to_owned()), "{:?}", plain.calls());
    assert!(attached.calls().contains(&"unstage attached-handle".to_owned()), "{:?}", attached.calls());
}

fn devices_are_provided(machine: &Machine, _: &Driver, _: &Driver) {
    devices::run(machine);
}

fn removed_socket_unregisters_driver(machine: &Machine, _: &Driver, _: &Driver) {
    fs::remove_file(machine.data().join("kubelet/plugins_registry/attached.test.example.sock"))
        .expect("removed");
    machine.wait_until("csinode/n1", "{.spec.drivers[*].name}", "names the others only", |text| {
        text.contains("plain.test.example") && !text.contains("attached.test.example")
    });
}

/// Volume statistics: from drivers, and from the kubelet for its own volumes.
fn volume_stats_are_reported(machine: &Machine, _: &Driver, _: &Driver) {
    until("the summary has the pod's volumes", || {
        let text = machine.try_kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary"])?;
        let summary: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let pods = summary["pods"].as_array().ok_or("no pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "one").ok_or("not the pod")?;
        let volume = |name: &str| {
            let all = pod["volume"].as_array().into_iter().flatten();
            all.into_iter().find(|volume| volume["name"].as_str().is_some_and(|n| n.starts_with(name)))
        };
        let (Some(plain), Some(own), Some(token)) =
            (volume("plain"), volume("own"), volume("kube-api-access"))
        else {
            return Err(pod.to_string());
        };
        assert_eq!((&plain["usedBytes"], &plain["capacityBytes"]), (&400.into(), &1000.into()), "{plain}");
        assert_eq!((&plain["inodesFree"], &plain["pvcRef"]["name"]), (&6.into(), &"plain".into()), "{plain}");
        assert!(own["availableBytes"] == 600 && own.get("pvcRef").is_none(), "{own}");
        assert!(
            token["capacityBytes"].as_u64() > Some(1000) && token["inodesUsed"].as_u64() > Some(1),
            "{token}"
        );
        assert!(pod["ephemeral-storage"]["capacityBytes"].as_u64() > Some(1000), "{pod}");
        let network = pod["network"]["rxBytes"].is_u64() && pod["process_stats"]["process_count"].is_u64();
        assert!(network && pod["containers"][0]["logs"]["usedBytes"].is_u64(), "{pod}");
        assert!(summary["node"]["runtime"]["imageFs"]["usedBytes"].is_u64(), "{}", summary["node"]);
        Ok(())
    });
    let metrics = machine.kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/metrics"]);
    let row = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"plain\"} 400";
    assert_eq!(metrics.matches(row).count(), 1, "{metrics}");
}

/// An expansion by the controller continues on the node; an impossible one is reported in the claim's status.
fn volumes_grow(machine: &Machine, driver: &Driver, _: &Driver) {
    let controller = |size: &str| {
        let patch = format!("{{\"spec\":{{\"capacity\":{{\"storage\":\"{size}\"}}}}}}");
        machine.kubectl(&["patch", "pv", "plain", "-p", &patch]);
        let patch = "{\"status\":{\"allocatedResourceStatuses\":{\"storage\":\"NodeResizePending\"}}}";
        machine.kubectl(&["patch", "pvc", "plain", "--subresource=status", "--type=merge", "-p", patch]);
        // Nodes may not watch claims; a changed pod is synced immediately.
        machine.kubectl(&["label", "pod", "one", "--overwrite", &format!("size={size}")]);
    };
    let state = "{.status.capacity.storage} {.status.allocatedResourceStatuses.storage}";
    controller("2Mi");
    machine.wait_for("pvc/plain", state, "2Mi ");
    assert!(driver.calls().contains(&"expand plain-handle 2097152".to_owned()), "{:?}", driver.calls());
    controller("8Mi");
    machine.wait_for("pvc/plain", state, "2Mi NodeResizeInfeasible");
    let message = "{.status.conditions[?(@.type==\"NodeResizeError\")].message}";
    machine.wait_for("pvc/plain", message, "failed to expand pvc with too large for me");
    until("events report it", || {
        let events = machine.try_kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
        let both = ["FileSystemResizeSuccessful", "VolumeResizeFailed"];
        if both.iter().all(|reason| events.contains(reason)) { Ok(()) } else { Err(events) }
    });
    assert_eq!(machine.kubectl(&["get", "pod", "one", "-o", "jsonpath={.status.phase}"]), "Running");
}

/// The pod waits for the VolumeAttachment, and its driver gets the attachment metadata.
fn volume_waits_for_attachment(machine: &Machine, _: &Driver, driver: &Driver) {
    let mut name = String::new();
    until("a VolumeAttachment", || {
        name = machine.try_kubectl(&["get", "volumeattachments", "-o", "name"])?.trim().to_owned();
        if name.is_empty() { Err("none".to_owned()) } else { Ok(()) }
    });
    assert!(driver.calls().is_empty(), "{:?}", driver.calls());
    let status = "{\"status\":{\"attached\":true,\"attachmentMetadata\":{\"device\":\"sdx\"}}}";
    machine.kubectl(&["patch", &name, "--subresource=status", "--type=merge", "-p", status]);
    machine.wait_for("pod/two", "{.status.phase}", "Running");
    let calls = driver.calls();
    assert!(calls.contains(&"stage attached-handle   sdx".to_owned()), "{calls:?}");
}
