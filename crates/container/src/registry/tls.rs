//! TLS configuration of connections to registries.

use std::path::Path;
use std::sync::Arc;

use base::http::{Authorities, Trust};
use rustls::ClientConfig;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::hosts::Tls;

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}

pub(super) fn config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let authorities = match &tls.ca_file {
        _ if tls.insecure_skip_verify => Authorities::Unverified,
        None => Authorities::System,
        Some(path) => {
            let own = read(path)?;
            if CertificateDer::pem_slice_iter(&own).flatten().next().is_none() {
                return Err(format!("{} contains no certificate", path.display()));
            }
            Authorities::SystemAnd(own)
        }
    };
    let identity = match (&tls.cert_file, &tls.key_file) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    let trust = Trust { authorities, identity, server_name: None };
    trust.config().map_err(|error| error.to_string())
}

/// Error text of a failed handshake, as Go words it.
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
