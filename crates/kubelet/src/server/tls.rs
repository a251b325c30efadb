//! TLS of the kubelet's API: its certificate, and whose clients it believes.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
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

/// Accepts callers with a certificate of the configured authorities, and callers without one.
pub fn acceptor(config: &Config) -> Result<TlsAcceptor, ServeError> {
    let serving = config.serving.as_ref().ok_or(ServeError::NoCertificate)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = if config.client_authorities.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for authority in &config.client_authorities {
            roots.add(authority.clone())?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut tls = builder.with_single_cert(serving.chain.clone(), serving.key.clone_key())?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
