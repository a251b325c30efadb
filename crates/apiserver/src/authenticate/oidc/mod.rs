//! Tokens of other issuers: OpenID Connect, with structured configuration.
//!
//! An issuer's keys are fetched when its first token comes and again when a token names a key that is not known; nobody
//! polls. What the claims mean is told by the configuration, by name or by expression.

pub mod config;
pub mod flags;
mod keys;
mod mapping;

use super::jwt::Unverified;
use super::{Authenticated, Refusal};
use crate::configuration::ConfigurationError;
use arc_swap::ArcSwap;
use base::clock::Clock;
use config::{ALGORITHMS, Configuration, JwtAuthenticator, Rules};
use keys::Keys;
use machinery::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How far clocks may differ for tokens that are not valid yet.
const NOT_BEFORE_LEEWAY: i64 = 5 * 60;

/// One issuer.
struct Issuer {
    config: JwtAuthenticator,
    rules: Rules,
    keys: Keys,
}

/// All issuers in use.
pub struct Oidc {
    issuers: ArcSwap<Vec<Issuer>>,
    file: Option<PathBuf>,
    clock: Clock,
}

impl Oidc {
    /// Of a configuration that has been checked; `file` is where it is from.
    pub fn new(configuration: Configuration, file: Option<PathBuf>, clock: &Clock) -> Result<Self, String> {
        let issuers = build(configuration)?;
        Ok(Self { issuers: ArcSwap::from_pointee(issuers), file, clock: clock.clone() })
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the issuers from the file again. If that fails, nothing changes.
    pub fn reload(&self) -> Result<(), ConfigurationError> {
        let Some(path) = &self.file else { return Ok(()) };
        let configuration = config::read(path)?;
        let issuers = build(configuration).map_err(|reason| ConfigurationError::invalid(path, reason))?;
        self.issuers.store(Arc::new(issuers));
        Ok(())
    }

    /// The user a token stands for; `None`: its issuer is not known here.
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
        let now = self.clock.now().as_second();
        let verified = issuer.verify(&parsed, &claims, now).await;
        verified.map_err(|why| Refusal(format!("oidc: verify token: {why}")))?;
        let user = mapping::user(&issuer.rules, &claims).map_err(|why| Refusal(format!("oidc: {why}")))?;
        Ok(Some(Authenticated { user, audiences: Vec::new() }))
    }
}

fn build(configuration: Configuration) -> Result<Vec<Issuer>, String> {
    let mut issuers = Vec::new();
    for (index, config) in configuration.jwt.into_iter().enumerate() {
        let rules = config.compile().map_err(|why| format!("jwt[{index}].{why}"))?;
        let keys = Keys::new(&config.issuer).map_err(|why| format!("jwt[{index}].issuer: {why}"))?;
        issuers.push(Issuer { config, rules, keys });
    }
    Ok(issuers)
}

impl Issuer {
    async fn verify(&self, token: &Unverified<'_>, claims: &Value, now: i64) -> Result<(), String> {
        let algorithm = token.algorithm();
        let allowed = match self.config.algorithms.as_slice() {
            [] => ALGORITHMS.contains(&algorithm),
            some => some.iter().any(|allowed| allowed == algorithm),
        };
        if !allowed {
            return Err(format!("oidc: malformed jwt: unexpected signature algorithm {algorithm:?}"));
        }
        let audiences = texts(&claims["aud"]);
        let wanted = &self.config.issuer.audiences;
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
        self.keys.verify(token).await.map_err(|why| format!("failed to verify signature: {why}"))
    }
}

/// A string or a list of strings.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
