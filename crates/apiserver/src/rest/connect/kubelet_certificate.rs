//! Serving certificates of kubelets: one of the cluster's authority must be the node's own.
//!
//! A kubelet starts with a certificate that it made itself, which cannot be verified, until the cluster has signed one for
//! it. From then on only a certificate of the cluster's authority is accepted for the node.

use arc_swap::ArcSwapOption;
use base::pki::user_of_certificate;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Verification state of kubelets' certificates.
#[derive(Default)]
pub struct KubeletCertificates {
    authority: ArcSwapOption<WebPkiServerVerifier>,
    /// Verifies every certificate, as `--kubelet-certificate-authority` wants it.
    strict: AtomicBool,
    /// Nodes whose kubelets have shown a certificate of the cluster's authority.
    signed: Arc<Mutex<HashSet<String>>>,
}

impl KubeletCertificates {
    /// Sets the authorities that sign kubelets' certificates, in PEM. Without any, certificates are not checked.
    pub fn set_authorities(&self, pem: &str) {
        self.set(pem, false);
    }

    /// Sets the authorities, in PEM, whose certificates alone are accepted, for the address that is called. With none that
    /// can be read, no certificate is.
    pub fn require_authorities(&self, pem: &str) {
        self.set(pem, true);
    }

    fn set(&self, pem: &str, strict: bool) {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).flatten());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        self.authority.store(verifier.ok());
        self.strict.store(strict, Ordering::Release);
    }

    /// The verifier for the kubelet of a node; `None` if no authority is known.
    pub fn verifier(&self, node: &str) -> Option<Arc<dyn ServerCertVerifier>> {
        let strict = self.strict.load(Ordering::Acquire);
        let Some(authority) = self.authority.load_full() else {
            return strict.then(|| Arc::new(RejectAll) as Arc<dyn ServerCertVerifier>);
        };
        if strict {
            return Some(authority);
        }
        Some(Arc::new(NodeVerifier { node: node.to_owned(), authority, signed: Arc::clone(&self.signed) }))
    }
}

/// Accepts no certificate.
#[derive(Debug)]
struct RejectAll;

impl ServerCertVerifier for RejectAll {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts the kubelet of one node.
#[derive(Debug)]
struct NodeVerifier {
    node: String,
    authority: Arc<WebPkiServerVerifier>,
    signed: Arc<Mutex<HashSet<String>>>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let outcome = self.authority.verify_server_cert(leaf, intermediates, name, ocsp, now);
        match outcome {
            // The subject names the node, so an address that the certificate does not list yet does no harm.
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
                Ok(ServerCertVerified::assertion())
            }
            Err(error) if self.signed.lock().contains(&self.node) => Err(error),
            Err(_) => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
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
