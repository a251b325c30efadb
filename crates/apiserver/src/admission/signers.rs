//! Certificate signers and the permissions on them.

use super::Attributes;
use crate::authorize::{self, Decision};
use crate::registry::Registry;
use crate::user::UserInfo;
use api::value::Fields;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use machinery::field::{FieldError, Path};
use machinery::status::Result;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

pub const GROUP: &str = "certificates.k8s.io";
pub const REQUESTS: &str = "certificatesigningrequests";
const POD_REQUESTS: &str = "podcertificaterequests";

/// Reports whether the user has this verb on the signer, or on all signers of its domain.
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

/// Rejects a changed status of a pod certificate request by a user who may not sign for its signer. No plugin, so the
/// check cannot be disabled.
pub async fn pod_certificate_problem(
    registry: &Registry,
    attributes: &Attributes<'_>,
    new: &Value,
    old: &Value,
) -> Result<Option<FieldError>> {
    if !attributes.is_subresource(GROUP, POD_REQUESTS, "status") || new.get("status") == old.get("status") {
        return Ok(None);
    }
    let (user, signer) = (attributes.context.user, old.field("spec").text("signerName"));
    if may(registry, user, "sign", signer).await? {
        return Ok(None);
    }
    let path = Path::new("spec");
    let detail = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", user.name);
    Ok(Some(FieldError::forbidden(&path.child("signerName"), detail)))
}

/// Reads a value from the subject of a signing request; `None` if the request cannot be parsed.
pub fn subject<T>(request: &str, read: impl FnOnce(&X509Name<'_>) -> T) -> Option<T> {
    let text = STANDARD.decode(request).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
    Some(read(&request.certification_request_info.subject))
}
