//! Puts encryption between the API server and the store, and follows its configuration while running.

use std::path::PathBuf;
use std::sync::Arc;

use apiserver::encryption::{Encrypted, Rules, ensure_key_file};
use base::file_changes::FileChanges;
use base::tasks::TaskGroup;
use store::Store;

use crate::{ClusterError, Config, StoreConfig, chain};

/// The store as the API server sees it. Makes the cluster's own key at its first start.
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

/// As [`open`], for the store of a single resource: the key is there already.
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

/// Reads the configuration again whenever its file changes. What cannot be read changes nothing.
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
            tracing::warn!(%error, path = %path.display(), "changes of the encryption configuration are not noticed");
            return;
        }
    };
    loop {
        let changed = tokio::select! {
            () = group.stopping() => return,
            changed = changes.changed() => changed,
        };
        if let Err(error) = changed {
            tracing::warn!(%error, path = %path.display(), "changes of the encryption configuration are no longer noticed");
            return;
        }
        match Rules::read(&path) {
            Ok(rules) => {
                encrypted.replace(rules);
                tracing::info!(path = %path.display(), "encryption configuration is in use");
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "encryption configuration stays as it was");
            }
        }
    }
}
