//! The certificate of a kubelet's API: where it comes from, and that there is another before it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::file_changes::FileChanges;
use base::pki::{Identity, KubeletPki, Pki, certificates_from_pem};
use base::tasks::TaskGroup;
use client::Client;
use kubelet::server::{ClientAuthorities, Serving};
use parking_lot::Mutex;

use crate::{ClusterError, NodeConfig, chain};

/// How often it is looked whether there should be another.
const CHECK: Duration = Duration::from_secs(600);

pub(crate) fn read(path: &Path) -> Result<String, ClusterError> {
    std::fs::read_to_string(path).map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })
}

/// The authorities of those who may call the kubelet.
pub(crate) fn authorities(pem: &str) -> Result<ClientAuthorities, ClusterError> {
    let bad = |reason| ClusterError::BadFile { path: "client authority".into(), reason };
    let certificates = certificates_from_pem(pem).map_err(bad)?;
    ClientAuthorities::new(certificates).map_err(|error| bad(chain(&error)))
}

/// The authorities of a file, which is read again whenever it changes. A file that is not usable changes nothing.
pub(crate) fn followed_authorities(
    path: &Path,
    tasks: &TaskGroup,
) -> Result<ClientAuthorities, ClusterError> {
    let first = read(path)?;
    let known = authorities(&first)?;
    let (shown, group, path) = (known.clone(), tasks.clone(), path.to_owned());
    let last = Arc::new(Mutex::new(first));
    tasks.supervise("kubelet-client-authorities", move || {
        let (shown, group, path) = (shown.clone(), group.clone(), path.clone());
        let last = Arc::clone(&last);
        async move {
            let mut changes = match FileChanges::of(&path) {
                Ok(changes) => changes,
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "failed to watch the client authorities");
                    return group.stopping().await;
                }
            };
            loop {
                if let Err(error) = reload(&path, &mut last.lock(), &shown) {
                    let error = chain(&error);
                    tracing::error!(error, "failed to reload the client authorities; the old ones stay");
                }
                tokio::select! {
                    () = group.stopping() => return,
                    changed = changes.changed() => if let Err(error) = changed {
                        return tracing::warn!(%error, path = %path.display(), "failed to watch the client authorities");
                    }
                }
            }
        }
    });
    Ok(known)
}

/// Replaces the authorities if the file has another content than last time.
fn reload(path: &Path, last: &mut String, shown: &ClientAuthorities) -> Result<(), ClusterError> {
    let text = read(path)?;
    if text == *last {
        return Ok(());
    }
    last.clone_from(&text);
    let bad = |reason| ClusterError::BadFile { path: path.to_owned(), reason };
    let certificates = certificates_from_pem(&text).map_err(bad)?;
    if certificates.is_empty() {
        return Err(bad("no certificate".to_owned()));
    }
    shown.replace(certificates).map_err(|error| bad(chain(&error)))?;
    tracing::info!(path = %path.display(), "reloaded the client authorities of the kubelet");
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::pki::ServingNames;
    use jiff::Timestamp;

    #[tokio::test]
    async fn changed_client_authorities_are_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let names = ServingNames::of_the_api_server("cluster.local");
        let pem = |name: &str| {
            let pki = Pki::open(&directory.path().join(name), &names, Timestamp::now()).expect("a PKI");
            pki.client_authority.certificate_pem.clone()
        };
        let path = directory.path().join("ca.crt");
        let write =
            |text: &str| base::file::replace(&path, text.as_bytes(), base::file::PRIVATE).expect("written");
        write(&pem("first"));
        let tasks = TaskGroup::new();
        let authorities = followed_authorities(&path, &tasks).expect("usable");
        let reached = async |wanted: u64| {
            for _ in 0..500 {
                if authorities.generation() == wanted {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            false
        };
        let begin = authorities.generation();
        write(&pem("second"));
        assert!(reached(begin + 1).await);
        // Neither an empty nor a broken file is used; the usable one after them is the next generation.
        write("");
        tokio::time::sleep(Duration::from_millis(400)).await;
        write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        tokio::time::sleep(Duration::from_millis(400)).await;
        write(&pem("third"));
        assert!(reached(begin + 2).await);
        tasks.stop();
    }
}
