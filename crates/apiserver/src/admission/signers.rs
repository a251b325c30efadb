//! Signers of certificates, and who may act for them.

use crate::authorize::{self, Decision};
use crate::registry::Registry;
use crate::user::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::status::Result;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

pub const GROUP: &str = "certificates.k8s.io";
pub const REQUESTS: &str = "certificatesigningrequests";

/// Whether the user may do this for the signer, or for all signers of its domain.
pub async fn may(registry: &Registry, user: &UserInfo, verb: &str, signer: &str) -> Result<bool> {
    let domain = signer.split('/').next().unwrap_or("");
    for name in [signer, &format!("{domain}/*")] {
        let wanted = authorize::Attributes {
            verb,
            is_resource: true,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            ..authorize::Attributes::default()
        };
        if let Decision::Allowed(_) = registry.authorization.decide(user, &wanted).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Something of the subject that a signing request is for; `None` if the request cannot be read.
pub fn subject<T>(request: &str, read: impl FnOnce(&X509Name<'_>) -> T) -> Option<T> {
    let text = STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    Some(read(&request.certification_request_info.subject))
}
