//! The little of a kubeconfig that a load generator needs.

use anyhow::{Context, Result, bail};
use base::pki::{Identity, certificates_from_pem};
use base64::Engine;
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::path::Path;

/// Where a server is and how to be let in.
pub struct Access {
    pub address: SocketAddr,
    pub authority: Vec<CertificateDer<'static>>,
    pub identity: Identity,
}

impl Access {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let server = value(&text, "server").context("the kubeconfig names no server")?;
        let address =
            server.trim_start_matches("https://").trim_end_matches('/').replace("localhost", "127.0.0.1");
        let address: SocketAddr = address.parse().with_context(|| format!("{server} is no address"))?;
        if !address.ip().is_loopback() {
            bail!("{server} is not on this machine's loopback: load goes nowhere else");
        }
        let certificate = data(&text, path, "client-certificate")?;
        let key = data(&text, path, "client-key")?;
        Ok(Self {
            address,
            authority: certificates_from_pem(&data(&text, path, "certificate-authority")?)
                .map_err(anyhow::Error::msg)?,
            identity: Identity::from_pem(&format!("{certificate}\n{key}")).map_err(anyhow::Error::msg)?,
        })
    }
}

fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().trim_start_matches("- ").strip_prefix(key)?.strip_prefix(':')?;
        Some(rest.trim().trim_matches('"').to_owned())
    })
}

/// A PEM text, inlined or in a file beside the kubeconfig.
fn data(text: &str, path: &Path, key: &str) -> Result<String> {
    if let Some(inline) = value(text, &format!("{key}-data")) {
        let bytes = base64::engine::general_purpose::STANDARD.decode(inline)?;
        return Ok(String::from_utf8(bytes)?);
    }
    let file = value(text, key).with_context(|| format!("the kubeconfig has no {key}"))?;
    let file = path.parent().unwrap_or(Path::new(".")).join(file);
    std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
}
