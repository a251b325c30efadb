//! TLS of the kubelet's API: serving certificate and client CAs.

use std::sync::Arc;

use base::tls::client_verifier;
use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::Config;

/// Failure to set up HTTPS.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("no serving certificate")]
    NoCertificate,
    #[error("unusable serving certificate")]
    Certificate(#[from] rustls::Error),
    #[error("unusable client CA bundle")]
    Authorities(#[from] rustls::server::VerifierBuilderError),
    #[error("failed to register metrics")]
    Metrics(#[source] base::metrics::MetricsError),
}

/// Serving certificate of the kubelet's API, replaceable at runtime. Clones share state.
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

    /// End of the certificate's validity, in seconds since the epoch.
    #[must_use]
    pub fn expires(&self) -> Option<i64> {
        let current = Arc::clone(&self.0.read());
        base::pki::expiry_of_certificate(current.cert.first()?).ok()
    }

    /// Replaces the certificate for new connections.
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

/// Accepts clients with a certificate of the configured CAs, and clients without one.
pub fn acceptor(config: &Config) -> Result<TlsAcceptor, ServeError> {
    let serving = config.serving.as_ref().ok_or(ServeError::NoCertificate)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(client_verifier(config.client_authorities.clone()))
        .with_cert_resolver(Arc::new(serving.clone()));
    // A resumed session would keep a certificate whose CA was removed.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
