//! Certificates that a client trusts and presents.

use crate::tls::{Anybody, system_bundle};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;

/// Certificates that servers are verified by.
#[derive(Clone, Debug, Default)]
pub enum Authorities {
    /// Those of the system.
    #[default]
    System,
    /// PEM. A server's own certificate is accepted, too.
    Pem(Vec<u8>),
    /// Those of the system, and these.
    SystemAnd(Vec<u8>),
    /// Any certificate is accepted.
    Unverified,
}

impl From<Option<Vec<u8>>> for Authorities {
    /// PEM, or the system's where none is given.
    fn from(pem: Option<Vec<u8>>) -> Self {
        pem.map_or(Self::System, Self::Pem)
    }
}

/// Trust in a server, and the client's own certificate.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pub authorities: Authorities,
    /// Certificate chain and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Name in the server's certificate, if it is not the host of the URL.
    pub server_name: Option<String>,
}

/// Reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("{0} is not usable as a certificate or key")]
    Pem(&'static str),
    #[error("this machine has no file of trusted certificates")]
    NoSystemAuthorities,
    #[error("failed to set up TLS")]
    Tls(#[from] Error),
}

impl Trust {
    /// The configuration of connections with this trust.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .dangerous();
        let builder = match &self.authorities {
            Authorities::Unverified => builder.with_custom_certificate_verifier(Anybody::new()),
            Authorities::System => {
                let system = system_bundle().unwrap_or_default();
                builder.with_custom_certificate_verifier(Verifier::new(Some(&system), &[], provider)?)
            }
            Authorities::Pem(own) => {
                builder.with_custom_certificate_verifier(Verifier::new(None, own, provider)?)
            }
            Authorities::SystemAnd(own) => {
                let system = system_bundle().unwrap_or_default();
                builder.with_custom_certificate_verifier(Verifier::new(Some(&system), own, provider)?)
            }
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
                    .collect::<Result<_, _>>()
                    .map_err(|_| TrustError::Pem("the client certificate"))?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|_| TrustError::Pem("the client key"))?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        Ok(Arc::new(config))
    }
}

/// Verifies chains as usual, and accepts a server certificate that is itself among the given ones, as Go does. Certificates
/// that sign themselves are often marked as authorities, which chain building refuses as servers.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// `system`: the system's certificates, where they count.
    fn new(
        system: Option<&[u8]>,
        own: &[u8],
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<Self>, TrustError> {
        let bad = || TrustError::Pem("the authority");
        let mut roots = RootCertStore::empty();
        // A bundle of many may have some that are of no use here.
        let bundle = system.unwrap_or_default();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).flatten());
        let own: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(own).collect::<Result<_, _>>().map_err(|_| bad())?;
        let (added, _) = roots.add_parsable_certificates(own.clone());
        if added == 0 && (!own.is_empty() || system.is_none()) {
            return Err(bad());
        }
        if roots.is_empty() {
            return Err(TrustError::NoSystemAuthorities);
        }
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let chains = builder.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(Self { chains, own }))
    }

    /// The certificate is one of the given ones, valid now, and names the server.
    fn verify_own(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Option<Result<(), Error>> {
        self.own.iter().find(|own| *own == certificate)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now > parsed.validity().not_after.timestamp() {
            return Some(Err(CertificateError::Expired.into()));
        }
        if now < parsed.validity().not_before.timestamp() {
            return Some(Err(CertificateError::NotValidYet.into()));
        }
        let parsed = ParsedCertificate::try_from(certificate);
        Some(parsed.and_then(|parsed| verify_server_name(&parsed, name)))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain =
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match (chain, self.verify_own(end_entity, server_name, now)) {
            (Err(_), Some(own)) => own.map(|()| ServerCertVerified::assertion()),
            (chain, _) => chain,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
