//! Serving certificate of a kubelet: its source, and its renewal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::file_changes::FileChanges;
use base::pki::{Identity, KubeletPki, Pki, certificates_from_pem};
use base::tasks::TaskGroup;
use client::Client;
use kubelet::CertificateStatus;
use kubelet::server::{ClientAuthorities, Serving};
use parking_lot::Mutex;

use crate::join::credential::Names;
use crate::{ClusterError, NodeConfig, chain};

/// Check interval of the certificate.
const CHECK: Duration = Duration::from_secs(600);

pub(crate) fn read(path: &Path) -> Result<String, ClusterError> {
    std::fs::read_to_string(path).map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })
}

/// Client certificate authorities of the kubelet.
pub(crate) fn authorities(pem: &str) -> Result<ClientAuthorities, ClusterError> {
    let bad = |reason| ClusterError::BadFile { path: "client authority".into(), reason };
    let certificates = certificates_from_pem(pem).map_err(bad)?;
    ClientAuthorities::new(certificates).map_err(|error| bad(chain(&error)))
}

/// Authorities of a file, which is reloaded when it changes. An invalid file is ignored.
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
                    tracing::warn!(%error, path = %path.display(), "failed to watch the client CA file");
                    return group.stopping().await;
                }
            };
            loop {
                if let Err(error) = reload(&path, &mut last.lock(), &shown) {
                    let error = chain(&error);
                    tracing::error!(error, "failed to reload the client CA file, keeping the current authorities");
                }
                let Some(changed) = group.until_stopped(changes.changed()).await else { return };
                if let Err(error) = changed {
                    return tracing::warn!(%error, path = %path.display(), "failed to watch the client CA file");
                }
            }
        }
    });
    Ok(known)
}

/// Replaces the authorities if the file's content has changed.
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
    tracing::info!(path = %path.display(), "reloaded the client CA file of the kubelet");
    Ok(())
}

/// Serving certificate of a kubelet without a local control plane: from files, signed by the cluster, or self-signed.
pub(crate) fn begin(node: &NodeConfig, client: &Client, tasks: &TaskGroup) -> Result<Serving, ClusterError> {
    if node.rotate_serving && node.serving.is_none() {
        let credential = node.credential("kubelet-server-current.pem", Some(names_of(node)));
        let identity = match credential.load() {
            Some(identity) => identity,
            // Self-signed until the cluster has signed one.
            None => self_signed(node)?,
        };
        let serving = serve(&identity)?;
        let shown = serving.clone();
        let status = node.certificates.clone();
        credential.keep_fresh(client.clone(), tasks, move |renewed| match renewed {
            Some(identity) => replace(&shown, identity),
            None => status.server_failed(),
        });
        return Ok(serving);
    }
    let node = node.clone();
    serve_and_poll(tasks, node.certificates.clone(), move |_| match &node.serving {
        Some((certificate, key)) => {
            let text = format!("{}\n{}", read(certificate)?, read(key)?);
            Identity::from_pem(&text)
                .map_err(|reason| ClusterError::BadFile { path: certificate.clone(), reason })
        }
        None => self_signed(&node),
    })
}

/// Serving certificate of a kubelet in the process of its control plane, signed by the local authority.
pub(crate) fn issued(node: &NodeConfig, pki: &Arc<Pki>, tasks: &TaskGroup) -> Result<Serving, ClusterError> {
    let (node, pki) = (node.clone(), Arc::clone(pki));
    serve_and_poll(tasks, node.certificates.clone(), move |before| match before {
        Some(before) if !before.is_due(node.clock.now()) && before.covers(&node.names()) => {
            Ok(before.clone())
        }
        _ => {
            let issued = pki.server_authority.issue_serving(&node.user(), &node.names(), node.clock.now());
            issued.map_err(ClusterError::Pki)
        }
    })
}

fn names_of(node: &NodeConfig) -> Names {
    let node = node.clone();
    Arc::new(move || node.names())
}

/// Certificate of the kubelet's own authority.
fn self_signed(node: &NodeConfig) -> Result<Identity, ClusterError> {
    let opened = KubeletPki::open(&node.data_dir.join("kubelet/pki"), &node.names(), node.clock.now());
    opened.map(|pki| pki.serving).map_err(ClusterError::Pki)
}

fn serve(identity: &Identity) -> Result<Serving, ClusterError> {
    Serving::new(identity.chain.clone(), identity.key()).map_err(ClusterError::Serving)
}

fn replace(serving: &Serving, identity: &Identity) {
    match serving.replace(identity.chain.clone(), identity.key()) {
        Ok(()) => tracing::info!("replaced the kubelet serving certificate"),
        Err(error) => tracing::error!(%error, "failed to use the new kubelet serving certificate"),
    }
}

/// Serves the certificate that `current` returns, and polls it for changes.
fn serve_and_poll(
    tasks: &TaskGroup,
    status: CertificateStatus,
    current: impl Fn(Option<&Identity>) -> Result<Identity, ClusterError> + Send + Sync + 'static,
) -> Result<Serving, ClusterError> {
    let identity = Arc::new(Mutex::new(current(None)?));
    let serving = serve(&identity.lock())?;
    let (shown, group, current) = (serving.clone(), tasks.clone(), Arc::new(current));
    tasks.supervise("kubelet-certificate", move || {
        let (shown, group, status) = (shown.clone(), group.clone(), status.clone());
        let (identity, current) = (Arc::clone(&identity), Arc::clone(&current));
        async move {
            let mut network = base::machine_network::subscribe();
            loop {
                let due = async {
                    tokio::select! {
                        () = tokio::time::sleep(CHECK) => {}
                        _ = network.next() => {}
                    }
                };
                if group.until_stopped(due).await.is_none() {
                    return;
                }
                let before = identity.lock().clone();
                match current(Some(&before)) {
                    Ok(now) if now.chain != before.chain => {
                        replace(&shown, &now);
                        *identity.lock() = now;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        status.server_failed();
                        tracing::warn!(
                            error = chain(&error),
                            "failed to renew the kubelet serving certificate, keeping the current one"
                        );
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
    async fn changed_client_ca_file_is_reloaded() {
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
        // Empty and invalid files are ignored; the valid one after them is the next generation. The pauses let each
        // version be read: versions that follow each other at once are read as one.
        write("");
        tokio::time::sleep(Duration::from_millis(400)).await;
        write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        tokio::time::sleep(Duration::from_millis(400)).await;
        write(&pem("third"));
        assert!(reached(begin + 2).await);
        tasks.stop();
    }
}
