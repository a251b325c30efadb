//! Client certificates: the common name is the user, organizations are groups.

use super::Refusal;
use crate::serve::{Connection, PeerCertificates, Verification};
use crate::user::UserInfo;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a certificate says of its bearer, and until when.
struct Identity {
    user: Arc<UserInfo>,
    not_after: i64,
}

/// The user of a connection's certificate, parsed once per connection; `None`: the certificate is for something else.
/// Connections may outlive certificates: whether it is still valid is looked at for every request.
pub fn user(
    connection: &Connection,
    certificates: &PeerCertificates,
    now: Timestamp,
) -> Result<Option<Arc<UserInfo>>, Refusal> {
    match &certificates.client {
        // A front proxy's certificate is no user's, and no reason to refuse the request.
        Verification::Rejected(_) if certificates.front_proxy.is_trusted() => return Ok(None),
        Verification::Rejected(why) => return Err(Refusal(format!("client certificate: {why}"))),
        Verification::NoAuthority => return Ok(None),
        Verification::Trusted => {}
    }
    let identity: Option<&Option<Identity>> =
        connection.cached(|| certificates.chain.first().and_then(|leaf| from_certificate(leaf)));
    let identity = identity
        .and_then(Option::as_ref)
        .ok_or_else(|| Refusal("client certificate without a common name".to_owned()))?;
    if identity.not_after < now.as_second() {
        return Err(Refusal("client certificate: it has expired since the connection was made".to_owned()));
    }
    Ok(Some(identity.user.clone()))
}

fn from_certificate(der: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let mut groups: Vec<String> =
        subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    groups.push("system:authenticated".to_owned());
    let mut extra = BTreeMap::new();
    let fingerprint = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(der));
    extra.insert(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={fingerprint}")],
    );
    let user = Arc::new(UserInfo { name, groups, extra, ..UserInfo::default() });
    Some(Identity { user, not_after: certificate.validity().not_after.timestamp() })
}
