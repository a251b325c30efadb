//! Device plugin of the test.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cri::device_plugin::*;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::{Request, Response, Status};

use super::RESOURCE;
use crate::machine::Machine;

type Answer<T> = Result<Response<T>, Status>;

pub struct Plugin(Arc<Service>);

struct Service {
    socket: PathBuf,
    files: PathBuf,
    /// Health by device.
    devices: watch::Sender<BTreeMap<String, bool>>,
    allocations: AtomicUsize,
}

impl Plugin {
    pub fn serve(machine: &Machine, ids: &[&str]) -> Self {
        let files = machine.directory.path().join("thing");
        fs::create_dir_all(&files).expect("a directory");
        fs::write(files.join("file"), "").expect("a file");
        let service = Arc::new(Service {
            socket: machine.data().join(format!("kubelet/device-plugins/thing-{}.sock", ids.len())),
            files,
            devices: watch::Sender::new(ids.iter().map(|id| ((*id).to_owned(), true)).collect()),
            allocations: AtomicUsize::new(0),
        });
        let listener = cri::server::bind(&service.socket).expect("a socket");
        let served = Arc::clone(&service);
        let route = move |request| {
            serve_device_plugin(Arc::clone(&served), request).expect("a method of device plugins")
        };
        tokio::spawn(cri::server::serve_routes(listener, route, std::future::pending()));
        Self(service)
    }

    pub async fn register(&self, machine: &Machine) {
        let socket = machine.data().join("kubelet/device-plugins/kubelet.sock");
        let channel = cri::client::channel(&socket.display().to_string()).expect("an address");
        let endpoint = self.0.socket.file_name().expect("a name").to_string_lossy().into_owned();
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint,
            resource_name: RESOURCE.to_owned(),
            options: None,
        };
        RegistrationClient::new(Grpc::new(channel)).register(request).await.expect("registered");
    }

    pub fn set_health(&self, id: &str, healthy: bool) {
        self.0.devices.send_modify(|devices| {
            devices.insert(id.to_owned(), healthy);
        });
    }

    pub fn allocations(&self) -> usize {
        self.0.allocations.load(Ordering::SeqCst)
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<DevicePluginOptions> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Answer<cri::server::ResponseStream<ListAndWatchResponse>> {
        let state = (self.devices.subscribe(), true);
        let stream = futures_util::stream::unfold(state, |(mut devices, first)| async move {
            if !first {
                devices.changed().await.ok()?;
            }
            let device = |(id, healthy): (&String, &bool)| Device {
                id: id.clone(),
                health: if *healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
                topology: None,
            };
            let list = devices.borrow_and_update().iter().map(device).collect();
            Some((Ok(ListAndWatchResponse { devices: list }), (devices, false)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Answer<AllocateResponse> {
        self.allocations.fetch_add(1, Ordering::SeqCst);
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        let response = ContainerAllocateResponse {
            envs: [("THINGS".to_owned(), ids.join(","))].into(),
            mounts: vec![Mount {
                container_path: "/opt/thing".to_owned(),
                host_path: self.files.display().to_string(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/thing".to_owned(),
                host_path: "/dev/null".to_owned(),
                permissions: "rw".to_owned(),
            }],
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }
}
