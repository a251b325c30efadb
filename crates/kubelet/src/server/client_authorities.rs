//! Client CAs, replaceable while the API is serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::ServeError;

/// Handshakes and requests are verified against the current CAs. Clones share state.
#[derive(Clone, Debug)]
pub struct ClientAuthorities(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    provider: Arc<CryptoProvider>,
    /// Absent: certificates are not requested.
    verifier: RwLock<Option<Arc<dyn ClientCertVerifier>>>,
    /// Number of replacements.
    generation: AtomicU64,
}

/// Client certificates of a connection, and the CA generation that accepted them last.
#[derive(Debug, Default)]
pub struct AcceptedChain {
    chain: Vec<CertificateDer<'static>>,
    generation: AtomicU64,
}

impl AcceptedChain {
    /// `generation` must be read before the handshake.
    pub fn new(chain: Vec<CertificateDer<'static>>, generation: u64) -> Self {
        Self { chain, generation: AtomicU64::new(generation) }
    }

    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }
}

impl Default for ClientAuthorities {
    /// Requests no certificates.
    fn default() -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        Self(Arc::new(Inner { provider, verifier: RwLock::default(), generation: AtomicU64::new(0) }))
    }
}

impl ClientAuthorities {
    pub fn new(authorities: Vec<CertificateDer<'static>>) -> Result<Self, ServeError> {
        let made = Self::default();
        made.replace(authorities)?;
        Ok(made)
    }

    /// Replaces the CAs; invalid ones leave the current ones in place.
    pub fn replace(&self, authorities: Vec<CertificateDer<'static>>) -> Result<(), ServeError> {
        let new = verifier(&self.0.provider, authorities)?;
        *self.0.verifier.write() = new;
        self.0.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Reports whether a chain accepted in a handshake is still valid. Connections may outlive CAs.
    pub fn is_still_accepted(&self, accepted: &AcceptedChain) -> bool {
        let Some((leaf, rest)) = accepted.chain.split_first() else { return true };
        let generation = self.generation();
        if accepted.generation.load(Ordering::Acquire) == generation {
            return true;
        }
        let is_accepted = self.verify_client_cert(leaf, rest, UnixTime::now()).is_ok();
        if is_accepted {
            accepted.generation.store(generation, Ordering::Release);
        }
        is_accepted
    }

    fn current(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        self.0.verifier.read().clone()
    }
}

fn verifier(
    provider: &Arc<CryptoProvider>,
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, ServeError> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(Some(builder.allow_unauthenticated().build()?))
}

impl ClientCertVerifier for ClientAuthorities {
    fn offer_client_auth(&self) -> bool {
        self.current().is_some()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Empty: the subjects may change, and clients with one certificate present it anyway.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.current() {
            Some(verifier) => verifier.verify_client_cert(end_entity, intermediates, now),
            None => Err(Error::General("no client CA configured".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::pki::{Pki, ServingNames, certificates_from_pem};
    use jiff::Timestamp;

    fn pki() -> (Pki, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let names = ServingNames::of_the_api_server("cluster.local");
        let pki = Pki::open(&directory.path().join("pki"), &names, Timestamp::now()).expect("a PKI");
        (pki, directory)
    }

    fn authority(pki: &Pki) -> Vec<CertificateDer<'static>> {
        certificates_from_pem(&pki.client_authority.certificate_pem).expect("certificates")
    }

    #[test]
    fn replaced_client_cas_apply_to_handshakes_and_open_connections() {
        let ((old, _first), (new, _second)) = (pki(), pki());
        let chain = |pki: &Pki| {
            pki.client_authority.issue_client("ann", None, Timestamp::now()).expect("a certificate").chain
        };
        let authorities = ClientAuthorities::new(authority(&old)).expect("usable");
        assert!(authorities.offer_client_auth());
        let accepts = |chain: &[CertificateDer<'static>]| {
            authorities.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).is_ok()
        };
        let (of_old, of_new) = (chain(&old), chain(&new));
        assert!(accepts(&of_old) && !accepts(&of_new));
        let open = AcceptedChain::new(of_old.clone(), authorities.generation());
        assert!(authorities.is_still_accepted(&open));

        // Both for a while, during CA rotation.
        authorities.replace([authority(&old), authority(&new)].concat()).expect("usable");
        assert!(accepts(&of_old) && accepts(&of_new) && authorities.is_still_accepted(&open));
        authorities.replace(authority(&new)).expect("usable");
        assert!(!accepts(&of_old) && accepts(&of_new) && !authorities.is_still_accepted(&open));

        // An invalid bundle changes nothing.
        assert!(authorities.replace(vec![CertificateDer::from(vec![1, 2, 3])]).is_err());
        assert!(accepts(&of_new));
        // Connections without a certificate authenticate by token.
        assert!(authorities.is_still_accepted(&AcceptedChain::default()));
        authorities.replace(Vec::new()).expect("usable");
        assert!(!authorities.offer_client_auth() && !accepts(&of_new));
    }
}
