//! Ferry's own container runtime: started on a socket of the data directory, where the kubelet and `ferry` reach it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::tasks::TaskGroup;

use crate::NodeConfig;

/// Reason why the container runtime cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ContainerRuntimeError {
    #[error("failed to open the container runtime")]
    Open(#[source] container::RuntimeError),
    #[error("failed to listen on {}", .socket.display())]
    Listen { socket: PathBuf, source: io::Error },
}

/// Address ranges of pods.
#[derive(Clone, Debug, Default)]
pub struct PodRanges {
    /// Range of this node, until the kubelet sets another.
    node: Vec<String>,
    /// Ranges of all nodes; traffic to other destinations is masqueraded.
    cluster: Vec<String>,
}

impl PodRanges {
    #[must_use]
    pub fn new(node: &NodeConfig, cluster: &[String]) -> Self {
        Self { node: node.pod_cidr.clone().into_iter().collect(), cluster: cluster.to_vec() }
    }
}

/// Starts the container runtime of a data directory and returns its endpoint.
pub fn start_container_runtime(
    data_dir: &Path,
    bridge: String,
    ranges: PodRanges,
    tasks: &TaskGroup,
) -> Result<String, ContainerRuntimeError> {
    let mut config = container::Config::new(data_dir.join("runtime"));
    config.pod_ranges = ranges.node;
    config.cluster_ranges = ranges.cluster;
    config.bridge = bridge;
    let socket = data_dir.join("runtime.sock");
    serve_container_runtime(config, &socket, tasks)?;
    Ok(format!("unix://{}", socket.display()))
}

/// Serves a container runtime on a socket until `tasks` stop.
pub fn serve_container_runtime(
    config: container::Config,
    socket: &Path,
    tasks: &TaskGroup,
) -> Result<(), ContainerRuntimeError> {
    let runtime = container::Runtime::open(config, tasks.clone()).map_err(ContainerRuntimeError::Open)?;
    let listener = cri::server::bind(socket)
        .map_err(|source| ContainerRuntimeError::Listen { socket: socket.to_owned(), source })?;
    let (mut first, socket) = (Some(listener), socket.to_owned());
    tasks.supervise("container-runtime", move || {
        let listener = first.take().map_or_else(|| cri::server::bind(&socket), Ok);
        let runtime = Arc::clone(&runtime);
        async move {
            match listener {
                Ok(listener) => runtime.serve(listener).await,
                Err(error) => tracing::error!(%error, "failed to listen for CRI"),
            }
        }
    });
    Ok(())
}
