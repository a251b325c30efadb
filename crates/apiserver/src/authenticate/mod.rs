//! Authentication, one file per kind of credential.
//!
//! Order: front proxy, client certificate, bearer token (file, service account, bootstrap, OpenID Connect, webhook).
//! The first authenticator that recognizes the client decides; invalid credentials are rejected, requests without any
//! are `system:anonymous` if that is allowed.

mod bearer;
mod bootstrap_token;
mod client_certificate;
mod external_signer;
mod front_proxy;
mod jwt;
mod key_ring;
mod legacy_token;
mod oidc;
mod public_key;
mod service_account;
mod static_tokens;
mod webhook;

pub use external_signer::{ExternalJwtMetrics, ExternalSignerError};
pub use jwt::{JwtError, SigningKey};
pub use key_ring::KeyFileError;
pub use oidc::JwtMetrics;
pub use oidc::flags::OidcFlags;
pub use service_account::{Bound, Claims, Reference, ServiceAccountConfig, ServiceAccountTokens};
pub use static_tokens::TokenFileError;
pub use webhook::WebhookTokenConfig;

use crate::configuration::ConfigurationError;
use crate::outbound::{KubeconfigError, read_kubeconfig};
use crate::registry::Registry;
use crate::serve::{Connection, Peer};
use crate::user::UserInfo;
use base::clock::Clock;
use base::metrics::{Histogram, Metrics, MetricsError};
use http::HeaderMap;
use machinery::status::{Result, Status};
use oidc::Oidc;
use oidc::config::{Anonymous, Configuration};
use static_tokens::StaticTokens;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use webhook::WebhookTokens;

/// Half an hour to a year.
const EXPIRATIONS: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Settings of authentication.
#[derive(Clone, Debug)]
pub struct AuthenticationConfig {
    /// Requests without credentials are `system:anonymous`; otherwise they are rejected immediately. `None`: not set,
    /// which allows them.
    pub anonymous: Option<bool>,
    pub service_accounts: ServiceAccountConfig,
    /// A token file, read at startup.
    pub token_file: Option<PathBuf>,
    pub bootstrap_tokens: bool,
    /// An `AuthenticationConfiguration`.
    pub file: Option<PathBuf>,
    /// One issuer described by flags.
    pub oidc: Option<OidcFlags>,
    pub webhook: Option<WebhookTokenConfig>,
    /// Common names that front proxies may have; empty: any signed by their CA.
    pub front_proxy_names: Vec<String>,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        Self {
            anonymous: None,
            service_accounts: ServiceAccountConfig::default(),
            token_file: None,
            bootstrap_tokens: true,
            file: None,
            oidc: None,
            webhook: None,
            front_proxy_names: Vec::new(),
        }
    }
}

/// Error of setting up authentication.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error("invalid OIDC issuer: {0}")]
    Oidc(String),
    #[error(
        "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file"
    )]
    AnonymousTwice,
    #[error("failed to set up the token webhook")]
    Webhook(#[from] KubeconfigError),
}

/// An authenticated client.
#[derive(Debug)]
pub struct Authenticated {
    pub user: UserInfo,
    /// Requested audiences that the token is valid for; empty: it has none.
    pub audiences: Vec<String>,
}

/// Reason of rejected credentials. For logs and token reviews; the client gets 401.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

pub struct Authentication {
    anonymous: Anonymous,
    bootstrap_tokens: bool,
    front_proxy_names: Vec<String>,
    pub service_accounts: ServiceAccountTokens,
    static_tokens: StaticTokens,
    pub oidc: Arc<Oidc>,
    webhook: Option<WebhookTokens>,
    registry: Arc<Registry>,
    /// Remaining lifetimes of client certificates.
    expiration: OnceLock<Histogram>,
}

impl Authentication {
    pub fn new(
        config: AuthenticationConfig,
        registry: Arc<Registry>,
        clock: &Clock,
    ) -> Result<Self, AuthenticationError> {
        let static_tokens = match &config.token_file {
            Some(path) => StaticTokens::read(path)?,
            None => StaticTokens::default(),
        };
        let configuration = match (&config.file, &config.oidc) {
            (Some(path), _) => oidc::config::read(path)?,
            (None, Some(flags)) => flags.configuration().map_err(AuthenticationError::Oidc)?,
            (None, None) => Configuration::default(),
        };
        let anonymous = anonymous(&config, &configuration, registry.authorization.always_allows())?;
        let oidc = Oidc::new(configuration, config.file, clock).map_err(AuthenticationError::Oidc)?;
        let webhook = match &config.webhook {
            Some(webhook) => Some(WebhookTokens::new(read_kubeconfig(&webhook.kubeconfig)?, webhook)),
            None => None,
        };
        Ok(Self {
            anonymous,
            bootstrap_tokens: config.bootstrap_tokens,
            front_proxy_names: config.front_proxy_names,
            service_accounts: ServiceAccountTokens::new(
                config.service_accounts,
                registry.clone(),
                clock.clone(),
            )?,
            static_tokens,
            oidc: Arc::new(oidc),
            webhook,
            registry,
            expiration: OnceLock::new(),
        })
    }

