//! Client CAs, replaceable while the API is serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::tls::{self, ClientCertificateCheck};
use parking_lot::RwLock;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::ServeError;

/// Handshakes and requests are verified against the current CAs; by default there is none, and no certificate is
/// requested. Clones share state.
#[derive(Clone, Debug, Default)]
pub struct ClientAuthorities(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
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

impl ClientAuthorities {
    pub fn new(authorities: Vec<CertificateDer<'static>>) -> Result<Self, ServeError> {
        let made = Self::default();
        made.replace(authorities)?;
        Ok(made)
    }

    /// Replaces the CAs; invalid ones leave the current ones in place.
    pub fn replace(&self, authorities: Vec<CertificateDer<'static>>) -> Result<(), ServeError> {
        let new = verifier(authorities)?;
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
        let is_accepted = self.check(leaf, rest, UnixTime::now()).is_ok();
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
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, ServeError> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider());
    Ok(Some(builder.allow_unauthenticated().build()?))
}

/// No hints: the subjects may change, and clients with one certificate present it anyway.
impl ClientCertificateCheck for ClientAuthorities {
    fn is_requested(&self) -> bool {
        self.current().is_some()
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        match self.current() {
            Some(verifier) => verifier.verify_client_cert(leaf, intermediates, now).map(|_| ()),
            None => Err(Error::General("no client CA configured".to_owned())),
        }
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
        assert!(authorities.is_requested());
        let accepts = |chain: &[CertificateDer<'static>]| {
            authorities.check(&chain[0], &chain[1..], UnixTime::now()).is_ok()
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
        assert!(!authorities.is_requested() && !accepts(&of_new));
    }
}
