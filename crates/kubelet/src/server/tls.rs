//! TLS of the kubelet's API: its certificate, and whose clients it believes.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::Config;

/// Why HTTPS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("there is no serving certificate")]
    NoCertificate,
    #[error("the certificate cannot be used")]
    Certificate(#[from] rustls::Error),
    #[error("the authorities of clients cannot be used")]
    Authorities(#[from] rustls::server::VerifierBuilderError),
}

/// The certificate of the kubelet's API, which can be replaced while it is in use. Clones are the same.
#[derive(Clone, Debug)]
pub struct Serving(Arc<RwLock<Arc<CertifiedKey>>>);

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map(Arc::new)
}

impl Serving {
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self(Arc::new(RwLock::new(certified(chain, key)?))))
    }

    /// Connections from now on see another one.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        *self.0.write() = certified(chain, key)?;
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// Accepts callers with a certificate of the configured authorities, and callers without one.
pub fn acceptor(config: &Config) -> Result<TlsAcceptor, ServeError> {
    let serving = config.serving.as_ref().ok_or(ServeError::NoCertificate)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(config.client_authorities.clone()))
        .with_cert_resolver(Arc::new(serving.clone()));
    // A resumed session would keep a certificate whose authority was removed.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
