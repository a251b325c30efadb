//! A certificate chain with its key, in one file so that both change together.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rcgen::KeyPair;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::extensions::GeneralName;

use super::{PkiError, ServingNames, read_optional, write_error};
use crate::file::{self, PRIVATE};

/// Difference to other clocks that is tolerated, in seconds.
const CLOCK_SKEW: i64 = 300;

/// A certificate chain, leaf first, and the key of its leaf.
#[derive(Clone)]
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub chain_pem: String,
    key: Arc<PrivateKeyDer<'static>>,
    key_pem: String,
    /// Begin and end of the leaf's validity, in seconds since the epoch.
    life: (i64, i64),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("life", &self.life).finish_non_exhaustive()
    }
}

impl Identity {
    pub(super) fn new(certificate: &rcgen::Certificate, key: &KeyPair, life: (i64, i64)) -> Self {
        Self {
            chain: vec![certificate.der().clone()],
            chain_pem: certificate.pem(),
            key: Arc::new(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))),
            key_pem: key.serialize_pem(),
            life,
        }
    }

    /// The private key, for TLS.
    #[must_use]
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The key for programs that read no PKCS #8 form of elliptic curve keys (fabric8's Java client): as `EC PRIVATE KEY`
    /// if it is one of P-256, as kubeadm writes it.
    #[must_use]
    pub fn client_key_pem(&self) -> String {
        let PrivateKeyDer::Pkcs8(key) = &*self.key else { return self.key_pem.clone() };
        super::sec1::encode(key.secret_pkcs8_der()).unwrap_or_else(|| self.key_pem.clone())
    }

    /// The end of the leaf's validity, in seconds since the epoch.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.life.1
    }

    /// True if less than a third of the leaf's lifetime remains, or if the leaf is not valid yet: it was issued while
    /// the clock was ahead.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        let ((begin, end), now) = (self.life, now.as_second());
        end.saturating_sub(now) < end.saturating_sub(begin) / 3 || begin > now.saturating_add(CLOCK_SKEW)
    }

    /// True if the leaf has exactly `names`.
    #[must_use]
    pub fn covers(&self, names: &ServingNames) -> bool {
        self.names().is_some_and(|carried| carried == *names)
    }

    fn names(&self) -> Option<ServingNames> {
        let (_, leaf) = x509_parser::parse_x509_certificate(self.chain.first()?).ok()?;
        let mut names = ServingNames::default();
        for name in &leaf.subject_alternative_name().ok()??.value.general_names {
            match name {
                GeneralName::DNSName(name) => {
                    names.dns.insert((*name).to_owned());
                }
                GeneralName::IPAddress(bytes) => {
                    names.ips.insert(match bytes.len() {
                        4 => <[u8; 4]>::try_from(*bytes).ok()?.into(),
                        _ => <[u8; 16]>::try_from(*bytes).ok()?.into(),
                    });
                }
                _ => {}
            }
        }
        Some(names)
    }

    /// The chain and the key, as they stand in the file.
    #[must_use]
    pub fn pem(&self) -> String {
        format!("{}{}", self.chain_pem, self.key_pem)
    }

    pub(super) fn save(&self, path: &Path) -> Result<(), PkiError> {
        file::replace(path, self.pem().as_bytes(), PRIVATE).map_err(write_error(path))
    }

    /// Returns `None` if the file does not exist.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, PkiError> {
        let Some(text) = read_optional(path)? else { return Ok(None) };
        let identity = Self::from_pem(&text).map_err(|reason| PkiError::Corrupt {
            path: path.to_owned(),
            what: "certificate with key",
            reason,
        })?;
        Ok(Some(identity))
    }

    /// Reads chain and key from one text, or from the concatenation of two.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        let chain = certificates_from_pem(text)?;
        let key =
            PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| format!("its key: {error}"))?;
        let (_, leaf) = x509_parser::parse_x509_certificate(&chain[0]).map_err(|error| error.to_string())?;
        let life = (leaf.validity().not_before.timestamp(), leaf.validity().not_after.timestamp());
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let pair = rustls::sign::CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider)
            .map_err(|error| error.to_string())?;
        pair.keys_match().map_err(|error| error.to_string())?;
        let (chain_pem, key_pem) = split_pem(text);
        Ok(Self { chain, chain_pem, key: Arc::new(key), key_pem, life })
    }
}

/// Every certificate of a PEM text; at least one.
pub fn certificates_from_pem(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("it contains no certificate".to_owned());
    }
    for certificate in &chain {
        x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    }
    Ok(chain)
}

/// The certificate blocks and the other blocks of a PEM text.
fn split_pem(text: &str) -> (String, String) {
    let (mut certificates, mut keys) = (String::new(), String::new());
    let mut target = None;
    for line in text.lines() {
        if let Some(label) = line.strip_prefix("-----BEGIN ") {
            target = Some(if label.starts_with("CERTIFICATE") { &mut certificates } else { &mut keys });
        }
        if let Some(target) = target.as_mut() {
            target.push_str(line);
            target.push('\n');
        }
        if line.starts_with("-----END ") {
            target = None;
        }
    }
    (certificates, keys)
}
