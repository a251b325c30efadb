//! Client certificates: the common name is the user, organizations are groups.

use super::Refusal;
use crate::serve::{Connection, PeerCertificates, Verification};
use crate::user::UserInfo;
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

type Identity = Option<Arc<UserInfo>>;

/// The user of a connection's certificate, parsed once per connection; `None`: the certificate is for something else.
pub fn user(connection: &Connection, certificates: &PeerCertificates) -> Result<Identity, Refusal> {
    match &certificates.client {
        // A front proxy's certificate is no user's, and no reason to refuse the request.
        Verification::Rejected(_) if certificates.front_proxy.is_trusted() => return Ok(None),
        Verification::Rejected(why) => return Err(Refusal(format!("client certificate: {why}"))),
        Verification::NoAuthority => return Ok(None),
        Verification::Trusted => {}
    }
    let identity: Option<&Identity> = connection
        .cached(|| certificates.chain.first().and_then(|leaf| from_certificate(leaf)).map(Arc::new));
    let identity = identity.and_then(Clone::clone);
    identity.map(Some).ok_or_else(|| Refusal("client certificate without a common name".to_owned()))
}

fn from_certificate(der: &[u8]) -> Option<UserInfo> {
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
    Some(UserInfo { name, groups, extra, ..UserInfo::default() })
}
