//! Who makes the request: client certificates, impersonation, or nobody in particular.

use super::authorize::{Attributes, Authorizer};
use crate::context::Context;
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

/// Acting as somebody else, if the user may.
pub fn impersonate(context: &mut Context, authorizer: &dyn Authorizer) -> Result<()> {
    let text = |name: &str| {
        context.headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned).unwrap_or_default()
    };
    let user = text("impersonate-user");
    let uid = text("impersonate-uid");
    let mut groups: Vec<String> = context
        .headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|v| v.to_str().ok())
        .map(str::to_owned)
        .collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &context.headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix("impersonate-extra-"), value.to_str()) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    if user.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(());
        }
        return Err(Status::internal(
            "requested impersonation of groups, uid or extra without impersonating a user",
        ));
    }
    let mut wanted = vec![subject(&user)];
    wanted.extend(groups.iter().map(|group| Attributes::impersonate("", "groups", "", group)));
    if !uid.is_empty() {
        wanted.push(Attributes::impersonate("authentication.k8s.io", "uids", "", &uid));
    }
    for (key, values) in &extra {
        wanted.extend(
            values
                .iter()
                .map(|value| Attributes::impersonate("authentication.k8s.io", "userextras", key, value)),
        );
    }
    for attributes in &wanted {
        if let Some(reason) = authorizer.refuses(&context.user, attributes) {
            return Err(attributes.forbidden(&context.user, &reason));
        }
    }
    if let Some(rest) = user.strip_prefix("system:serviceaccount:") {
        if groups.is_empty() {
            groups.push("system:serviceaccounts".to_owned());
            if let Some((namespace, _)) = rest.split_once(':') {
                groups.push(format!("system:serviceaccounts:{namespace}"));
            }
        }
    }
    if user == "system:anonymous" {
        groups.push("system:unauthenticated".to_owned());
    } else if !groups.iter().any(|g| g == "system:authenticated" || g == "system:unauthenticated") {
        groups.push("system:authenticated".to_owned());
    }
    context.user = Arc::new(UserInfo { name: user, uid, groups, extra });
    Ok(())
}

fn subject(user: &str) -> Attributes {
    match user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, name)) => {
            let mut attributes = Attributes::impersonate("", "serviceaccounts", "", name);
            attributes.namespace = namespace.to_owned();
            attributes
        }
        None => Attributes::impersonate("", "users", "", user),
    }
}
