//! Front proxies: clients with their certificate name the user in headers.

use super::Refusal;
use crate::serve::PeerCertificates;
use crate::user::UserInfo;
use base::pki::user_of_subject;
use http::HeaderMap;
use jiff::Timestamp;
use std::collections::BTreeMap;
use x509_parser::prelude::{FromDer, X509Certificate};

const USER: &str = "x-remote-user";
const UID: &str = "x-remote-uid";
const GROUP: &str = "x-remote-group";
const EXTRA: &str = "x-remote-extra-";

/// The user named by a front proxy; `None` if the client is none, or the headers name no user. `allowed` are the
/// common names that front proxies may have; empty: all. Connections may outlive certificates: expiry is checked for
/// every request.
pub fn user(
    headers: &HeaderMap,
    certificates: &PeerCertificates,
    allowed: &[String],
    now: Timestamp,
) -> Result<Option<UserInfo>, Refusal> {
    if !certificates.front_proxy.is_trusted() {
        return Ok(None);
    }
    let Some(user) = named(headers) else { return Ok(None) };
    let leaf = certificates.chain.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let Some((_, leaf)) = leaf else { return Ok(None) };
    if leaf.validity().not_after.timestamp() < now.as_second() {
        return Err(Refusal("front proxy certificate has expired since the connection was made".to_owned()));
    }
    if !allowed.is_empty() {
        let name = user_of_subject(leaf.subject())
            .map_err(|error| Refusal(format!("front proxy certificate: {error}")))?
            .name;
        if !allowed.contains(&name) {
            return Err(Refusal(format!("x509: subject with cn={name} is not in the allowed list")));
        }
    }
    Ok(Some(user))
}

/// The user in the headers, if any.
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
    use crate::serve::Verification;
    use base::pki::{Pki, ServingNames};
    use jiff::ToSpan;

    #[test]
    fn front_proxy_expired_certificate_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let (names, now) = (ServingNames::of_the_api_server("cluster.local"), Timestamp::now());
        let pki = Pki::open(&directory.path().join("pki"), &names, now).expect("certificates");
        let certificates = PeerCertificates {
            chain: pki.leaves().front_proxy_client.chain.clone().into(),
            client: Verification::NoAuthority,
            front_proxy: Verification::Trusted,
        };
        let mut headers = HeaderMap::new();
        headers.insert(USER, http::HeaderValue::from_static("alice"));
        let found = |now| user(&headers, &certificates, &[], now).map(|user| user.map(|user| user.name));
        assert_eq!(found(now), Ok(Some("alice".to_owned())));
        let later = now + (50 * 365 * 24).hours();
        assert!(found(later).is_err(), "the connection outlived the certificate");
    }

    #[test]
    fn front_proxy_certificate_with_two_common_names_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Timestamp::now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let issued = pki
            .front_proxy_authority
            .issue_client_in("front-proxy-client", &["another-proxy-x"], now)
            .expect("a certificate");
        let mut headers = HeaderMap::new();
        headers.insert(USER, http::HeaderValue::from_static("alice"));
        let found = |der: Vec<u8>| {
            let certificates = PeerCertificates {
                chain: vec![der.into()].into(),
                client: Verification::NoAuthority,
                front_proxy: Verification::Trusted,
            };
            let allowed = ["front-proxy-client".to_owned(), "another-proxy-x".to_owned()];
            user(&headers, &certificates, &allowed, now).map(|user| user.map(|user| user.name))
        };
        let one = issued.chain[0].to_vec();
        assert_eq!(found(one.clone()), Ok(Some("alice".to_owned())));
        // Turns the organization into a common name; the signature has been verified before.
        let (organization, common_name) = ([6, 3, 0x55, 4, 10], [6, 3, 0x55, 4, 3]);
        let at = one.windows(5).position(|window| window == organization).expect("an organization");
        let mut two = one;
        two[at..at + 5].copy_from_slice(&common_name);
        let refused = found(two).expect_err("two common names");
        assert!(refused.0.contains("exactly one common name"), "{}", refused.0);
    }

    #[test]
    fn front_proxy_headers_return_user() {
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
