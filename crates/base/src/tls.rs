//! Whom to trust on TLS connections to others: what all who connect have in common.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Where systems keep the authorities that everybody trusts.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The authorities that everybody trusts, in PEM; those of `SSL_CERT_FILE` if it is set.
#[must_use]
pub fn system_bundle() -> Option<Vec<u8>> {
    let given = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    given.into_iter().chain(SYSTEM_BUNDLES.iter().map(Into::into)).find_map(|path| std::fs::read(path).ok())
}

/// Takes whoever answers for whom was meant: the connection is safe from listeners, not from impostors. Only for those
/// who know by other means, or whose administrator said so.
#[derive(Debug)]
pub struct Anybody(Arc<CryptoProvider>);

impl Anybody {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Arc::new(aws_lc_rs::default_provider())))
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
