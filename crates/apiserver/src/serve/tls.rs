//! TLS of the listener: the serving certificate, which can be replaced while running, and trust in clients.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use super::{PeerCertificates, Verification};

/// Kubernetes serves nothing older than TLS 1.2.
static PROTOCOLS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("adding a certificate authority to the trusted ones")]
    Authority(#[source] rustls::Error),
    #[error("building the verifier of client certificates")]
    Verifier(#[source] VerifierBuilderError),
    #[error("using the serving certificate and its key")]
    ServingCertificate(#[source] rustls::Error),
    #[error("creating keys for session tickets")]
    Tickets(#[source] rustls::Error),
}

/// The authorities whose client certificates mean something.
#[derive(Clone, Debug)]
pub struct ClientTrust {
    client: Option<Arc<dyn ClientCertVerifier>>,
    front_proxy: Option<Arc<dyn ClientCertVerifier>>,
    hints: Arc<[DistinguishedName]>,
}

impl ClientTrust {
    /// `client` authorities vouch for users, `front_proxy` authorities for proxies that assert users by header.
    pub fn new(
        client: &[CertificateDer<'static>],
        front_proxy: &[CertificateDer<'static>],
    ) -> Result<Self, TlsError> {
        let client = verifier(client)?;
        let front_proxy = verifier(front_proxy)?;
        let hints = [&client, &front_proxy]
            .into_iter()
            .flatten()
            .flat_map(|v| v.root_hint_subjects().to_vec())
            .collect();
        Ok(Self { client, front_proxy, hints })
    }

    /// Checks a presented chain against both sets of authorities, at the present time.
    #[must_use]
    pub fn verify(&self, chain: Vec<CertificateDer<'static>>) -> PeerCertificates {
        let check = |verifier: &Option<Arc<dyn ClientCertVerifier>>| match (verifier, chain.split_first()) {
            (None, _) => Verification::NoAuthority,
            (_, None) => Verification::Rejected("no certificate".to_owned()),
            (Some(verifier), Some((leaf, rest))) => {
                match verifier.verify_client_cert(leaf, rest, UnixTime::now()) {
                    Ok(_) => Verification::Trusted,
                    Err(error) => Verification::Rejected(error.to_string()),
                }
            }
        };
        let (client, front_proxy) = (check(&self.client), check(&self.front_proxy));
        PeerCertificates { chain: chain.into(), client, front_proxy }
    }
}

fn verifier(roots: &[CertificateDer<'static>]) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    if roots.is_empty() {
        return Ok(None);
    }
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).map_err(TlsError::Authority)?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
        .build()
        .map_err(TlsError::Verifier)?;
    Ok(Some(verifier))
}

/// Asks for a client certificate, accepts any whose key the client proves to hold, and leaves trust to
/// [`ClientTrust::verify`] after the handshake, which also covers resumed sessions.
#[derive(Debug)]
struct ProofOfPossession {
    hints: Arc<[DistinguishedName]>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for ProofOfPossession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The TLS settings of a listener. New connections use what was last set.
#[derive(Debug)]
pub struct Tls {
    current: ArcSwap<Settings>,
    provider: Arc<CryptoProvider>,
    tickets: Arc<dyn rustls::server::ProducesTickets>,
}

#[derive(Debug)]
pub(super) struct Settings {
    pub config: Arc<ServerConfig>,
    pub trust: ClientTrust,
}

impl Tls {
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        trust: ClientTrust,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tickets = aws_lc_rs::Ticketer::new().map_err(TlsError::Tickets)?;
        let settings = settings(&provider, &tickets, chain, key, trust)?;
        Ok(Self { current: ArcSwap::from_pointee(settings), provider, tickets })
    }

    /// Replaces certificate and trust for connections accepted from now on; open ones go on undisturbed.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        trust: ClientTrust,
    ) -> Result<(), TlsError> {
        let settings = settings(&self.provider, &self.tickets, chain, key, trust)?;
        self.current.store(Arc::new(settings));
        Ok(())
    }

    /// The trust that applies to new connections.
    #[must_use]
    pub fn trust(&self) -> ClientTrust {
        self.current.load().trust.clone()
    }

    pub(super) fn current(&self) -> Arc<Settings> {
        self.current.load_full()
    }
}

fn settings(
    provider: &Arc<CryptoProvider>,
    tickets: &Arc<dyn rustls::server::ProducesTickets>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    trust: ClientTrust,
) -> Result<Settings, TlsError> {
    let proof = ProofOfPossession { hints: Arc::clone(&trust.hints), provider: Arc::clone(provider) };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&PROTOCOLS)
        .map_err(TlsError::ServingCertificate)?
        .with_client_cert_verifier(Arc::new(proof))
        .with_single_cert(chain, key)
        .map_err(TlsError::ServingCertificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets);
    config.send_tls13_tickets = 1;
    Ok(Settings { config: Arc::new(config), trust })
}
