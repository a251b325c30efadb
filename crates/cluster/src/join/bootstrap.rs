//! A kubelet that begins with a kubeconfig that others have too, and gets a certificate of its own with it.

use std::path::Path;

use base::file::{self, PRIVATE};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Kubeconfig};
use serde_json::json;

use super::JoinError;
use super::credential::Credential;

/// Makes `kubeconfig`, unless it is there with a certificate that is still good. What it says of the cluster is what
/// `bootstrap` says.
pub(crate) async fn kubeconfig(
    bootstrap: &Path,
    kubeconfig: &Path,
    credential: &Credential,
) -> Result<(), JoinError> {
    // One that shows something else is somebody's own, and used as it is.
    if kubeconfig.exists() && (!credential.is_used_by(kubeconfig) || credential.load().is_some()) {
        return Ok(());
    }
    let client = Client::connect(bootstrap, "ferry-kubelet").map_err(JoinError::Request)?;
    credential.renew(&client).await?;
    let shared = Kubeconfig::load(bootstrap).map_err(JoinError::Kubeconfig)?;
    let authority = shared.authority.as_ref().map(|authority| authority.read()).transpose();
    let authority = authority.map_err(JoinError::Kubeconfig)?;
    let mut cluster = json!({"server": shared.server});
    if let Some(authority) = authority {
        cluster["certificate-authority-data"] = json!(STANDARD.encode(authority));
    }
    if shared.insecure {
        cluster["insecure-skip-tls-verify"] = json!(true);
    }
    if let Some(name) = shared.server_name {
        cluster["tls-server-name"] = json!(name);
    }
    let own = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "default", "cluster": cluster}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "node"}}],
        "users": [{"name": "node", "user": {"client-certificate": credential.file, "client-key": credential.file}}],
    });
    file::replace(kubeconfig, own.to_string().as_bytes(), PRIVATE)
        .map_err(|source| JoinError::Write { path: kubeconfig.to_owned(), source })
}
