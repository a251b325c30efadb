//! Verification of kubelet serving certificates: one signed by the cluster's CA must be the node's own.
//!
//! A kubelet starts with a self-signed certificate, which cannot be verified, until the cluster has signed one for
//! it. From then on only a certificate of the cluster's CA is accepted for the node.

use arc_swap::ArcSwapOption;
use base::pki::user_of_certificate;
use base::tls::{self, CertificateCheck};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Verification state of kubelet certificates.
#[derive(Default)]
pub struct KubeletCertificates {
    authority: ArcSwapOption<WebPkiServerVerifier>,
    /// Verifies every certificate (`--kubelet-certificate-authority`).
    strict: AtomicBool,
    /// Nodes whose kubelets have presented a certificate of the cluster's CA.
    signed: Arc<Mutex<HashSet<String>>>,
}

impl KubeletCertificates {
    /// Sets the CAs that sign kubelet certificates, in PEM. Without any, certificates are not verified.
    pub fn set_authorities(&self, pem: &str) {
        self.set(pem, false);
    }

    /// Requires certificates of these CAs, in PEM, for the dialed address. Without a readable CA no certificate is
    /// accepted.
    pub fn require_authorities(&self, pem: &str) {
        self.set(pem, true);
    }

    fn set(&self, pem: &str, strict: bool) {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).flatten());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build();
        self.authority.store(verifier.ok());
        self.strict.store(strict, Ordering::Release);
    }

    /// Verifier for the kubelet of a node; `None` if no CA is known.
    pub fn verifier(&self, node: &str) -> Option<Arc<dyn ServerCertVerifier>> {
        let strict = self.strict.load(Ordering::Acquire);
        let Some(authority) = self.authority.load_full() else {
            return strict.then(|| tls::verifier(RejectAll));
        };
        if strict {
            return Some(authority);
        }
        Some(tls::verifier(NodeCheck { node: node.to_owned(), authority, signed: Arc::clone(&self.signed) }))
    }
}

/// Rejects every certificate.
#[derive(Debug)]
struct RejectAll;

impl CertificateCheck for RejectAll {
    fn check(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _now: UnixTime,
    ) -> Result<(), Error> {
        Err(CertificateError::UnknownIssuer.into())
    }
}

/// Accepts the kubelet of one node.
#[derive(Debug)]
struct NodeCheck {
    node: String,
    authority: Arc<WebPkiServerVerifier>,
    signed: Arc<Mutex<HashSet<String>>>,
}

impl CertificateCheck for NodeCheck {
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let outcome = self.authority.verify_server_cert(leaf, intermediates, name, &[], now);
        match outcome {
            // The subject identifies the node, so an address that the certificate does not list yet is harmless.
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {
                if !is_of_node(leaf, &self.node) {
                    return Err(Error::General(format!(
                        "the certificate is not one of node {:?}",
                        self.node
                    )));
                }
                self.signed.lock().insert(self.node.clone());
                Ok(())
            }
            Err(error) if self.signed.lock().contains(&self.node) => Err(error),
            Err(_) => Ok(()),
        }
    }
}

/// Reports whether the only common name of a certificate is that of the node's kubelet.
fn is_of_node(leaf: &[u8], node: &str) -> bool {
    user_of_certificate(leaf).is_ok_and(|user| user.name.strip_prefix("system:node:") == Some(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::pki::{Pki, ServingNames};
    use jiff::Timestamp;

    #[test]
    fn certificate_of_cluster_authority_must_be_the_nodes_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let (api, now) = (ServingNames::of_the_api_server("cluster.local"), Timestamp::now());
        let pki = Pki::open(&directory.path().join("pki"), &api, now).expect("certificates");
        let mut names = ServingNames::default();
        names.ips.insert("192.0.2.1".parse().expect("an address"));
        let issued = |authority: &base::pki::Authority, common_name: &str| {
            authority.issue_serving(common_name, &names, now).expect("a certificate").chain[0].clone()
        };
        let (cluster, other) = (&pki.client_authority, &pki.front_proxy_authority);
        let certificates = KubeletCertificates::default();
        assert!(certificates.verifier("n1").is_none());
        certificates.set_authorities(&cluster.certificate_pem);
        let accepts = |leaf: &CertificateDer<'_>, node: &str, address: &str| {
            let name = ServerName::try_from(address.to_owned()).expect("a name");
            let verifier = certificates.verifier(node).expect("a verifier");
            verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::now()).is_ok()
        };
        let own = issued(other, "kubelet");
        let signed = issued(cluster, "system:node:n1");
        assert!(
            accepts(&own, "n1", "192.0.2.1"),
            "made by the kubelet itself, before the cluster signed one"
        );
        assert!(accepts(&signed, "n1", "192.0.2.1"));
        assert!(accepts(&signed, "n1", "192.0.2.9"), "a new address of the node");
        assert!(!accepts(&own, "n1", "192.0.2.1"), "the node has a signed certificate");
        assert!(accepts(&own, "n2", "192.0.2.1"), "another node has none yet");
        assert!(!accepts(&signed, "n2", "192.0.2.1"), "another node's certificate");
        assert!(!accepts(&issued(cluster, "kubernetes"), "n2", "192.0.2.1"), "the API server itself");
    }
}
