//! Authorities that sign certificate requests. Those in files are reloaded when their files change.

use std::path::{Path, PathBuf};

use base::errors::chain;
use base::file_changes::FileChanges;
use base::tasks::TaskGroup;
use controllers::certificate::signing::{SharedAuthority, Signers, SigningAuthority};

use crate::{ClusterError, Components};

/// Certificate and key of an authority, in PEM.
#[derive(Clone)]
pub struct SigningPair {
    pub certificate: String,
    pub key: String,
    /// Files of both, if they are followed.
    files: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for SigningPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningPair").field("files", &self.files).finish_non_exhaustive()
    }
}

impl From<(String, String)> for SigningPair {
    fn from((certificate, key): (String, String)) -> Self {
        Self { certificate, key, files: None }
    }
}

impl SigningPair {
    /// Reads both files.
    pub fn read(certificate: PathBuf, key: PathBuf) -> Result<Self, ClusterError> {
        let text = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })
        };
        Ok(Self { certificate: text(&certificate)?, key: text(&key)?, files: Some((certificate, key)) })
    }

    fn authority(&self) -> Result<SigningAuthority, ClusterError> {
        SigningAuthority::from_pem(&self.certificate, &self.key).map_err(ClusterError::Signing)
    }

    /// The authority, which follows its files until the task group stops.
    fn shared(&self, tasks: &TaskGroup) -> Result<SharedAuthority, ClusterError> {
        let authority = SharedAuthority::new(self.authority()?);
        if let Some(files) = self.files.clone() {
            let (shared, group) = (authority.clone(), tasks.clone());
            tasks.supervise(format!("signing-authority {}", files.0.display()), move || {
                follow(files.clone(), shared.clone(), group.clone())
            });
        }
        Ok(authority)
    }
}

/// Authorities of the signing controller; `None` if it signs nothing.
pub(crate) fn signers(components: &Components, tasks: &TaskGroup) -> Result<Option<Signers>, ClusterError> {
    if let (Some(pair), true) = (&components.signing, components.signers.is_empty()) {
        return Ok(Some(Signers::all(pair.shared(tasks)?)));
    }
    let mut signers = Signers::default();
    for (signer, pair) in &components.signers {
        signers.set(signer, pair.shared(tasks)?);
    }
    Ok((!components.signers.is_empty()).then_some(signers))
}

/// Reloads an authority whenever one of its files changes. A certificate without its key is ignored: one of the two
/// files is usually replaced first.
async fn follow((certificate, key): (PathBuf, PathBuf), authority: SharedAuthority, tasks: TaskGroup) {
    let changes = FileChanges::of(&certificate).and_then(|first| Ok((first, FileChanges::of(&key)?)));
    let (mut certificates, mut keys) = match changes {
        Ok(changes) => changes,
        Err(error) => {
            let path = certificate.display();
            tracing::warn!(%error, %path, "failed to watch the files of a signing authority");
            return;
        }
    };
    loop {
        let changed = tokio::select! {
            () = tasks.stopping() => return,
            changed = certificates.changed() => changed,
            changed = keys.changed() => changed,
        };
        if let Err(error) = changed {
            let path = certificate.display();
            tracing::warn!(%error, %path, "failed to watch the files of a signing authority");
            return;
        }
        let reloaded = SigningPair::read(certificate.clone(), key.clone()).and_then(|pair| pair.authority());
        let path = certificate.display();
        match reloaded {
            Ok(reloaded) => {
                authority.replace(reloaded);
                tracing::info!(%path, "reloaded a signing authority");
            }
            Err(error) => tracing::warn!(
                %path, error = chain(&error),
                "failed to reload a signing authority, keeping the current one"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(30);

    fn write(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        let files = (directory.join("ca.crt"), directory.join("ca.key"));
        std::fs::write(&files.0, certificate.pem()).expect("written");
        std::fs::write(&files.1, key.serialize_pem()).expect("written");
        files
    }

    async fn until(what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < LIMIT, "{what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn replaced_files_replace_the_authority_and_invalid_ones_do_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let (certificate, key) = write(directory.path(), "first");
        let tasks = TaskGroup::new();
        let authority = SigningPair::read(certificate.clone(), key.clone())
            .expect("readable")
            .shared(&tasks)
            .expect("an authority");
        let first = authority.current();
        assert_eq!(first.name(), "first");
        // The watch begins with the first poll of the task.
        tokio::time::sleep(Duration::from_millis(50)).await;
        std::fs::write(&key, "garbage").expect("written");
        write(directory.path(), "second");
        until("the second authority is used", || authority.current().name() == "second").await;
        std::fs::write(&key, "garbage").expect("written");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(authority.current().name(), "second", "an invalid key replaced the authority");
        write(directory.path(), "third");
        until("the third authority is used", || authority.current().name() == "third").await;
        tasks.drain(LIMIT).await.expect("stopped");
    }
}
