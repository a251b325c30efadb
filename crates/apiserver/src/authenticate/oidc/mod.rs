//! Tokens of other issuers: OpenID Connect, with structured configuration.
//!
//! An issuer's keys are fetched for its first token and again when a token names an unknown key; there is no polling.
//! The configuration maps claims to users, by name or by expression.

pub mod config;
mod distributed;
pub mod flags;
mod keys;
mod mapping;
mod metrics;

pub use metrics::JwtMetrics;

use super::jwt::Unverified;
use super::{Authenticated, Refusal};
use crate::configuration::ConfigurationError;
use crate::user::UserInfo;
use arc_swap::ArcSwap;
use base::clock::Clock;
use config::{ALGORITHMS, Configuration, JwtAuthenticator, Rules};
use distributed::ClaimResolver;
use keys::Keys;
use machinery::Value;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Tolerated clock skew for tokens that are not valid yet.
const NOT_BEFORE_LEEWAY: i64 = 5 * 60;

/// Lifetime and capacity of the cache of distributed claims.
const EXPANDED: Duration = Duration::from_secs(10);
const MAX_EXPANDED: usize = 1024;

/// Claims and the time of their expansion.
type Expanded = (Instant, Arc<Value>);

/// One issuer.
struct Issuer {
    config: JwtAuthenticator,
    rules: Rules,
    keys: Keys,
    resolver: Option<ClaimResolver>,
    /// Claims including distributed ones, by hash of the token.
    expanded: Mutex<HashMap<[u8; 32], Expanded>>,
}

/// All issuers in use.
pub struct Oidc {
    issuers: ArcSwap<Vec<Issuer>>,
    file: Option<PathBuf>,
    clock: Clock,
    metrics: Arc<OnceLock<JwtMetrics>>,
}

impl Oidc {
    /// Builds the issuers of a validated configuration, which is from `file`.
    pub fn new(configuration: Configuration, file: Option<PathBuf>, clock: &Clock) -> Result<Self, String> {
        let metrics = Arc::default();
        let issuers = build(configuration, &metrics)?;
        Ok(Self { issuers: ArcSwap::from_pointee(issuers), file, clock: clock.clone(), metrics })
    }

    /// Sets the metrics.
    pub fn observe(&self, metrics: JwtMetrics) {
        // Later calls have no effect.
        let _ = self.metrics.set(metrics);
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reloads the issuers from the file. If that fails, nothing changes.
    pub fn reload(&self) -> Result<(), ConfigurationError> {
        let Some(path) = &self.file else { return Ok(()) };
        let configuration = config::read(path)?;
        let issuers = build(configuration, &self.metrics)
            .map_err(|reason| ConfigurationError::invalid(path, reason))?;
        let urls: Vec<String> = issuers.iter().map(|issuer| issuer.config.issuer.url.clone()).collect();
        let old = self.issuers.swap(Arc::new(issuers));
        if let Some(metrics) = self.metrics.get() {
            let gone = old.iter().map(|issuer| &issuer.config.issuer.url).filter(|url| !urls.contains(url));
            gone.for_each(|url| metrics.forget(url));
        }
        Ok(())
    }

    /// The user of a token; `None` if its issuer is unknown.
    pub async fn authenticate(&self, token: &str) -> Result<Option<Authenticated>, Refusal> {
        let issuers = self.issuers.load_full();
        if issuers.is_empty() {
            return Ok(None);
        }
        let Some(parsed) = Unverified::parse(token) else { return Ok(None) };
        let Ok(claims) = serde_json::from_slice::<Value>(&parsed.payload) else { return Ok(None) };
        let Some(issuer) = issuers.iter().find(|issuer| claims["iss"] == issuer.config.issuer.url.as_str())
        else {
            return Ok(None);
        };
        let (now, begin) = (self.clock.now().as_second(), Instant::now());
        let user = issuer.user(token, &parsed, claims, now).await;
        if let Some(metrics) = self.metrics.get() {
            metrics.authenticated(&issuer.config.issuer.url, user.is_ok(), begin.elapsed());
        }
        let user = user.map_err(|why| Refusal(format!("oidc: {why}")))?;
        Ok(Some(Authenticated { user, audiences: Vec::new() }))
    }
}

fn build(configuration: Configuration, metrics: &Arc<OnceLock<JwtMetrics>>) -> Result<Vec<Issuer>, String> {
    let mut issuers = Vec::new();
    for (index, config) in configuration.jwt.into_iter().enumerate() {
        let rules = config.compile().map_err(|why| format!("jwt[{index}].{why}"))?;
        let keys = Keys::new(&config.issuer, Arc::clone(metrics))
            .map_err(|why| format!("jwt[{index}].issuer: {why}"))?;
        let resolver = ClaimResolver::of(&config, rules.groups.as_ref());
        issuers.push(Issuer { config, rules, keys, resolver, expanded: Mutex::default() });
    }
    Ok(issuers)
}

impl Issuer {
    /// The user of a token; the error is the reason for its rejection.
    async fn user(
        &self,
        token: &str,
        parsed: &Unverified<'_>,
        claims: Value,
        now: i64,
    ) -> Result<UserInfo, String> {
        check(&self.config, &self.keys, parsed, &claims, now)
            .await
            .map_err(|why| format!("verify token: {why}"))?;
        let claims = self
            .expand(token, claims, now)
            .await
            .map_err(|why| format!("could not expand distributed claims: {why}"))?;
        mapping::user(&self.rules, &claims)
    }

