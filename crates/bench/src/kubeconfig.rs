//! The parts of a kubeconfig that a load generator needs.

use anyhow::{Context, Result, bail};
use base::pki::{Identity, certificates_from_pem};
use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::path::Path;

/// Address and credentials of a server.
pub struct Access {
    pub address: SocketAddr,
    pub authority: Vec<CertificateDer<'static>>,
    pub identity: Identity,
}

impl Access {
    /// Reads the current context.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        let root =
            kubeconfig::decode(&text).with_context(|| format!("failed to parse {}", path.display()))?;
        let (cluster, user) = kubeconfig::current(&root);
        let directory = path.parent().unwrap_or(Path::new("."));
        let (cluster, user) = (ClusterEntry::read(cluster, directory)?, UserEntry::read(user, directory)?);
        let server = &cluster.server;
        let address =
            server.trim_start_matches("https://").trim_end_matches('/').replace("localhost", "127.0.0.1");
        let address: SocketAddr = address.parse().with_context(|| format!("{server:?} is not an address"))?;
        if !address.ip().is_loopback() {
            bail!("{server} is not on the loopback interface, the only destination of load");
        }
        let (certificate, key) = user.certificate.context("the kubeconfig has no client certificate")?;
        let authority = cluster.authority.context("the kubeconfig has no certificate authority")?;
        let identity = format!("{}\n{}", content(&certificate)?, content(&key)?);
        Ok(Self {
            address,
            authority: certificates_from_pem(&content(&authority)?).map_err(anyhow::Error::msg)?,
            identity: Identity::from_pem(&identity).map_err(anyhow::Error::msg)?,
        })
    }
}

fn content(material: &Material) -> Result<String> {
    match material {
        Material::Text(text) => Ok(text.clone()),
        Material::File(path) => {
            std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
        }
    }
}
