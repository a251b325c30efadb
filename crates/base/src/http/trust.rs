//! Certificates that a client trusts and presents.

use crate::tls::{self, CertificateCheck, system_bundle};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;

/// Certificates that servers are verified with.
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
    /// PEM, or the system's authorities if absent.
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
    #[error("no file of trusted certificates found")]
    NoSystemAuthorities,
    #[error("failed to set up TLS")]
    Tls(#[from] Error),
}

impl Trust {
    /// The configuration of connections with this trust.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TrustError> {
        let system = || system_bundle().unwrap_or_default();
        let verifier = match &self.authorities {
            Authorities::Unverified => tls::accept_all(),
            Authorities::System => tls::verifier(Bundle::new(Some(&system()), &[])?),
            Authorities::Pem(own) => tls::verifier(Bundle::new(None, own)?),
            Authorities::SystemAnd(own) => tls::verifier(Bundle::new(Some(&system()), own)?),
        };
        let builder = tls::client_builder()?.dangerous().with_custom_certificate_verifier(verifier);
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

/// Verifies chains as usual, and also accepts a server certificate that is itself in the bundle, as Go does.
/// Self-signed certificates are often marked as authorities, which chain building rejects as servers.
#[derive(Debug)]
struct Bundle {
    chains: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl Bundle {
    /// `system`: the system's certificates, where they count.
    fn new(system: Option<&[u8]>, own: &[u8]) -> Result<Self, TrustError> {
        let bad = || TrustError::Pem("the authority");
        let mut roots = RootCertStore::empty();
        // A bundle may contain certificates that cannot be used here.
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
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider());
        let chains = builder.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { chains, own })
    }

    /// True if the certificate is in the bundle, currently valid, and matches the server name.
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

impl CertificateCheck for Bundle {
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let chain = self.chains.verify_server_cert(leaf, intermediates, name, &[], now);
        match (chain, self.verify_own(leaf, name, now)) {
            (Err(_), Some(own)) => own,
            (chain, _) => chain.map(|_| ()),
        }
    }
}
