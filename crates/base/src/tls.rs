//! Verification of the peers of TLS connections, shared by all clients and servers.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    WantsVerifier,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Paths of the system's certificate authorities.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's certificate authorities, in PEM; those of `SSL_CERT_FILE` if it is set.
#[must_use]
pub fn system_bundle() -> Option<Vec<u8>> {
    let given = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    given.into_iter().chain(SYSTEM_BUNDLES.iter().map(Into::into)).find_map(|path| std::fs::read(path).ok())
}

/// Builder of configurations of clients, with the one crypto provider and the default TLS versions.
pub fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

/// The crypto provider of all connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Decision about the certificate of a server; [`verifier`] adds the verification of signatures, which is the same for
/// all of them.
pub trait CertificateCheck: std::fmt::Debug + Send + Sync + 'static {
    /// Fails if the certificate is not accepted for the server `name`.
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error>;
}

/// A verifier of servers whose certificates pass `check` and who prove that they have the key.
#[must_use]
pub fn verifier(check: impl CertificateCheck) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Checked { check, provider: provider() })
}

/// Decision about the certificate of a client; [`client_verifier`] adds the verification of signatures, which is the
/// same for all of them. Clients without a certificate are always accepted.
pub trait ClientCertificateCheck: std::fmt::Debug + Send + Sync + 'static {
    /// False if no certificate is requested.
    fn is_requested(&self) -> bool {
        true
    }

    /// Subjects of authorities, by which clients select a certificate.
    fn hints(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Fails if the handshake fails with this certificate.
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error>;
}

/// A verifier of clients whose certificates pass `check` and who prove that they have the key.
#[must_use]
pub fn client_verifier(check: impl ClientCertificateCheck) -> Arc<dyn ClientCertVerifier> {
    Arc::new(Checked { check, provider: provider() })
}

/// Accepts any server certificate: the connection is encrypted, but the server is not authenticated. Only for callers
/// that verify the peer otherwise, or whose administrator disabled verification.
#[must_use]
pub fn accept_all() -> Arc<dyn ServerCertVerifier> {
    verifier(AcceptAll)
}

#[derive(Debug)]
struct AcceptAll;

impl CertificateCheck for AcceptAll {
    fn check(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: UnixTime,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// Methods of the verifier of a server or client that verify signatures.
macro_rules! signature_verification {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

#[derive(Debug)]
struct Checked<C> {
    check: C,
    provider: Arc<CryptoProvider>,
}

impl<C: CertificateCheck> ServerCertVerifier for Checked<C> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check.check(leaf, intermediates, name, now).map(|()| ServerCertVerified::assertion())
    }

    signature_verification!();
}

impl<C: ClientCertificateCheck> ClientCertVerifier for Checked<C> {
    fn offer_client_auth(&self) -> bool {
        self.check.is_requested()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.check.hints()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check.check(leaf, intermediates, now).map(|()| ClientCertVerified::assertion())
    }

    signature_verification!();
}
