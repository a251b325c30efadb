//! Servers that requests go to.

use super::trust::{Trust, TrustError};
use crate::egress::Network;
use http::Uri;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::path::PathBuf;
use std::sync::Arc;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The host is without the brackets of IPv6 addresses.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

/// Reason why a URL names no server.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    #[error("{0:?} is not an http or https URL")]
    Url(String),
    #[error("{0:?} is not a server name")]
    ServerName(String),
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// A server, and the security of connections to it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Origin {
    pub(crate) address: Arc<Address>,
    pub(crate) tls: Option<Tls>,
    pub(super) network: Option<Network>,
}

#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
}

impl Origin {
    /// The server of a URL.
    pub fn of_url(url: &str, trust: &Trust) -> Result<Self, OriginError> {
        let bad = || OriginError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = uri.host().ok_or_else(bad)?;
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if !secure {
            return Ok(Self::plain(host, port));
        }
        let name = trust.server_name.clone();
        Self::secured(host, port, trust.config()?, name.as_deref())
    }

    /// A server without TLS.
    pub fn plain(host: &str, port: u16) -> Self {
        Self { address: Arc::new(tcp(host, port)), tls: None, network: None }
    }

    /// A server with TLS. `server_name`: the name in its certificate, if that is not the host.
    pub fn secured(
        host: &str,
        port: u16,
        config: Arc<ClientConfig>,
        server_name: Option<&str>,
    ) -> Result<Self, OriginError> {
        let name = server_name.unwrap_or(bare(host));
        let name =
            ServerName::try_from(name.to_owned()).map_err(|_| OriginError::ServerName(name.to_owned()))?;
        Ok(Self { address: Arc::new(tcp(host, port)), tls: Some(Tls { config, name }), network: None })
    }

    /// A server at a socket file, without TLS.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { address: Arc::new(Address::Unix(path.into())), tls: None, network: None }
    }

    /// The same server in a network that may have a proxy.
    #[must_use]
    pub fn on(self, network: Network) -> Self {
        Self { network: Some(network), ..self }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// `host:port`, including a default port.
    pub fn authority(&self) -> String {
        match &*self.address {
            Address::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port } => format!("{host}:{port}"),
            Address::Unix(path) => path.display().to_string(),
        }
    }

    /// Value of the `Host` header; that of a socket in the file system is `localhost`.
    pub(super) fn host_header(&self) -> String {
        match &*self.address {
            Address::Tcp { .. } => self.authority(),
            Address::Unix(_) => "localhost".to_owned(),
        }
    }

    /// True if requests to both may share connections.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let tls = match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(&one.config, &other.config) && one.name == other.name,
            _ => false,
        };
        tls && self.address == other.address && self.network == other.network
    }
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: bare(host).to_owned(), port }
}
