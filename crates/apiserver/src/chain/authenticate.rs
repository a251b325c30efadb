//! Who makes the request: client certificates, or nobody in particular.

use crate::serve::{Connection, Verification};
use crate::user::UserInfo;
use machinery::status::{Result, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

type Identity = Option<Arc<UserInfo>>;

/// The user of a connection. Parsed once per connection.
pub fn authenticate(connection: &Connection, anonymous: bool) -> Result<Arc<UserInfo>> {
    let Some(certificates) = &connection.certificates else {
        return nobody(anonymous);
    };
    if let Verification::Rejected(why) = &certificates.client {
        tracing::info!(why, "client certificate refused");
        return Err(Status::unauthorized());
    }
    if !certificates.client.is_trusted() {
        return nobody(anonymous);
    }
    let identity: Option<&Identity> = connection
        .cached(|| certificates.chain.first().and_then(|leaf| from_certificate(leaf)).map(Arc::new));
    identity.and_then(Clone::clone).ok_or_else(Status::unauthorized)
}

fn nobody(anonymous: bool) -> Result<Arc<UserInfo>> {
    if anonymous { Ok(Arc::new(UserInfo::anonymous())) } else { Err(Status::unauthorized()) }
}

/// Common name is the user, organizations are groups.
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
