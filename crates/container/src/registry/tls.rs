//! Whom to trust when asking a registry.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::hosts::Tls;

/// Where systems keep the authorities that everybody trusts.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

fn system_bundle() -> Option<Vec<u8>> {
    let given = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    given.into_iter().chain(SYSTEM_BUNDLES.iter().map(Into::into)).find_map(|path| std::fs::read(path).ok())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

pub(super) fn config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        let mut roots = RootCertStore::empty();
        // A bundle of many may have some that are of no use here.
        let system = system_bundle().unwrap_or_default();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&system).flatten());
        if let Some(path) = &tls.ca_file {
            let own: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?).flatten().collect();
            if roots.add_parsable_certificates(own).0 == 0 {
                return Err(format!("{} holds no certificate", path.display()));
            }
        }
        builder.with_root_certificates(roots)
    };
    let config = match (&tls.cert_file, &tls.key_file) {
        (Some(certificate), Some(key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(certificate)?).flatten().collect();
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| error.to_string())?;
            builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// Trusts whoever answers, for registries whose administrator said so.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A failed handshake, in the words that people search for.
pub(super) fn explain(error: &std::io::Error) -> String {
    use rustls::{CertificateError, Error, InvalidMessage};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned()
        }
        Some(Error::InvalidCertificate(reason)) => {
            format!("tls: failed to verify certificate: x509: {reason}")
        }
        Some(other) => format!("tls: {other}"),
        None => format!("tls: {error}"),
    }
}
