//! Front proxies: a client with their certificate says by headers for whom it speaks.

use super::Refusal;
use crate::serve::PeerCertificates;
use crate::user::UserInfo;
use http::HeaderMap;
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer, X509Certificate};

const USER: &str = "x-remote-user";
const UID: &str = "x-remote-uid";
const GROUP: &str = "x-remote-group";
const EXTRA: &str = "x-remote-extra-";

/// The user that a front proxy speaks for; `None`: the client is none, or names nobody. `allowed` are the common names
/// that front proxies may have; empty: all.
pub fn user(
    headers: &HeaderMap,
    certificates: &PeerCertificates,
    allowed: &[String],
) -> Result<Option<UserInfo>, Refusal> {
    if !certificates.front_proxy.is_trusted() {
        return Ok(None);
    }
    let Some(user) = named(headers) else { return Ok(None) };
    if !allowed.is_empty() {
        let name = certificates.chain.first().and_then(|leaf| common_name(leaf)).unwrap_or_default();
        if !allowed.contains(&name) {
            return Err(Refusal(format!("x509: subject with cn={name} is not in the allowed list")));
        }
    }
    Ok(Some(user))
}

fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// The user the headers name; `None`: they name none.
fn named(headers: &HeaderMap) -> Option<UserInfo> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let name = text(USER);
    if name.is_empty() {
        return None;
    }
    let groups = headers.get_all(GROUP).iter().filter_map(|value| value.to_str().ok());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let (Some(key), Ok(value)) = (header.as_str().strip_prefix(EXTRA), value.to_str()) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    Some(UserInfo {
        name,
        uid: text(UID),
        groups: groups.filter(|group| !group.is_empty()).map(str::to_owned).collect(),
        extra,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_a_user() {
        let mut headers = HeaderMap::new();
        assert!(named(&headers).is_none());
        for (name, value) in [
            ("X-Remote-User", "alice"),
            ("X-Remote-Group", "dev"),
            ("X-Remote-Group", "ops"),
            ("X-Remote-Extra-Scopes%2fx", "a"),
        ] {
            headers.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let found = named(&headers).unwrap();
        assert_eq!((found.name.as_str(), found.groups.len()), ("alice", 2));
        assert_eq!(found.extra["scopes/x"], ["a"]);
    }
}
