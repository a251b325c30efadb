//! Registry authentication: passwords, and tokens from the realm that the registry names.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use http::{HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::challenge::Challenge;
use super::http::{Call, Connections, Origin};
use super::source::RegistryError;

/// Registry credentials. Empty fields are not set.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Credentials {
    pub username: String,
    pub password: String,
    /// `username:password` in base64, an alternative to the two fields.
    pub auth: String,
    /// Identity token, exchanged for access tokens like a password.
    pub identity_token: String,
    /// Registry token, sent unmodified.
    pub registry_token: String,
}

impl std::fmt::Debug for Credentials {
    /// Leaves secrets out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials of {:?}", self.username)
    }
}

/// Size limit of a token server's response.
const MAX_TOKEN_RESPONSE: usize = 1 << 20;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Token {
    token: String,
    access_token: String,
}

impl Credentials {
    /// User name and password, from whichever form is set.
    fn pair(&self) -> Option<(String, String)> {
        if !self.auth.is_empty() {
            let bytes = STANDARD.decode(&self.auth).or_else(|_| URL_SAFE.decode(&self.auth)).ok()?;
            let text = String::from_utf8(bytes).ok()?;
            let (name, password) = text.split_once(':')?;
            return Some((name.to_owned(), password.trim_end_matches('\0').to_owned()));
        }
        (!self.username.is_empty()).then(|| (self.username.clone(), self.password.clone()))
    }

    fn basic(&self) -> Option<HeaderValue> {
        let (name, password) = self.pair()?;
        secret(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }

    /// `Authorization` header to send before any challenge.
    pub(super) fn preemptive_header(&self) -> Option<HeaderValue> {
        if self.registry_token.is_empty() { None } else { secret(&format!("Bearer {}", self.registry_token)) }
    }
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Answers a challenge; `None` without suitable credentials.
pub(super) async fn answer(
    challenge: &Challenge,
    credentials: Option<&Credentials>,
    repository: &str,
    requested: &Origin,
    connections: &Connections,
) -> Result<Option<HeaderValue>, RegistryError> {
    let Challenge::Bearer { realm, service, scope } = challenge else {
        return Ok(credentials.and_then(Credentials::basic));
    };
    let origin = Origin::of(realm).ok_or_else(|| RegistryError::Realm(realm.clone()))?;
    // A registry used over TLS must not make the client send passwords in plain text.
    if requested.secure && !origin.secure {
        return Err(RegistryError::Realm(realm.clone()));
    }
    let scope = if scope.is_empty() { format!("repository:{repository}:pull") } else { scope.clone() };
    let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let refresh = credentials.map(|known| known.identity_token.as_str()).filter(|token| !token.is_empty());
    let call = match refresh {
        Some(token) => Call {
            method: Method::POST,
            url: realm.clone(),
            authorization: None,
            form: Some(format!(
                "grant_type=refresh_token&client_id=ferry&service={}&scope={}&refresh_token={}",
                escape(service),
                escape(&scope),
                escape(token)
            )),
            ..Call::default()
        },
        None => {
            let joint = if realm.contains('?') { '&' } else { '?' };
            let service =
                if service.is_empty() { String::new() } else { format!("service={}&", escape(service)) };
            Call {
                url: format!("{realm}{joint}{service}scope={}", escape(&scope)),
                authorization: credentials.and_then(Credentials::basic),
                ..Call::default()
            }
        }
    };
    let kind = if credentials.is_some() { "oauth" } else { "anonymous" };
    let failed = |reason: String| RegistryError::Token { kind, reason };
    let url = call.url.split('?').next().unwrap_or_default().to_owned();
    let method = call.method.clone();
    let answer = connections.send(call).await.map_err(|error| failed(error.to_string()))?;
    let status = answer.status();
    let body = answer.bytes(MAX_TOKEN_RESPONSE).await.map_err(|error| failed(error.to_string()))?;
    if !status.is_success() {
        return Err(failed(format!("unexpected status from {method} request to {url}: {status}")));
    }
    let token: Token = serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
    let token = if token.token.is_empty() { token.access_token } else { token.token };
    if token.is_empty() {
        return Err(failed("the response has no token".to_owned()));
    }
    Ok(secret(&format!("Bearer {token}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_all_forms_yield_user_and_password() {
        let plain = Credentials { username: "a".into(), password: "b:c".into(), ..Default::default() };
        assert_eq!(plain.pair(), Some(("a".into(), "b:c".into())));
        let joined = Credentials { auth: STANDARD.encode("a:b:c"), ..Default::default() };
        assert_eq!(joined.pair(), plain.pair());
        for bad in ["%%%", "YQ==", ""] {
            assert_eq!(Credentials { auth: bad.into(), ..Default::default() }.pair(), None, "{bad}");
        }
        assert!(!format!("{plain:?}").contains("b:c"));
    }
}
