//! CSI driver of the test: serves CSI on sockets, binds directories and devices, and records its calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use cri::csi::*;
use cri::registration::{
    InfoRequest, PluginInfo, Registration, RegistrationStatus, RegistrationStatusResponse, serve_registration,
};
use tonic::{Request, Response, Status};

use crate::machine::Machine;

/// Key of the service account tokens that drivers receive.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// Maximum volume size.
const LARGEST: i64 = 4 << 20;

/// A driver and its recorded calls.
pub struct Driver {
    name: &'static str,
    endpoint: PathBuf,
    /// Directory of its volumes.
    pub directory: PathBuf,
    /// Device of its block volumes.
    device: Option<PathBuf>,
    calls: Mutex<Vec<String>>,
    /// Last received tokens, and if they were among the secrets.
    tokens: Mutex<Option<(bool, String)>>,
    registered: Mutex<Option<bool>>,
    /// Volume limit of the node.
    pub most: AtomicI64,
}

type Answer<T> = Result<Response<T>, Status>;

fn failed(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}

fn value_of(map: &BTreeMap<String, String>, key: &str) -> String {
    map.get(key).cloned().unwrap_or_default()
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    let access = capability.and_then(|capability| capability.access_type.as_ref());
    matches!(access, Some(VolumeCapabilityAccessType::Block(_)))
}

fn is_mounted(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(path))
}

impl Driver {
    fn note(&self, call: String) {
        self.calls.lock().expect("calls").push(call);
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("calls").clone()
    }

    pub fn tokens(&self) -> Option<(bool, String)> {
        self.tokens.lock().expect("tokens").clone()
    }

    pub fn is_registered(&self) -> Option<bool> {
        *self.registered.lock().expect("state")
    }
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
            max_volumes_per_node: self.most.load(Ordering::SeqCst),
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
            can(NodeServiceCapabilityRPCType::GetVolumeStats),
        ];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let message = request.into_inner();
        let (colour, secret) =
            (value_of(&message.volume_context, "colour"), value_of(&message.secrets, "password"));
        let context = value_of(&message.publish_context, "device");
        let kind = if is_block(message.volume_capability.as_ref()) { "stage device" } else { "stage" };
        self.note(format!("{kind} {} {colour} {secret} {context}", message.volume_id));
        fs::create_dir_all(self.directory.join(&message.volume_id)).map_err(failed)?;
        fs::write(Path::new(&message.staging_target_path).join("staged"), &message.volume_id)
            .map_err(failed)?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let message = request.into_inner();
        self.note(format!("unstage {}", message.volume_id));
        fs::remove_file(Path::new(&message.staging_target_path).join("staged")).map_err(failed)?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let message = request.into_inner();
        let ephemeral = value_of(&message.volume_context, "csi.storage.k8s.io/ephemeral");
        let pod = value_of(&message.volume_context, "csi.storage.k8s.io/pod.name");
        let kind = if ephemeral == "true" { "inline" } else { &message.volume_id };
        let to = PathBuf::from(&message.target_path);
        for (secret, words) in [(false, &message.volume_context), (true, &message.secrets)] {
            if let Some(text) = words.get(TOKENS) {
                *self.tokens.lock().expect("tokens") = Some((secret, text.clone()));
            }
        }
        if is_block(message.volume_capability.as_ref()) {
            self.note(format!("publish device {kind} {pod}"));
            let device = self.device.as_ref().ok_or_else(|| Status::internal("no device"))?;
            fs::write(&to, "").map_err(failed)?;
            sys::mounts::bind(device, &to, false).map_err(failed)?;
            return Ok(Response::new(NodePublishVolumeResponse {}));
        }
        self.note(format!("publish {kind} {} {pod}", value_of(&message.volume_context, "colour")));
        let from = self.directory.join(&message.volume_id);
        fs::create_dir_all(&from).map_err(failed)?;
        fs::create_dir_all(&to).map_err(failed)?;
        if !is_mounted(&message.target_path) {
            sys::mounts::bind(&from, &to, false).map_err(failed)?;
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let message = request.into_inner();
        self.note(format!("unpublish {}", message.volume_id));
        let target = Path::new(&message.target_path);
        sys::mounts::unmount(target).map_err(failed)?;
        let _ = fs::remove_dir(target).or_else(|_| fs::remove_file(target));
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let message = request.into_inner();
        let bytes = message.capacity_range.map_or(0, |range| range.required_bytes);
        self.note(format!("expand {} {bytes}", message.volume_id));
        if bytes > LARGEST {
            return Err(Status::out_of_range("too large for me"));
        }
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        if !Path::new(&request.into_inner().volume_path).exists() {
            return Err(Status::not_found("not published there"));
        }
        let usage = |unit: VolumeUsageUnit, available, total, used| VolumeUsage {
            available,
            total,
            used,
            unit: unit as i32,
        };
        let usage =
            vec![usage(VolumeUsageUnit::Bytes, 600, 1000, 400), usage(VolumeUsageUnit::Inodes, 6, 10, 4)];
        Ok(Response::new(NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }
}

/// Serves a driver on its two sockets until the test ends.
pub fn serve(machine: &Machine, name: &'static str, device: Option<&Path>) -> Arc<Driver> {
    let place = machine.directory.path().join(name);
    let registry = machine.data().join("kubelet/plugins_registry");
    let driver = Arc::new(Driver {
        name,
        endpoint: place.join("csi.sock"),
        directory: place.join("volumes"),
        device: device.map(Path::to_owned),
        calls: Mutex::default(),
        tokens: Mutex::default(),
        registered: Mutex::default(),
        most: AtomicI64::new(7),
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