    /// Claims including distributed ones.
    async fn expand(&self, token: &str, mut claims: Value, now: i64) -> Result<Arc<Value>, String> {
        let Some(resolver) = self.resolver.as_ref().filter(|_| claims.get(distributed::NAMES).is_some())
        else {
            return Ok(Arc::new(claims));
        };
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some((when, known)) = self.expanded.lock().get(&key)
            && when.elapsed() < EXPANDED
        {
            return Ok(Arc::clone(known));
        }
        resolver.expand(&self.config, &mut claims, now).await?;
        let claims = Arc::new(claims);
        let mut expanded = self.expanded.lock();
        if expanded.len() >= MAX_EXPANDED {
            expanded.clear();
        }
        expanded.insert(key, (Instant::now(), Arc::clone(&claims)));
        Ok(claims)
    }
}

/// Checks everything about a token except the configured rules.
async fn check(
    config: &JwtAuthenticator,
    keys: &Keys,
    token: &Unverified<'_>,
    claims: &Value,
    now: i64,
) -> Result<(), String> {
    let algorithm = token.algorithm();
    let allowed = match config.algorithms.as_slice() {
        [] => ALGORITHMS.contains(&algorithm),
        some => some.iter().any(|allowed| allowed == algorithm),
    };
    if !allowed {
        return Err(format!("oidc: malformed jwt: unexpected signature algorithm {algorithm:?}"));
    }
    let audiences = texts(&claims["aud"]);
    let wanted = &config.issuer.audiences;
    if !audiences.iter().any(|audience| wanted.contains(audience)) {
        let quoted = crate::authorize::rules::quoted;
        return Err(format!("oidc: expected audience in {} got {}", quoted(wanted), quoted(&audiences)));
    }
    let time = |claim: &str| claims[claim].as_f64().map(|seconds| seconds as i64);
    let expiry = time("exp").ok_or("oidc: token has no expiry")?;
    if expiry < now {
        return Err(format!("oidc: token is expired (Token Expiry: {expiry})"));
    }
    if time("nbf").is_some_and(|begin| now + NOT_BEFORE_LEEWAY < begin) {
        return Err("oidc: current time is before the nbf (not before) time".to_owned());
    }
    keys.verify(token).await.map_err(|why| format!("failed to verify signature: {why}"))
}

/// A string or a list of strings.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
