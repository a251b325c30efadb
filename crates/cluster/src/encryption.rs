//! Adds encryption at rest between the API server and the store, and reloads its configuration.

use std::path::PathBuf;
use std::sync::Arc;

use apiserver::encryption::{Encrypted, Rules, ensure_key_file};
use base::file_changes::FileChanges;
use base::tasks::TaskGroup;
use store::Store;

use crate::{ClusterError, Config, StoreConfig, chain};

/// Wraps the store with encryption. Creates the cluster's own key at the first start.
pub async fn open(
    config: &Config,
    store: Arc<dyn Store>,
    tasks: &TaskGroup,
) -> Result<Arc<dyn Store>, ClusterError> {
    if config.encryption.file.is_none() {
        let path = config.encryption_file();
        let shared = matches!(config.store, StoreConfig::Etcd(_));
        ensure_key_file(&path, &*store, shared).await.map_err(ClusterError::Encryption)?;
    }
    wrap(config, store, tasks)
}

/// Like [`open`], for the store of a single resource: the key already exists.
pub fn wrap(
    config: &Config,
    store: Arc<dyn Store>,
    tasks: &TaskGroup,
) -> Result<Arc<dyn Store>, ClusterError> {
    let path = config.encryption_file();
    let own = config.encryption.file.is_none();
    let rules = Rules::read(&path).map_err(ClusterError::Encryption)?;
    let encrypted = Arc::new(Encrypted::new(store, rules));
    if own || config.encryption.reload {
        follow(path, Arc::clone(&encrypted), tasks);
    }
    Ok(encrypted)
}

/// Reloads the configuration whenever its file changes. An invalid file is ignored.
fn follow(path: PathBuf, encrypted: Arc<Encrypted>, tasks: &TaskGroup) {
    let group = tasks.clone();
    tasks.supervise("encryption-configuration", move || {
        follow_changes(path.clone(), Arc::clone(&encrypted), group.clone())
    });
}

async fn follow_changes(path: PathBuf, encrypted: Arc<Encrypted>, group: TaskGroup) {
    let mut changes = match FileChanges::of(&path) {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot watch the encryption configuration for changes");
            return;
        }
    };
    loop {
        let Some(changed) = group.until_stopped(changes.changed()).await else { return };
        if let Err(error) = changed {
            tracing::warn!(%error, path = %path.display(), "stopped watching the encryption configuration for changes");
            return;
        }
        match Rules::read(&path) {
            Ok(rules) => {
                encrypted.replace(rules);
                tracing::info!(path = %path.display(), "reloaded the encryption configuration");
            }
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "failed to reload the encryption configuration, keeping the current one"
                );
            }
        }
    }
}
