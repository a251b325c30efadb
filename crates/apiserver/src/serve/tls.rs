//! TLS of the listener: the serving certificate, which can be replaced at run time, and client certificate trust.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base::tls::{ClientCertificateCheck, client_verifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    DistinguishedName, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use super::{PeerCertificates, Verification};

/// As in Kubernetes, no version older than TLS 1.2.
static PROTOCOLS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// TLS settings besides certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Disables TLS 1.2.
    pub only_tls13: bool,
    /// TLS 1.2 cipher suites by IANA name; all secure ones if empty. Those of TLS 1.3 cannot be configured.
    pub cipher_suites: Vec<String>,
}

impl TlsOptions {
    /// Parses the values of `--tls-min-version` and `--tls-cipher-suites`.
    pub fn parse(min_version: &str, cipher_suites: &[String]) -> Result<Self, TlsError> {
        let only_tls13 = match min_version {
            // Older versions are never served.
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            other => return Err(TlsError::Version(other.to_owned())),
        };
        for name in cipher_suites {
            if !KNOWN_SUITES.contains(&name.as_str()) && !is_supported(name) {
                return Err(TlsError::CipherSuite(name.clone()));
            }
        }
        let options = Self { only_tls13, cipher_suites: cipher_suites.to_vec() };
        if !options.only_tls13 && !cipher_suites.is_empty() && options.provider().cipher_suites.is_empty() {
            return Err(TlsError::NoCipherSuite);
        }
        Ok(options)
    }

    /// Configured suites that are not offered because they are insecure.
    pub fn without_effect(&self) -> Vec<&str> {
        self.cipher_suites.iter().map(String::as_str).filter(|name| !is_supported(name)).collect()
    }

    fn provider(&self) -> CryptoProvider {
        let mut provider = aws_lc_rs::default_provider();
        if !self.cipher_suites.is_empty() {
            provider.cipher_suites.retain(|suite| {
                suite.tls13().is_some() || self.cipher_suites.iter().any(|name| *name == suite_name(suite))
            });
        }
        provider
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.only_tls13 { &PROTOCOLS[..1] } else { &PROTOCOLS }
    }
}

/// Suites that Kubernetes accepts and this server never offers.
const KNOWN_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
];

/// IANA name of a suite.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    // rustls prefixes TLS 1.3 names with the version.
    format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
}

fn is_supported(name: &str) -> bool {
    // Names without the hash are legacy names of two suites.
    let full = format!("{name}_SHA256");
    let suites = aws_lc_rs::default_provider().cipher_suites;
    suites.iter().map(suite_name).any(|suite| suite == name || suite == full)
}

/// A certificate for some host names (`--tls-sni-cert-key`).
#[derive(Debug)]
pub struct NamedCertificate {
    /// Host names, also with a wildcard as first label.
    pub names: Vec<String>,
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// Selects the certificate by server name indication.
#[derive(Debug)]
struct ByName {
    named: Vec<(Vec<String>, Arc<CertifiedKey>)>,
    fallback: Arc<CertifiedKey>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let wildcard = name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let find = |wanted: &str| self.named.iter().find(|(names, _)| names.iter().any(|one| one == wanted));
        let found = find(&name).or_else(|| find(&wildcard?));
        Some(Arc::clone(found.map_or(&self.fallback, |(_, key)| key)))
    }
}

