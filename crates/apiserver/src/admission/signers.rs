//! Signers of certificates, and who may act for them.

use crate::authorize::{self, Decision};
use crate::registry::Registry;
use crate::user::UserInfo;
use machinery::status::Result;

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
