//! The certificate of a kubelet's API: where it comes from, and that there is another before it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::pki::{Identity, KubeletPki, Pki};
use base::tasks::TaskGroup;
use client::Client;
use kubelet::server::Serving;
use parking_lot::Mutex;

use crate::{ClusterError, NodeConfig, chain};

/// How often it is looked whether there should be another.
const CHECK: Duration = Duration::from_secs(600);

pub(crate) fn read(path: &Path) -> Result<String, ClusterError> {
    std::fs::read_to_string(path).map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })
}

/// The certificate of a kubelet that is not beside its control plane: of files, signed by the cluster, or made here.
pub(crate) fn begin(node: &NodeConfig, client: &Client, tasks: &TaskGroup) -> Result<Serving, ClusterError> {
    if node.rotate_serving && node.serving.is_none() {
        let credential = node.credential("kubelet-server-current.pem", Some(node.names()));
        let identity = match credential.load() {
            Some(identity) => identity,
            // Until the cluster has signed one.
            None => made(node)?,
        };
        let serving = serve(&identity)?;
        let shown = serving.clone();
        credential.keep_fresh(client.clone(), tasks, move |identity| replace(&shown, identity));
        return Ok(serving);
    }
    let node = node.clone();
    keep(tasks, move |_| match &node.serving {
        Some((certificate, key)) => {
            let text = format!("{}\n{}", read(certificate)?, read(key)?);
            Identity::from_pem(&text)
                .map_err(|reason| ClusterError::BadFile { path: certificate.clone(), reason })
        }
        None => made(&node),
    })
}

/// The certificate of a kubelet beside its control plane, whose authority is at hand.
pub(crate) fn issued(node: &NodeConfig, pki: &Arc<Pki>, tasks: &TaskGroup) -> Result<Serving, ClusterError> {
    let (node, pki) = (node.clone(), Arc::clone(pki));
    keep(tasks, move |before| match before {
        Some(before) if !before.is_due(node.clock.now()) => Ok(before.clone()),
        _ => {
            let issued = pki.server_authority.issue_serving(&node.user(), &node.names(), node.clock.now());
            issued.map_err(ClusterError::Pki)
        }
    })
}

/// A certificate of the kubelet's own authority.
fn made(node: &NodeConfig) -> Result<Identity, ClusterError> {
    let opened = KubeletPki::open(&node.data_dir.join("kubelet/pki"), &node.names(), node.clock.now());
    opened.map(|pki| pki.serving).map_err(ClusterError::Pki)
}

fn serve(identity: &Identity) -> Result<Serving, ClusterError> {
    Serving::new(identity.chain.clone(), identity.key()).map_err(ClusterError::Serving)
}

fn replace(serving: &Serving, identity: &Identity) {
    match serving.replace(identity.chain.clone(), identity.key()) {
        Ok(()) => tracing::info!("the kubelet's API has another certificate"),
        Err(error) => tracing::error!(%error, "the certificate for the kubelet's API cannot be used"),
    }
}

/// Serves what `current` gives, and looks regularly whether that is something else by now.
fn keep(
    tasks: &TaskGroup,
    current: impl Fn(Option<&Identity>) -> Result<Identity, ClusterError> + Send + Sync + 'static,
) -> Result<Serving, ClusterError> {
    let identity = Arc::new(Mutex::new(current(None)?));
    let serving = serve(&identity.lock())?;
    let (shown, group, current) = (serving.clone(), tasks.clone(), Arc::new(current));
    tasks.supervise("kubelet-certificate", move || {
        let (shown, group) = (shown.clone(), group.clone());
        let (identity, current) = (Arc::clone(&identity), Arc::clone(&current));
        async move {
            loop {
                tokio::select! {
                    () = group.stopping() => return,
                    () = tokio::time::sleep(CHECK) => {}
                }
                let before = identity.lock().clone();
                match current(Some(&before)) {
                    Ok(now) if now.chain != before.chain => {
                        replace(&shown, &now);
                        *identity.lock() = now;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "the certificate of the kubelet's API is kept");
                    }
                }
            }
        }
    });
    Ok(serving)
}
