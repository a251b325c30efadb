//! Volumes of a storage driver, which is this test: it serves the interface on sockets and binds directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cri::csi::*;
use cri::registration::{
    InfoRequest, PluginInfo, Registration, RegistrationStatus, RegistrationStatusResponse, serve_registration,
};
use tonic::{Request, Response, Status};

use super::machine::{Machine, until};

const OBJECTS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: plain.test.example}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral], fsGroupPolicy: File}
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

/// A driver and what it was asked for.
struct Driver {
    name: &'static str,
    endpoint: PathBuf,
    /// What it keeps volumes in.
    directory: PathBuf,
    calls: Mutex<Vec<String>>,
    registered: Mutex<Option<bool>>,
}

type Answer<T> = Result<Response<T>, Status>;

fn failed(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}

impl Driver {
    fn note(&self, call: String) {
        self.calls.lock().expect("calls").push(call);
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("calls").clone()
    }
}

fn told(map: &BTreeMap<String, String>, key: &str) -> String {
    map.get(key).cloned().unwrap_or_default()
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        *self.registered.lock().expect("state") = Some(request.into_inner().plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "here".to_owned(),
            max_volumes_per_node: 7,
            accessible_topology: Some(Topology {
                segments: BTreeMap::from([("test.example/rack".to_owned(), "r1".to_owned())]),
            }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let can = |kind: NodeServiceCapabilityRPCType| NodeServiceCapability {
            r#type: Some(NodeServiceCapabilityType::Rpc(NodeServiceCapabilityRPC { r#type: kind as i32 })),
        };
        let capabilities = vec![
            can(NodeServiceCapabilityRPCType::StageUnstageVolume),
            can(NodeServiceCapabilityRPCType::ExpandVolume),
        ];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let asked = request.into_inner();
        let (colour, secret) = (told(&asked.volume_context, "colour"), told(&asked.secrets, "password"));
        let context = told(&asked.publish_context, "device");
        self.note(format!("stage {} {colour} {secret} {context}", asked.volume_id));
        fs::create_dir_all(self.directory.join(&asked.volume_id)).map_err(failed)?;
        fs::write(Path::new(&asked.staging_target_path).join("staged"), &asked.volume_id).map_err(failed)?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let asked = request.into_inner();
        self.note(format!("unstage {}", asked.volume_id));
        fs::remove_file(Path::new(&asked.staging_target_path).join("staged")).map_err(failed)?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let asked = request.into_inner();
        let ephemeral = told(&asked.volume_context, "csi.storage.k8s.io/ephemeral");
        let pod = told(&asked.volume_context, "csi.storage.k8s.io/pod.name");
        let kind = if ephemeral == "true" { "inline" } else { &asked.volume_id };
        self.note(format!("publish {kind} {} {pod}", told(&asked.volume_context, "colour")));
        let (from, to) = (self.directory.join(&asked.volume_id), PathBuf::from(&asked.target_path));
        fs::create_dir_all(&from).map_err(failed)?;
        fs::create_dir_all(&to).map_err(failed)?;
        sys::mounts::bind(&from, &to, false).map_err(failed)?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let asked = request.into_inner();
        self.note(format!("unpublish {}", asked.volume_id));
        sys::mounts::unmount(Path::new(&asked.target_path)).map_err(failed)?;
        let _ = fs::remove_dir(&asked.target_path);
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let asked = request.into_inner();
        let bytes = asked.capacity_range.map_or(0, |range| range.required_bytes);
        self.note(format!("expand {} {bytes}", asked.volume_id));
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }
}

/// Serves a driver on its two sockets for as long as the test runs.
fn serve(machine: &Machine, name: &'static str) -> Arc<Driver> {
    let place = machine.directory.path().join(name);
    let registry = machine.data().join("kubelet/plugins_registry");
    let driver = Arc::new(Driver {
        name,
        endpoint: place.join("csi.sock"),
        directory: place.join("volumes"),
        calls: Mutex::default(),
        registered: Mutex::default(),
    });
    let node = cri::server::bind(&driver.endpoint).expect("a socket");
    let service = Arc::clone(&driver);
    tokio::spawn(cri::server::serve_routes(
        node,
        move |request| {
            let answer = serve_node(Arc::clone(&service), request);
            async move {
                match answer {
                    Some(answer) => answer.await,
                    None => Status::unimplemented("no such method").into_http(),
                }
            }
        },
        std::future::pending(),
    ));
    let socket = cri::server::bind(&registry.join(format!("{name}.sock"))).expect("a socket");
    let service = Arc::clone(&driver);
    tokio::spawn(cri::server::serve_routes(
        socket,
        move |request| {
            let answer = serve_registration(Arc::clone(&service), request);
            async move {
                match answer {
                    Some(answer) => answer.await,
                    None => Status::unimplemented("no such method").into_http(),
                }
            }
        },
        std::future::pending(),
    ));
    driver
}

pub fn run(machine: &Machine) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let plain = serve(machine, "plain.test.example");
    let attached = serve(machine, "attached.test.example");
    machine.wait_until("csinode/n1", "{.spec.drivers[*].name}", "names both drivers", |text| {
        text.contains("plain.test.example") && text.contains("attached.test.example")
    });
    let row =
        "{.spec.drivers[0].nodeID} {.spec.drivers[0].allocatable.count} {.spec.drivers[0].topologyKeys[0]}";
    machine.wait_for("csinode/n1", row, "here 7 test.example/rack");
    machine.wait_for("node/n1", "{.metadata.labels.test\\.example/rack}", "r1");
    assert_eq!(*plain.registered.lock().expect("state"), Some(true));

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

    a_volume_is_attached_first(machine, &attached);
    assert_eq!(machine.kubectl(&["exec", "two", "--", "cat", "/plain/file"]), "from one\n");
    machine.wait_until("node/n1", "{.status.volumesInUse}", "names both volumes", |text| {
        text.contains("plain.test.example^plain-handle")
            && text.contains("attached.test.example^attached-handle")
    });

    machine.kubectl(&["patch", "pv", "plain", "-p", "{\"spec\":{\"capacity\":{\"storage\":\"2Mi\"}}}"]);
    machine.wait_for("pvc/plain", "{.status.capacity.storage}", "2Mi");
    assert!(plain.calls().contains(&"expand plain-handle 2097152".to_owned()), "{:?}", plain.calls());

    machine.kubectl(&["delete", "pod", "one", "--timeout=60s"]);
    let calls = plain.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("unpublish")).count(), 2, "{calls:?}");
    assert!(!calls.contains(&"unstage plain-handle".to_owned()), "another pod has it: {calls:?}");
    machine.kubectl(&["delete", "pod", "two", "--timeout=60s"]);
    assert!(plain.calls().contains(&"unstage plain-handle".to_owned()), "{:?}", plain.calls());
    assert!(attached.calls().contains(&"unstage attached-handle".to_owned()), "{:?}", attached.calls());

    fs::remove_file(machine.data().join("kubelet/plugins_registry/attached.test.example.sock"))
        .expect("removed");
    machine.wait_for("csinode/n1", "{.spec.drivers[*].name}", "plain.test.example");
}

/// The pod waits until somebody says that the volume is attached, and its driver is told what they learned.
fn a_volume_is_attached_first(machine: &Machine, driver: &Driver) {
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
