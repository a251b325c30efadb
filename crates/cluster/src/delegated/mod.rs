//! The user of a request to a server that delegates: of a client certificate, of the headers of the front proxy, or of
//! a bearer token. Authorities and header names are those that the API server publishes.

mod server;

pub(crate) use server::Pages;
pub use server::SecurePort;

use std::sync::Arc;

use ::metrics::access::{Access, RemoteUser};
use apiserver::serve::{ClientTrust, Connection};
use arc_swap::ArcSwap;
use base::pki::{certificates_from_pem, user_of_certificate};
use client::{Client, ClientError};
use http::{HeaderMap, HeaderName};
use machinery::status::{Result, Status};
use objects::core::v1::ConfigMap;
use percent_encoding::percent_decode_str;

use crate::ClusterError;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const AUTHENTICATED: &str = "system:authenticated";

/// Published trust of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedTrust {
    client_ca: String,
    front_proxy_ca: String,
    /// Common names of front proxies; any if empty.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl PublishedTrust {
    pub async fn read(client: &Client) -> std::result::Result<Self, ClientError> {
        Ok(Self::of(&client.get::<ConfigMap>(NAMESPACE, NAME).await?))
    }

    fn of(map: &ConfigMap) -> Self {
        let text = |key: &str| map.data.as_ref().and_then(|data| data.get(key)).cloned().unwrap_or_default();
        let list = |key: &str| serde_json::from_str::<Vec<String>>(&text(key)).unwrap_or_default();
        Self {
            client_ca: text("client-ca-file"),
            front_proxy_ca: text("requestheader-client-ca-file"),
            allowed_names: list("requestheader-allowed-names"),
            user_headers: list("requestheader-username-headers"),
            uid_headers: list("requestheader-uid-headers"),
            group_headers: list("requestheader-group-headers"),
            extra_prefixes: list("requestheader-extra-headers-prefix"),
        }
    }

    pub fn client_trust(&self) -> std::result::Result<ClientTrust, ClusterError> {
        let parse = |pem: &str| {
            if pem.is_empty() { Ok(Vec::new()) } else { certificates_from_pem(pem) }
        };
        let bad = |reason| ClusterError::BadFile { path: format!("{NAMESPACE}/{NAME}").into(), reason };
        let client = parse(&self.client_ca).map_err(bad)?;
        let front_proxy = parse(&self.front_proxy_ca).map_err(bad)?;
        ClientTrust::new(&client, &front_proxy).map_err(ClusterError::Tls)
    }

    /// The user that a front proxy names; `None` if it names none.
    fn user_of_headers(&self, headers: &HeaderMap) -> Option<RemoteUser> {
        let values = |names: &[String]| -> Vec<String> {
            let found = names.iter().flat_map(|name| headers.get_all(name.as_str()).iter());
            found.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
        };
        let name = values(&self.user_headers).into_iter().find(|name| !name.is_empty())?;
        let mut user = RemoteUser {
            name,
            uid: values(&self.uid_headers).into_iter().next().unwrap_or_default(),
            groups: values(&self.group_headers),
            ..RemoteUser::default()
        };
        for key in headers.keys().map(HeaderName::as_str) {
            let of_prefix =
                |prefix: &String| key.strip_prefix(&prefix.to_ascii_lowercase()).map(str::to_owned);
            if let Some(extra) = self.extra_prefixes.iter().find_map(of_prefix) {
                let extra = percent_decode_str(&extra).decode_utf8_lossy().into_owned();
                user.extra.insert(extra, values(&[key.to_owned()]));
            }
        }
        if !user.groups.iter().any(|group| group == AUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        Some(user)
    }
}

/// Authenticates requests.
pub(crate) struct Delegated {
    pub access: Access,
    pub trust: ArcSwap<PublishedTrust>,
}

impl Delegated {
    pub fn new(client: Client, trust: PublishedTrust) -> Self {
        Self { access: Access::new(client), trust: ArcSwap::from_pointee(trust) }
    }

    /// The user of a request.
    pub async fn user(&self, headers: &HeaderMap, connection: &Arc<Connection>) -> Result<RemoteUser> {
        if let Some(presented) = &connection.certificates {
            let subject = presented.chain.first().and_then(|leaf| user_of_certificate(leaf).ok());
            if let Some(subject) = &subject
                && presented.front_proxy.is_trusted()
            {
                let trust = self.trust.load();
                let is_allowed =
                    trust.allowed_names.is_empty() || trust.allowed_names.contains(&subject.name);
                if let Some(user) = is_allowed.then(|| trust.user_of_headers(headers)).flatten() {
                    return Ok(user);
                }
            }
            if let Some(subject) = subject.filter(|_| presented.client.is_trusted()) {
                let groups = subject.groups.into_iter().chain([AUTHENTICATED.to_owned()]).collect();
                return Ok(RemoteUser { name: subject.name, groups, ..RemoteUser::default() });
            }
        }
        let header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match header.and_then(|value| value.strip_prefix("Bearer ")) {
            None => Ok(RemoteUser::anonymous()),
            Some(token) => self.access.user_of_token(token.trim()).await?.ok_or_else(Status::unauthorized),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn front_proxy_headers_name_the_user() {
        let list = |text: &str| vec![text.to_owned()];
        let trust = PublishedTrust {
            user_headers: list("X-Remote-User"),
            uid_headers: list("X-Remote-Uid"),
            group_headers: list("X-Remote-Group"),
            extra_prefixes: list("X-Remote-Extra-"),
            ..PublishedTrust::default()
        };
        let mut headers = HeaderMap::new();
        assert_eq!(trust.user_of_headers(&headers), None);
        for (name, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.org%2fk", "v"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let user = trust.user_of_headers(&headers).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["a", "b", AUTHENTICATED]);
        assert_eq!(user.extra["example.org/k"], ["v"]);
    }
}
