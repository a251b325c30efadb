//! A device plugin in this process.

use std::path::Path;
use std::sync::Arc;

use cri::device_plugin::*;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

pub struct FakePlugin {
    options: DevicePluginOptions,
    devices: watch::Sender<Vec<Device>>,
    preferred: Mutex<Vec<String>>,
    calls: Mutex<Vec<String>>,
    stop: watch::Sender<bool>,
}

/// Healthy devices without topology.
pub fn healthy(ids: &[&str]) -> Vec<Device> {
    let device = |id: &&str| Device { id: (*id).to_owned(), health: "Healthy".to_owned(), topology: None };
    ids.iter().map(device).collect()
}

impl FakePlugin {
    pub async fn serve(socket: &Path, options: DevicePluginOptions) -> Arc<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let plugin = Arc::new(Self {
            options,
            devices: watch::Sender::default(),
            preferred: Mutex::default(),
            calls: Mutex::default(),
            stop,
        });
        let listener = cri::server::bind(socket).expect("a socket");
        let service = Arc::clone(&plugin);
        let route = move |request| {
            serve_device_plugin(Arc::clone(&service), request).expect("a method of device plugins")
        };
        tokio::spawn(async move {
            let end = async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            cri::server::serve_routes(listener, route, end).await;
        });
        plugin
    }

    pub fn report(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    pub fn prefer(&self, ids: &[&str]) {
        *self.preferred.lock() = ids.iter().map(|id| (*id).to_owned()).collect();
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn note(&self, call: String) {
        self.calls.lock().push(call);
    }
}

#[tonic::async_trait]
impl DevicePlugin for FakePlugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(self.options.clone()))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<cri::server::ResponseStream<ListAndWatchResponse>>, Status> {
        let state = (self.devices.subscribe(), self.stop.subscribe(), true);
        let stream = futures_util::stream::unfold(state, |(mut devices, mut stop, first)| async move {
            if !first {
                tokio::select! {
                    changed = devices.changed() => changed.ok()?,
                    _ = stop.wait_for(|stopped| *stopped) => return None,
                }
            }
            let list = devices.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices: list }), (devices, stop, false)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let one = request.into_inner().container_requests.remove(0);
        let (available, included) =
            (one.available_device_ids.join(","), one.must_include_device_ids.join(","));
        self.note(format!("preferred {} of {available} with {included}", one.allocation_size));
        let device_ids = self.preferred.lock().clone();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_ids }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        self.note(format!("allocate {}", ids.join(",")));
        let device = |(id, host): (&String, &&str)| DeviceSpec {
            container_path: format!("/dev/gpu-{id}"),
            host_path: (*host).to_owned(),
            permissions: "rw".to_owned(),
        };
        let response = ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), ids.join(","))].into(),
            mounts: vec![Mount {
                container_path: "/opt/gpu".to_owned(),
                host_path: "/usr".to_owned(),
                read_only: true,
            }],
            devices: ids.iter().zip(&["/dev/null", "/dev/zero", "/dev/full"]).map(device).collect(),
            annotations: [("gpu".to_owned(), "yes".to_owned())].into(),
            cdi_devices: ids.iter().map(|id| CDIDevice { name: format!("example.com/gpu={id}") }).collect(),
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.note(format!("prestart {}", request.into_inner().devices_ids.join(",")));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
