//! Opens the store the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::{Embedded, EmbeddedOptions, Etcd, EtcdOptions, EtcdTls, Store};

use crate::{ClusterError, EtcdConfig, StoreConfig};

/// The directory of the embedded store under the data directory.
pub(crate) const DIRECTORY: &str = "store";

/// Opens the store; the embedded one blocks while it reads its files, so that happens off the async threads.
pub async fn open(data_dir: &Path, config: &StoreConfig) -> Result<Arc<dyn Store>, ClusterError> {
    match config {
        StoreConfig::Embedded => {
            let options = EmbeddedOptions::new(data_dir.join(DIRECTORY));
            let opened = tokio::task::spawn_blocking(|| Embedded::open(options)).await;
            match opened {
                Ok(store) => Ok(Arc::new(store.map_err(ClusterError::Store)?)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        StoreConfig::Etcd(etcd) => {
            let mut options = EtcdOptions::new(etcd.endpoints.iter().cloned());
            options.tls = tls(etcd)?;
            Ok(Arc::new(Etcd::connect(options).await.map_err(ClusterError::Store)?))
        }
    }
}

fn tls(etcd: &EtcdConfig) -> Result<Option<EtcdTls>, ClusterError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| ClusterError::ReadFile { path: path.clone(), source })
    };
    let Some(ca) = &etcd.ca_file else { return Ok(None) };
    let identity = match &etcd.identity_files {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    Ok(Some(EtcdTls { ca: read(ca)?, identity }))
}

/// Opens the embedded store of an existing cluster, never making a new one.
pub(crate) async fn open_existing(data_dir: &Path) -> Result<Arc<dyn Store>, ClusterError> {
    let path = data_dir.join(DIRECTORY);
    std::fs::read_dir(&path).map_err(|source| ClusterError::DataDirectory { path, source })?;
    open(data_dir, &StoreConfig::Embedded).await
}
