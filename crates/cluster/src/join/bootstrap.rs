//! TLS bootstrapping: a kubelet requests its own certificate with a shared kubeconfig.

use std::path::Path;

use base::file::{self, PRIVATE};
use base::version::user_agent;
use client::{Client, Kubeconfig, read_material};
use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};

use super::JoinError;
use super::credential::Credential;

/// Creates the kubeconfig `path` unless it exists with a valid certificate. The cluster settings are those of `bootstrap`.
pub(crate) async fn kubeconfig(
    bootstrap: &Path,
    path: &Path,
    credential: &Credential,
) -> Result<(), JoinError> {
    // A kubeconfig with other credentials was written by the user and is used unchanged.
    if path.exists() && (!credential.is_used_by(path) || credential.load().is_some()) {
        return Ok(());
    }
    let client = Client::connect(bootstrap, &user_agent("kubelet")).map_err(JoinError::Request)?;
    credential.renew(&client).await?;
    let shared = Kubeconfig::load(bootstrap).map_err(JoinError::Kubeconfig)?;
    let authority = shared.authority.as_ref().map(read_material).transpose();
    let authority = authority.map_err(JoinError::Kubeconfig)?;
    let cluster = ClusterEntry {
        server: shared.server,
        authority: authority.map(Material::Text),
        server_name: shared.server_name,
        insecure: shared.insecure,
    };
    let file = || Material::File(credential.file.clone());
    let user = UserEntry { certificate: Some((file(), file())), ..UserEntry::default() };
    let own = kubeconfig::render("default", "node", &cluster, &user);
    file::replace(path, own.as_bytes(), PRIVATE)
        .map_err(|source| JoinError::Write { path: path.to_owned(), source })
}