/// Error of setting up TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to add a certificate authority to the trust store")]
    Authority(#[source] rustls::Error),
    #[error("failed to build the client certificate verifier")]
    Verifier(#[source] VerifierBuilderError),
    #[error("failed to use the serving certificate and its key")]
    ServingCertificate(#[source] rustls::Error),
    #[error("unknown tls version {0:?}")]
    Version(String),
    #[error("Cipher suite {0} not supported or doesn't exist")]
    CipherSuite(String),
    #[error("none of the configured cipher suites can be offered")]
    NoCipherSuite,
    #[error("failed to create session ticket keys")]
    Tickets(#[source] rustls::Error),
}

/// Trusted authorities of client certificates.
#[derive(Clone, Debug)]
pub struct ClientTrust {
    client: Option<Arc<dyn ClientCertVerifier>>,
    front_proxy: Option<Arc<dyn ClientCertVerifier>>,
    hints: Arc<[DistinguishedName]>,
}

impl ClientTrust {
    /// `client` authorities authenticate users, `front_proxy` authorities authenticate proxies that assert users by
    /// header.
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

    /// Verifies a presented chain against both sets of authorities at the current time.
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

/// Requests a client certificate, accepts any whose key the client proves to hold, and leaves trust to
/// [`ClientTrust::verify`] after the handshake, which also covers resumed sessions.
#[derive(Debug)]
struct ProofOfPossession {
    hints: Arc<[DistinguishedName]>,
}

impl ClientCertificateCheck for ProofOfPossession {
    fn hints(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn check(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<(), rustls::Error> {
        Ok(())
    }
}

/// TLS settings of a listener. New connections use the latest ones.
#[derive(Debug)]
pub struct Tls {
    current: ArcSwap<Settings>,
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
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
        Self::with_options(chain, key, Vec::new(), trust, &TlsOptions::default())
    }

    /// As [`Tls::new`], with additional SNI certificates.
    pub fn with_options(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        named: Vec<NamedCertificate>,
        trust: ClientTrust,
        options: &TlsOptions,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(options.provider());
        let tickets = aws_lc_rs::Ticketer::new().map_err(TlsError::Tickets)?;
        let settings = settings(
            &provider,
            options.versions(),
            &tickets,
            resolver(&provider, chain, key, named)?,
            trust,
        )?;
        Ok(Self { current: ArcSwap::from_pointee(settings), provider, versions: options.versions(), tickets })
    }

    /// Replaces certificate and trust for connections accepted from now on; open ones are unaffected.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        named: Vec<NamedCertificate>,
        trust: ClientTrust,
    ) -> Result<(), TlsError> {
        let resolver = resolver(&self.provider, chain, key, named)?;
        let settings = settings(&self.provider, self.versions, &self.tickets, resolver, trust)?;
        self.current.store(Arc::new(settings));
        Ok(())
    }

    /// Trust of new connections.
    #[must_use]
    pub fn trust(&self) -> ClientTrust {
        self.current.load().trust.clone()
    }

    pub(super) fn current(&self) -> Arc<Settings> {
        self.current.load_full()
    }
}

/// Reports whether a certificate can be served with a key.
pub fn check_pair(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<(), TlsError> {
    let checked = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider());
    checked.map(drop).map_err(TlsError::ServingCertificate)
}

/// Prepared certificates of a listener.
fn resolver(
    provider: &CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    named: Vec<NamedCertificate>,
) -> Result<ByName, TlsError> {
    let certified = |chain, key| {
        CertifiedKey::from_der(chain, key, provider).map(Arc::new).map_err(TlsError::ServingCertificate)
    };
    let named = named.into_iter().map(|one| Ok((one.names, certified(one.chain, one.key)?)));
    Ok(ByName { named: named.collect::<Result<_, TlsError>>()?, fallback: certified(chain, key)? })
}

fn settings(
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    tickets: &Arc<dyn rustls::server::ProducesTickets>,
    resolver: ByName,
    trust: ClientTrust,
) -> Result<Settings, TlsError> {
    let proof = client_verifier(ProofOfPossession { hints: Arc::clone(&trust.hints) });
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions)
        .map_err(TlsError::ServingCertificate)?
        .with_client_cert_verifier(proof)
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets);
    config.send_tls13_tickets = 1;
    Ok(Settings { config: Arc::new(config), trust })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_options_restrict_suites_and_versions() {
        let name = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned();
        let options = TlsOptions::parse("VersionTLS12", std::slice::from_ref(&name)).expect("valid");
        let suites: Vec<String> = options.provider().cipher_suites.iter().map(suite_name).collect();
        assert!(suites.contains(&name), "{suites:?}");
        let older = suites.iter().filter(|suite| suite.contains("_WITH_")).count();
        assert_eq!(older, 1, "{suites:?}");
        assert_eq!(TlsOptions::parse("VersionTLS13", &[]).expect("valid").versions().len(), 1);
        assert_eq!(TlsOptions::default().versions().len(), 2);
        let weak = ["TLS_RSA_WITH_AES_128_CBC_SHA".to_owned(), name];
        let options = TlsOptions::parse("", &weak).expect("valid");
        assert_eq!(options.without_effect(), ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
        for (version, suites) in [("VersionTLS9", vec![]), ("", vec!["TLS_NOTHING".to_owned()])] {
            assert!(TlsOptions::parse(version, &suites).is_err());
        }
    }
}
