//! Ports on which components tell how they do: their health and their figures, in plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use base::tasks::TaskGroup;
use proxy::health::{self, Answer};
use tokio::net::TcpListener;

use crate::ClusterError;

/// Where a component is to be asked.
#[derive(Clone, Copy, Debug)]
pub struct StatusPort {
    pub address: SocketAddr,
    /// Whether the component is not to run without. Else another one of this machine may have the port.
    pub needed: bool,
}

impl StatusPort {
    /// Serves `answer` until `tasks` stop.
    pub(crate) async fn open(
        self,
        purpose: &'static str,
        answer: Arc<dyn Answer>,
        tasks: &TaskGroup,
    ) -> Result<(), ClusterError> {
        let Self { address, needed } = self;
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let address = listener.local_addr().unwrap_or(address);
                tracing::info!(%address, purpose, "a port is open");
                let (listener, group) = (Arc::new(listener), tasks.clone());
                tasks.supervise(format!("port {address}"), move || {
                    health::serve(Arc::clone(&listener), Arc::clone(&answer), group.clone())
                });
                Ok(())
            }
            Err(error) if !needed => {
                tracing::warn!(%address, purpose, %error, "a port is not opened");
                Ok(())
            }
            Err(source) => Err(ClusterError::Port { address, purpose, source }),
        }
    }
}
