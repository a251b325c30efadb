//! Where a request goes, and whom to trust there.

use http::Uri;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{0:?} is no URL of a server")]
    Url(String),
    #[error("{0} is not usable as a certificate or key")]
    Pem(&'static str),
    #[error("no authority to trust was found on this machine; give one")]
    NoAuthorities,
    #[error("setting up TLS")]
    Tls(#[from] rustls::Error),
}

/// Authorities, and the certificate to show.
#[derive(Default)]
pub struct Trust {
    /// PEM; `None`: those that the system trusts.
    pub authorities: Option<Vec<u8>>,
    /// Certificate and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate, if it is not the one in the URL.
    pub server_name: Option<String>,
}

/// A server and a path on it.
pub struct Target {
    url: String,
    host: String,
    port: u16,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Target {
    pub fn new(url: &str, trust: &Trust) -> Result<Self, TargetError> {
        let bad = || TargetError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = uri.host().ok_or_else(bad)?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let path = uri.path_and_query().map_or("", |path| path.as_str()).trim_end_matches('/').to_owned();
        let tls = if secure { Some(tls(&host, trust)?) } else { None };
        Ok(Self { url: url.trim_end_matches('/').to_owned(), host, port, path, tls })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// `host:port`.
    pub fn authority(&self) -> String {
        let v6 = self.host.contains(':');
        if v6 { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }

    pub fn tls(&self) -> Option<(&TlsConnector, ServerName<'static>)> {
        self.tls.as_ref().map(|(connector, name)| (connector, name.clone()))
    }
}

fn tls(host: &str, trust: &Trust) -> Result<(TlsConnector, ServerName<'static>), TargetError> {
    let mut roots = RootCertStore::empty();
    let pem = match &trust.authorities {
        Some(pem) => pem.clone(),
        None => base::tls::system_bundle().ok_or(TargetError::NoAuthorities)?,
    };
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TargetError::Pem("the authority"))?;
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 {
        return Err(TargetError::Pem("the authority"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match &trust.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<_, _>>()
                .map_err(|_| TargetError::Pem("the client certificate"))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TargetError::Pem("the client key"))?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    let name = trust.server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|error| TargetError::Url(error.to_string()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let trust = Trust::default();
        let target = Target::new("http://127.0.0.1:8080/a/b/", &trust).expect("a target");
        assert_eq!((target.authority().as_str(), target.path()), ("127.0.0.1:8080", "/a/b"));
        let target = Target::new("http://[::1]", &trust).expect("a target");
        assert_eq!((target.authority().as_str(), target.path()), ("[::1]:80", ""));
        for bad in ["", "host", "ftp://x/", "/path", "http://"] {
            assert!(matches!(Target::new(bad, &trust), Err(TargetError::Url(_))), "{bad}");
        }
        let trust = Trust { authorities: Some(b"no pem".to_vec()), ..Trust::default() };
        assert!(matches!(Target::new("https://h/", &trust), Err(TargetError::Pem(_))));
    }
}