    /// Registers the metric of client certificates.
    pub fn observe(&self, metrics: &Metrics) -> Result<(), MetricsError> {
        let expiration = metrics.histogram(
            "apiserver_client_certificate_expiration_seconds",
            "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
            &EXPIRATIONS,
        )?;
        let _ = self.expiration.set(expiration);
        Ok(())
    }

    /// The user of a request, or 401.
    pub async fn user(
        &self,
        connection: &Connection,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Arc<UserInfo>> {
        let mut refusal = None;
        if let Some(certificates) = &connection.certificates {
            match front_proxy::user(
                headers,
                certificates,
                &self.front_proxy_names,
                self.service_accounts.now(),
            ) {
                Ok(Some(user)) => return Ok(Arc::new(with_group(user))),
                Ok(None) => {}
                Err(why) => refusal = Some(why),
            }
            match client_certificate::user(connection, certificates, self.service_accounts.now()) {
                Ok(Some((user, left))) => {
                    // Components of this process renew their certificates themselves.
                    if let (Some(expiration), Peer::Remote(_)) = (self.expiration.get(), &connection.peer) {
                        expiration.observe(left as f64);
                    }
                    return Ok(user);
                }
                Ok(None) => {}
                Err(why) => refusal = Some(why),
            }
        }
        match bearer::token(headers) {
            Ok(Some(token)) => match self.token(&token, None).await {
                Ok(found) => return Ok(Arc::new(with_group(found.user))),
                Err(why) => refusal = Some(why),
            },
            Ok(None) => {}
            Err(why) => refusal = Some(why),
        }
        match refusal {
            Some(Refusal(why)) => {
                tracing::info!(why, peer = ?connection.peer, "credentials rejected");
                Err(Status::unauthorized())
            }
            None if self.allows_anonymous(path) => Ok(Arc::new(UserInfo::anonymous())),
            None => Err(Status::unauthorized()),
        }
    }

    /// Removes credentials that handlers could forward from the headers of an authenticated request.
    pub fn remove_credentials(headers: &mut HeaderMap) {
        bearer::remove_protocols(headers);
    }

    fn allows_anonymous(&self, path: &str) -> bool {
        let conditions = &self.anonymous.conditions;
        self.anonymous.enabled
            && (conditions.is_empty() || conditions.iter().any(|condition| condition.path == path))
    }

    /// The user of a token, which must be valid for one of `audiences` (by default this server's).
    pub async fn token(&self, token: &str, audiences: Option<&[String]>) -> Result<Authenticated, Refusal> {
        if let Some(found) = self.static_tokens.authenticate(token) {
            return Ok(found);
        }
        // An authenticator may reject a token of another one: all are tried, and the first reason is reported.
        let mut refusal = None;
        match self.service_accounts.authenticate(token, audiences).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(why) => refusal = Some(why),
        }
        if self.bootstrap_tokens {
            let now = self.service_accounts.now();
            if let Some(found) = bootstrap_token::authenticate(&self.registry, token, now).await? {
                return Ok(found);
            }
        }
        match self.oidc.authenticate(token).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(why) => refusal = refusal.or(Some(why)),
        }
        if let Some(webhook) = &self.webhook {
            let own = &self.service_accounts.config.audiences;
            match webhook.authenticate(token, audiences, own).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(why) => refusal = refusal.or(Some(why)),
            }
        }
        Err(refusal.unwrap_or_else(|| Refusal("invalid bearer token".to_owned())))
    }

    /// As [`Authentication::token`], with the groups of authenticated requests.
    pub async fn review(&self, token: &str, audiences: Option<&[String]>) -> Result<Authenticated, Refusal> {
        let found = self.token(token, audiences).await?;
        Ok(Authenticated { user: with_group(found.user), ..found })
    }
}

/// Rule for requests without credentials. As in Kubernetes, the block of a configuration file alone decides; the
/// flag, or its default, is ignored with AlwaysAllow, which would allow anonymous requests everything.
fn anonymous(
    config: &AuthenticationConfig,
    configuration: &Configuration,
    always_allows: bool,
) -> Result<Anonymous, AuthenticationError> {
    if let Some(anonymous) = &configuration.anonymous {
        return match config.anonymous {
            Some(_) => Err(AuthenticationError::AnonymousTwice),
            None => Ok(anonymous.clone()),
        };
    }
    let mut enabled = config.anonymous.unwrap_or(true);
    if enabled && always_allows {
        tracing::warn!(
            "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use a different authorizer"
        );
        enabled = false;
    }
    Ok(Anonymous { enabled, conditions: Vec::new() })
}

