//! Serves the embedded store alone, with etcd's API.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use store::embedded::DEFAULT_QUOTA_BYTES;
use tokio::net::TcpListener;

use crate::{ClusterError, StoreConfig, storage};

/// Time between a store failure and the exit of the process, in which clients can read the reason.
const FAILURE_GRACE: Duration = Duration::from_secs(5);

/// Serves the embedded store in `data_dir` on every listener until `tasks` stop. A quota of 0 bytes means the default.
pub async fn serve_store(
    data_dir: &Path,
    quota_bytes: u64,
    listeners: Vec<TcpListener>,
    tasks: &TaskGroup,
) -> Result<(), ClusterError> {
    let quota = if quota_bytes == 0 { DEFAULT_QUOTA_BYTES } else { quota_bytes };
    let store = storage::open(data_dir, &StoreConfig::Embedded, quota).await?;
    let failure = storage::end_when_failed(Arc::clone(&store), FAILURE_GRACE, tasks);
    let servers = listeners
        .into_iter()
        .map(|listener| store::etcd_server::serve(listener, Arc::clone(&store), tasks.stopping()));
    futures_util::future::join_all(servers).await;
    store.close().await;
    match failure.lock().take() {
        Some(reason) => Err(ClusterError::StoreFailed(reason)),
        None => Ok(()),
    }
}
