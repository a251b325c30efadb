//! Whom to trust when asking a registry.

use std::path::Path;
use std::sync::Arc;

use base::tls::{Anybody, system_bundle};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::hosts::Tls;

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

pub(super) fn config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Anybody::new())
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