/// Adds `system:authenticated`.
fn with_group(mut user: UserInfo) -> UserInfo {
    let known = user.name == "system:anonymous"
        || user.is_in("system:authenticated")
        || user.is_in("system:unauthenticated");
    if !known {
        user.groups.push("system:authenticated".to_owned());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Admission;
    use crate::authorize::AuthorizationConfig;
    use crate::registry::services::{ServiceConfig, Services};
    use crate::serve::ClientTrust;
    use std::path::Path;
    use store::{Embedded, EmbeddedOptions};

    /// Reports whether a request without credentials is served with this configuration; errors are startup errors.
    async fn serves_anonymous(
        authentication: AuthenticationConfig,
        authorization: &AuthorizationConfig,
        path: &str,
    ) -> Result<bool, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let registry = Arc::new(Registry::with_authorizers(
            Arc::new(store),
            Admission::default(),
            Services::new(ServiceConfig::default()),
            authorization.choices().expect("a chain"),
            String::new(),
        ));
        let authentication = Authentication::new(authentication, registry, &Clock::system())
            .map_err(|error| error.to_string())?;
        let trust = ClientTrust::new(&[], &[]).expect("no authorities");
        let connection = Connection::in_process(Vec::new(), &trust);
        Ok(authentication.user(&connection, &HeaderMap::new(), path).await.is_ok())
    }

    fn authorization_file(directory: &Path, modes: &[&str]) -> PathBuf {
        let rows: Vec<String> =
            modes.iter().map(|mode| format!("- {{type: {mode}, name: {}}}\n", mode.to_lowercase())).collect();
        let path = directory.join("authorization.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";
        std::fs::write(&path, format!("{head}{}", rows.concat())).expect("written");
        path
    }

    /// Outcome for a request without credentials.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Access {
        Served,
        Refused,
        /// Startup fails.
        NoStart,
    }

    /// Every combination of authorizers, the flag and the block of a configuration file. With AlwaysAllow among the
    /// authorizers, by flag or by file, requests without credentials are served only if a block allows them.
    #[tokio::test]
    async fn anonymous_requests_with_always_allow_are_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let chains: [&[&str]; 9] = [
            &["Node", "RBAC"],
            &["RBAC"],
            &["AlwaysDeny"],
            &["AlwaysAllow"],
            &["RBAC", "AlwaysAllow"],
            &["AlwaysAllow", "RBAC"],
            &["AlwaysAllow", "Node", "RBAC"],
            &["Node", "AlwaysAllow", "RBAC"],
            &["AlwaysDeny", "AlwaysAllow"],
        ];
        let blocks: [(Option<&str>, &str, bool); 7] = [
            (None, "/api", true),
            (Some(""), "/api", true),
            (Some("anonymous: {enabled: true}\n"), "/api", true),
            (Some("anonymous: {enabled: false}\n"), "/api", false),
            (Some("anonymous: {enabled: true, conditions: [{path: /livez}]}\n"), "/livez", true),
            (Some("anonymous: {enabled: true, conditions: [{path: /livez}]}\n"), "/api", false),
            (Some("anonymous: {enabled: true, conditions: [{path: /livez}]}\n"), "/livez/ping", false),
        ];
        let authentication_file = directory.path().join("authentication.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
        for modes in chains {
            let file = authorization_file(directory.path(), modes);
            let by_flags = AuthorizationConfig {
                modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
                ..AuthorizationConfig::default()
            };
            let by_file = AuthorizationConfig { file: Some(file), ..AuthorizationConfig::default() };
            let open = modes.contains(&"AlwaysAllow");
            for (authorization, by) in [(&by_flags, "flags"), (&by_file, "file")] {
                for anonymous in [None, Some(true), Some(false)] {
                    for (section, path, lets) in blocks {
                        let mut config =
                            AuthenticationConfig { anonymous, ..AuthenticationConfig::default() };
                        if let Some(section) = section {
                            std::fs::write(&authentication_file, format!("{head}{section}"))
                                .expect("written");
                            config.file = Some(authentication_file.clone());
                        }
                        let has_block = section.is_some_and(|section| !section.is_empty());
                        let expected = match (has_block, anonymous) {
                            (true, Some(_)) => Access::NoStart,
                            (true, None) if lets => Access::Served,
                            (false, None | Some(true)) if !open => Access::Served,
                            _ => Access::Refused,
                        };
                        let found = match serves_anonymous(config, authorization, path).await {
                            Ok(true) => Access::Served,
                            Ok(false) => Access::Refused,
                            Err(why) => {
                                assert!(why.contains("--anonymous-auth flag cannot be set"), "{why}");
                                Access::NoStart
                            }
                        };
                        assert_eq!(found, expected, "{modes:?} by {by}, {anonymous:?} {section:?} {path}");
                    }
                }
            }
        }
    }
}
