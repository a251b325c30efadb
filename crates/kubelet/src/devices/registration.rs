//! Connections of device plugins: registered through the kubelet's socket or the plugin registration directory, and
//! followed until they stop.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cri::device_plugin::{
    DevicePluginClient, DevicePluginOptions, Empty, RegisterRequest, Registration, serve_registration,
};
use machinery::names::qualified_name;
use tonic::client::Grpc;
use tonic::{Request, Response, Status};

use super::Devices;
use crate::node::is_extended;
use crate::pods::Workers;
use crate::shared::Shared;

/// Socket of the registration service.
const SOCKET: &str = "kubelet.sock";
const VERSION: &str = "v1beta1";
/// Time a plugin has to accept the connection and to report its options.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between reports of one plugin; further ones wait in its connection.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of resources.
const MAX_RESOURCES: usize = 1024;
/// Delay of the next attempt to listen.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// A connected plugin. Clones share the connection.
#[derive(Clone)]
pub struct Plugin {
    pub client: DevicePluginClient,
    pub options: DevicePluginOptions,
    /// Distinguishes the connections of one resource.
    pub generation: u64,
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Serves registrations of plugins, and passes changes of their devices on, until the kubelet stops.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let devices = shared.devices.clone();
    let changes = async {
        loop {
            let (pods, capacity) = devices.changes().await;
            pods.iter().for_each(|uid| workers.wake(uid));
            if capacity {
                shared.node_news.notify_one();
            }
        }
    };
    tokio::join!(changes, serve(&devices));
}

/// Listens on the registration socket, again if that fails.
pub(super) async fn serve(devices: &Devices) {
    let directory = &devices.0.directory;
    loop {
        let listening = sys::directories::ensure(directory, 0o750)
            .and_then(|()| remove_sockets(directory))
            .and_then(|()| cri::server::bind(&directory.join(SOCKET)));
        match listening {
            Ok(listener) => {
                let service = Arc::new(devices.clone());
                let route = move |request| {
                    let answer = serve_registration(Arc::clone(&service), request);
                    answer.unwrap_or_else(|| {
                        Box::pin(std::future::ready(Status::unimplemented("no such method").into_http()))
                    })
                };
                cri::server::serve_routes(listener, route, std::future::pending()).await;
            }
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "failed to serve device plugin registration, retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Removes sockets of an earlier run: plugins notice it and register again.
fn remove_sockets(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[tonic::async_trait]
impl Registration for Devices {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [{VERSION:?}]",
                request.version
            )));
        }
        let endpoint = Path::new(&request.endpoint);
        let is_relative = endpoint.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_relative || request.endpoint.is_empty() {
            return Err(Status::invalid_argument(format!("invalid endpoint {:?}", request.endpoint)));
        }
        let socket = self.0.directory.join(endpoint);
        self.connect(&request.resource_name, &socket).await.map_err(Status::unknown)?;
        Ok(Response::new(Empty {}))
    }
}

impl Devices {
    /// Connects the plugin of a resource at a socket and follows its devices.
    pub async fn connect(&self, resource: &str, socket: &Path) -> Result<(), String> {
        if !is_extended(resource) || !qualified_name(resource).is_empty() {
            return Err(format!("the ResourceName {resource:?} is invalid"));
        }
        self.0.metrics.registered(resource);
        if !self.manage(resource) && self.0.inventory.lock().resources().count() >= MAX_RESOURCES {
            return Err(format!("too many resources: at most {MAX_RESOURCES} are supported"));
        }
        let channel =
            cri::client::channel(&socket.display().to_string()).map_err(|error| error.to_string())?;
        let mut client = DevicePluginClient::new(Grpc::new(channel));
        let options = tokio::time::timeout(CONNECT_TIMEOUT, client.get_device_plugin_options(Empty {})).await;
        let options = options
            .map_err(|_| "no response within 10s".to_owned())
            .and_then(|answer| answer.map_err(|status| status.message().to_owned()))
            .map_err(|error| format!("failed to get device plugin options: {error}"))?
            .into_inner();
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let plugin = Plugin { client, options, generation };
        self.0.inventory.lock().connect(resource, plugin.clone());
        tracing::info!(resource, socket = %socket.display(), "device plugin connected");
        let (devices, resource) = (self.clone(), resource.to_owned());
        self.0.tasks.spawn_until_stopped(async move { devices.watch(&resource, plugin).await });
        Ok(())
    }

    /// Stops using the plugin of a resource.
    pub fn disconnect(&self, resource: &str) {
        let plugin = self.0.inventory.lock().plugin(resource);
        if let Some(plugin) = plugin {
            self.disconnect_generation(resource, plugin.generation);
        }
    }

    fn disconnect_generation(&self, resource: &str, generation: u64) {
        if self.0.inventory.lock().disconnect(resource, generation, Instant::now()) {
            tracing::info!(resource, "device plugin disconnected");
            self.notify(std::collections::BTreeSet::new());
        }
    }

    /// Follows the devices of a plugin until its stream ends or another plugin replaces it.
    async fn watch(&self, resource: &str, mut plugin: Plugin) {
        match plugin.client.list_and_watch(Empty {}).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(list)) => {
                            let count = list.devices.len();
                            let report =
                                self.0.inventory.lock().report(resource, plugin.generation, list.devices);
                            let Some(pods) = report else { return };
                            tracing::debug!(resource, count, "device plugin reported its devices");
                            self.notify(pods);
                            if let Err(error) = self.save().await {
                                tracing::warn!(%error, "failed to write device checkpoint");
                            }
                            tokio::time::sleep(REPORT_INTERVAL).await;
                        }
                        Ok(None) => break,
                        Err(status) => {
                            tracing::info!(resource, error = status.message(), "ListAndWatch ended");
                            break;
                        }
                    }
                }
            }
            Err(status) => tracing::warn!(resource, error = status.message(), "ListAndWatch failed"),
        }
        self.disconnect_generation(resource, plugin.generation);
    }
}
