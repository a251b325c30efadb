//! Client certificates: the common name is the user, organizations are groups.

use super::Refusal;
use crate::serve::{Connection, PeerCertificates, Verification};
use crate::user::UserInfo;
use base::pki::{SubjectUser, user_of_subject};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// User of a certificate, and the end of its validity.
struct Identity {
    user: Arc<UserInfo>,
    not_after: i64,
}

/// The user of a connection's certificate with the seconds until it expires, parsed once per connection; `None`: the
/// certificate has another purpose.
/// Connections may outlive certificates, so validity is checked for every request.
pub fn user(
    connection: &Connection,
    certificates: &PeerCertificates,
    now: Timestamp,
) -> Result<Option<(Arc<UserInfo>, i64)>, Refusal> {
    match &certificates.client {
        // A front proxy's certificate identifies no user, but the request stays acceptable.
        Verification::Rejected(_) if certificates.front_proxy.is_trusted() => return Ok(None),
        Verification::Rejected(why) => return Err(Refusal(format!("client certificate: {why}"))),
        Verification::NoAuthority => return Ok(None),
        Verification::Trusted => {}
    }
    let identity: Option<&Result<Identity, String>> = connection.cached(|| {
        certificates
            .chain
            .first()
            .ok_or_else(|| "none presented".to_owned())
            .and_then(|leaf| from_certificate(leaf))
    });
    let identity = match identity {
        Some(Ok(identity)) => identity,
        Some(Err(why)) => return Err(Refusal(format!("client certificate: {why}"))),
        None => return Err(Refusal("client certificate: unknown".to_owned())),
    };
    let left = identity.not_after.saturating_sub(now.as_second());
    if left < 0 {
        return Err(Refusal("client certificate: it has expired since the connection was made".to_owned()));
    }
    Ok(Some((identity.user.clone(), left)))
}

fn from_certificate(der: &[u8]) -> Result<Identity, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    let SubjectUser { name, mut groups, uid } =
        user_of_subject(certificate.subject()).map_err(|error| error.to_string())?;
    groups.push("system:authenticated".to_owned());
    let mut extra = BTreeMap::new();
    let fingerprint = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(der));
    extra.insert(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={fingerprint}")],
    );
    let uid = if base::features::enabled("AllowParsingUserUIDFromCertAuth") { uid } else { String::new() };
    let user = Arc::new(UserInfo { name, groups, uid, extra });
    Ok(Identity { user, not_after: certificate.validity().not_after.timestamp() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::pki::{Pki, ServingNames};

    #[test]
    fn client_certificate_with_two_common_names_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Timestamp::now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let groups = ["system:kube-controller-manager", "system:nodes"];
        let issued =
            pki.client_authority.issue_client_in("system:node:x", &groups, now).expect("a certificate");
        let one = issued.chain[0].to_vec();
        let user = from_certificate(&one).expect("a user").user;
        assert_eq!(user.name, "system:node:x");
        assert_eq!(user.groups, ["system:kube-controller-manager", "system:nodes", "system:authenticated"]);

        // Turns the first organization into a common name; the signature has been verified before.
        let (organization, common_name) = ([6, 3, 0x55, 4, 10], [6, 3, 0x55, 4, 3]);
        let at = one.windows(5).position(|window| window == organization).expect("an organization");
        let mut two = one;
        two[at..at + 5].copy_from_slice(&common_name);
        let refused = from_certificate(&two).map(|identity| identity.user.name.clone());
        assert_eq!(refused, Err("the subject must have exactly one common name, found 2".to_owned()));
    }
}
