//! Connections to a container runtime.

use futures_util::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::connections::Connections;
use crate::v1::{ImageServiceClient, RuntimeServiceClient};

/// Maximum message size of either side, as in Kubernetes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Clients of both services of a runtime. Clones share the connection.
#[derive(Clone)]
pub struct Runtime {
    pub runtime: RuntimeServiceClient,
    pub images: ImageServiceClient,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("invalid unix socket address {0}: must be unix:///PATH or an absolute path")]
    Address(String),
    #[error("failed to connect to the container runtime at {0}")]
    Connect(PathBuf, #[source] tonic::transport::Error),
}

/// Connects to `unix:///path` or `/path`. A broken connection is re-established with the next call.
pub fn connect<'a>(address: &'a str, timeout: Duration) -> BoxFuture<'a, Result<Runtime, ConnectError>> {
    Box::pin(async move {
        let (path, endpoint) = endpoint(address)?;
        let channel = endpoint.connect_timeout(timeout).connect().await;
        Ok(Runtime::over(channel.map_err(|error| ConnectError::Connect(path, error))?))
    })
}

/// Like [`connect`], but connects with the first call, so that the runtime may start later. Must be called in an
/// async runtime.
pub fn connect_lazily(address: &str) -> Result<Runtime, ConnectError> {
    Ok(Runtime::over(endpoint(address)?.1.connect_lazy()))
}

/// A lazy connection for clients of other services. Must be called in an async runtime.
pub fn channel(address: &str) -> Result<Channel, ConnectError> {
    Ok(endpoint(address)?.1.connect_lazy())
}

/// As [`channel`], with a count of its open connections.
pub fn counted_channel(address: &str, connections: &Connections) -> Result<Channel, ConnectError> {
    let (path, endpoint) = endpoint(address)?;
    Ok(endpoint.connect_with_connector_lazy(connections.connector(path)))
}

fn endpoint(address: &str) -> Result<(PathBuf, Endpoint), ConnectError> {
    let wrong = || ConnectError::Address(address.to_owned());
    let path = address.strip_prefix("unix://").unwrap_or(address);
    if !Path::new(path).is_absolute() {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|_| wrong())?;
    Ok((path.into(), endpoint))
}

impl Runtime {
    fn over(channel: Channel) -> Self {
        let grpc = || {
            Grpc::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        };
        Self { runtime: RuntimeServiceClient::new(grpc()), images: ImageServiceClient::new(grpc()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_parse() {
        for (address, path) in [
            ("unix:///run/a.sock", Some("/run/a.sock")),
            ("/run/b", Some("/run/b")),
            ("tcp://x", None),
            ("run/c", None),
        ] {
            assert_eq!(endpoint(address).ok().map(|found| found.0), path.map(PathBuf::from), "{address}");
        }
    }
}
