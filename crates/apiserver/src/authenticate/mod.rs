//! Who makes the request. One file per kind of credential.
//!
//! Asked in this order: front proxy, client certificate, bearer token (file, service account, bootstrap). The first
//! that knows the client decides; bad credentials are refused, none at all is `system:anonymous` if that is allowed.

mod bootstrap_token;
mod client_certificate;
mod front_proxy;
mod jwt;
mod service_account;
mod static_tokens;

pub use jwt::JwtError;
pub use service_account::{Bound, Claims, Reference, ServiceAccountConfig, ServiceAccountTokens};
pub use static_tokens::TokenFileError;

use crate::registry::Registry;
use crate::serve::Connection;
use crate::user::UserInfo;
use base::clock::Clock;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use machinery::status::{Result, Status};
use static_tokens::StaticTokens;
use std::path::PathBuf;
use std::sync::Arc;

/// What can be set.
#[derive(Clone, Debug)]
pub struct AuthenticationConfig {
    /// Requests without credentials are `system:anonymous`; otherwise they are refused at once.
    pub anonymous: bool,
    pub service_accounts: ServiceAccountConfig,
    /// A file of tokens, read at the start.
    pub token_file: Option<PathBuf>,
    pub bootstrap_tokens: bool,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self {
            anonymous: true,
            service_accounts: ServiceAccountConfig::default(),
            token_file: None,
            bootstrap_tokens: true,
        }
    }
}

/// A client that has proven who it is.
#[derive(Debug)]
pub struct Authenticated {
    pub user: UserInfo,
    /// Of those a token was checked for, the ones it is meant for; empty: it does not say.
    pub audiences: Vec<String>,
}

/// Why credentials do not count. For logs and token reviews; the client hears 401.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

pub struct Authentication {
    anonymous: bool,
    bootstrap_tokens: bool,
    pub service_accounts: ServiceAccountTokens,
    static_tokens: StaticTokens,
    registry: Arc<Registry>,
}

impl Authentication {
    pub fn new(
        config: AuthenticationConfig,
        registry: Arc<Registry>,
        clock: &Clock,
    ) -> Result<Self, TokenFileError> {
        let static_tokens = match &config.token_file {
            Some(path) => StaticTokens::read(path)?,
            None => StaticTokens::default(),
        };
        Ok(Self {
            anonymous: config.anonymous,
            bootstrap_tokens: config.bootstrap_tokens,
            service_accounts: ServiceAccountTokens::new(
                config.service_accounts,
                registry.clone(),
                clock.clone(),
            ),
            static_tokens,
            registry,
        })
    }

    /// The user of a request, or 401.
    pub async fn user(&self, connection: &Connection, headers: &HeaderMap) -> Result<Arc<UserInfo>> {
        let mut refusal = None;
        if let Some(certificates) = &connection.certificates {
            if certificates.front_proxy.is_trusted()
                && let Some(user) = front_proxy::user(headers)
            {
                return Ok(Arc::new(with_group(user)));
            }
            match client_certificate::user(connection, certificates) {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => {}
                Err(why) => refusal = Some(why),
            }
        }
        if let Some(token) = bearer(headers) {
            match self.token(token, None).await {
                Ok(found) => return Ok(Arc::new(with_group(found.user))),
                Err(why) => refusal = Some(why),
            }
        }
        match refusal {
            Some(Refusal(why)) => {
                tracing::info!(why, peer = ?connection.peer, "credentials refused");
                Err(Status::unauthorized())
            }
            None if self.anonymous => Ok(Arc::new(UserInfo::anonymous())),
            None => Err(Status::unauthorized()),
        }
    }

    /// The bearer of a token, which must be meant for one of `audiences` (by default this server's).
    pub async fn token(&self, token: &str, audiences: Option<&[String]>) -> Result<Authenticated, Refusal> {
        if let Some(found) = self.static_tokens.authenticate(token) {
            return Ok(found);
        }
        if let Some(found) = self.service_accounts.authenticate(token, audiences).await? {
            return Ok(found);
        }
        if self.bootstrap_tokens {
            let now = self.service_accounts.now();
            if let Some(found) = bootstrap_token::authenticate(&self.registry, token, now).await? {
                return Ok(found);
            }
        }
        Err(Refusal("invalid bearer token".to_owned()))
    }

    /// As [`Authentication::token`], the way requests see the user.
    pub async fn review(&self, token: &str, audiences: Option<&[String]>) -> Result<Authenticated, Refusal> {
        let found = self.token(token, audiences).await?;
        Ok(Authenticated { user: with_group(found.user), ..found })
    }
}

/// Whoever has proven something is `system:authenticated`.
fn with_group(mut user: UserInfo) -> UserInfo {
    let known = user.name == "system:anonymous"
        || user.is_in("system:authenticated")
        || user.is_in("system:unauthenticated");
    if !known {
        user.groups.push("system:authenticated".to_owned());
    }
    user
}

/// The token of an `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = header.split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or("");
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_headers() {
        for (header, want) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc def", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            assert_eq!(bearer(&headers), want, "{header:?}");
        }
    }
}
