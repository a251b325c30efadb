//! External signer of service account tokens: a plugin behind a Unix socket that signs, and returns the verification
//! keys.
//!
//! Keys are fetched at startup, when the plugin's refresh hint expires, and when a token names an unknown key;
//! concurrent fetches are shared and rate-limited, so that tokens with invented key names cannot flood the plugin.

mod messages;
mod metrics;
#[cfg(test)]
mod tests;

pub use metrics::ExternalJwtMetrics;

use super::key_ring::{KeyRing, VerificationKey};
use super::public_key::PublicKey;
use super::service_account::ServiceAccountTokens;
use crate::unix_grpc::{GrpcError, UnixGrpc};
use base::tasks::TaskGroup;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use messages::{
    FetchKeysRequest, FetchKeysResponse, MetadataRequest, MetadataResponse, SignJwtRequest, SignJwtResponse,
};
use parking_lot::Mutex;
use prost::Message;
use serde::Deserialize;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::time::Instant;

const SERVICE: &str = "v1.ExternalJWTSigner";
/// Time limit of fetching keys at startup and periodically.
const FETCH_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a call within a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const METADATA_LIMIT: Duration = Duration::from_secs(10);
/// Shortest time between fetches caused by unknown keys.
const PAUSE: Duration = Duration::from_secs(1);
/// Retry interval of fetching keys.
const RETRY: Duration = Duration::from_secs(10);
/// Longest refresh interval, whatever the plugin's hint.
const MAX_REFRESH_INTERVAL: i64 = 365 * 24 * 3600;
const MAX_KEYS_RESPONSE: usize = 4 << 20;
const MAX_SIGN_RESPONSE: usize = 64 << 10;
const MAX_KEY_ID: usize = 1024;
/// Shortest lifetime of a token.
const MIN_LIFETIME: i64 = 600;
const ALGORITHMS: [&str; 4] = ["RS256", "ES256", "ES384", "ES512"];

#[derive(Debug, thiserror::Error)]
pub enum ExternalSignerError {
    #[error("{action}")]
    Call { action: &'static str, source: GrpcError },
    #[error("while fetching token verification keys: {0}")]
    Keys(String),
    #[error("while validating header: {0}")]
    Header(String),
    #[error("empty signature returned")]
    EmptySignature,
    #[error("returned signature is not base64")]
    Signature,
    #[error("{0}")]
    Expiration(String),
}

pub struct ExternalSigner {
    grpc: UnixGrpc,
    /// Start of the last fetch; one runs at a time.
    fetching: tokio::sync::Mutex<Option<Instant>>,
    next_refresh: Mutex<Instant>,
    /// Time limit of a call within a request.
    request_limit: Duration,
    /// Longest lifetime of tokens that the plugin signs.
    longest: OnceLock<i64>,
    metrics: OnceLock<ExternalJwtMetrics>,
}

/// Header of a signed token: exactly these fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    #[serde(default)]
    alg: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    typ: String,
}

impl ExternalSigner {
    pub fn new(socket: &Path) -> Self {
        Self {
            grpc: UnixGrpc::new(socket, SERVICE),
            fetching: tokio::sync::Mutex::default(),
            next_refresh: Mutex::new(Instant::now()),
            request_limit: REQUEST_LIMIT,
            longest: OnceLock::new(),
            metrics: OnceLock::new(),
        }
    }

    /// Sets the metrics.
    pub fn observe(&self, metrics: ExternalJwtMetrics) {
        // Later calls have no effect.
        let _ = self.metrics.set(metrics);
    }

    /// Longest lifetime of tokens that the plugin signs, once known.
    pub fn longest(&self) -> Option<i64> {
        self.longest.get().copied()
    }

    /// Seconds until the next fetch of the keys.
    pub fn cache_age(&self) -> u64 {
        self.next_refresh.lock().saturating_duration_since(Instant::now()).as_secs()
    }

    async fn call<T: Message + Default + 'static>(
        &self,
        method: &'static str,
        request: impl Message + 'static,
        most: usize,
        limit: Duration,
    ) -> Result<T, GrpcError> {
        let begin = Instant::now();
        let outcome = tokio::time::timeout(limit, self.grpc.call(method, request, most)).await;
        let outcome =
            outcome.unwrap_or_else(|_| Err(GrpcError::new("DeadlineExceeded", "context deadline exceeded")));
        if let Some(metrics) = self.metrics.get() {
            let code = outcome.as_ref().err().map_or("OK", |error| error.code);
            metrics.called(&self.grpc.method(method), code, begin.elapsed());
        }
        outcome
    }

    async fn fetch(&self, limit: Duration) -> Result<Vec<VerificationKey>, ExternalSignerError> {
        let action = "while getting externally supported jwt signing keys";
        let answer = self.call("FetchKeys", FetchKeysRequest {}, MAX_KEYS_RESPONSE, limit).await;
        let answer = answer.map_err(|source| ExternalSignerError::Call { action, source });
        let found = answer.and_then(|answer: FetchKeysResponse| {
            let keys = keys_of(&answer).map_err(ExternalSignerError::Keys)?;
            Ok((keys, answer.refresh_hint_seconds, answer.data_timestamp.map_or(0, |time| time.seconds)))
        });
        if let Some(metrics) = self.metrics.get() {
            metrics.fetched(&found.as_ref().map(|(_, _, timestamp)| *timestamp));
        }
        let (keys, hint, _) = found?;
        let hint = u64::try_from(hint.min(MAX_REFRESH_INTERVAL)).unwrap_or(1);
        *self.next_refresh.lock() = Instant::now() + Duration::from_secs(hint);
        Ok(keys)
    }

    /// Header and signature for a base64 payload.
    async fn sign(&self, claims: &str) -> Result<(SignJwtResponse, Header), ExternalSignerError> {
        let request = SignJwtRequest { claims: claims.to_owned() };
        let answer = self.call("Sign", request, MAX_SIGN_RESPONSE, self.request_limit).await;
        let answer: SignJwtResponse =
            answer.map_err(|source| ExternalSignerError::Call { action: "while signing jwt", source })?;
        let header = header_of(&answer.header).map_err(ExternalSignerError::Header)?;
        if answer.signature.is_empty() {
            return Err(ExternalSignerError::EmptySignature);
        }
        if URL_SAFE_NO_PAD.decode(&answer.signature).is_err() {
            return Err(ExternalSignerError::Signature);
        }
        Ok((answer, header))
    }
}

fn keys_of(answer: &FetchKeysResponse) -> Result<Vec<VerificationKey>, String> {
    let hint = answer.refresh_hint_seconds;
    if hint <= 0 {
        return Err(format!("found invalid refresh hint ({hint}s)"));
    }
    if answer.keys.is_empty() {
        return Err("found no keys".to_owned());
    }
    let time = answer.data_timestamp.as_ref().ok_or("invalid data timestamp: invalid nil Timestamp")?;
    if !time.is_valid() {
        return Err(format!(
            "invalid data timestamp: timestamp ({}s, {}ns) is out of range",
            time.seconds, time.nanos
        ));
    }
    let key = |key: &messages::Key| {
        if key.key_id.is_empty() || key.key_id.len() > MAX_KEY_ID {
            let shown: String = key.key_id.chars().take(64).collect();
            return Err(format!("found invalid public key id {shown:?}"));
        }
        if key.key.is_empty() {
            return Err("found empty public key".to_owned());
        }
        let public =
            PublicKey::from_spki(&key.key).ok_or("while parsing external public keys: not a usable key")?;
        Ok(VerificationKey {
            id: key.key_id.clone(),
            key: public,
            is_hidden: key.exclude_from_oidc_discovery,
        })
    };
    answer.keys.iter().map(key).collect()
}

fn header_of(text: &str) -> Result<Header, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| format!("while unwrapping header: {error}"))?;
    let header: Header =
        serde_json::from_slice(&bytes).map_err(|error| format!("while parsing header JSON: {error}"))?;
    if header.typ != "JWT" {
        return Err("bad type".to_owned());
    }
    if header.kid.is_empty() {
        return Err("key id missing".to_owned());
    }
    if header.kid.len() > MAX_KEY_ID {
        return Err("key id longer than 1 kb".to_owned());
    }
    if !ALGORITHMS.contains(&header.alg.as_str()) {
        return Err(format!("bad signing algorithm {:?}", header.alg));
    }
    Ok(header)
}

impl ServiceAccountTokens {
    /// Fetches keys and limits of the external signer, if configured. Waits until the plugin is available.
    pub async fn start_external(&self) -> Result<(), ExternalSignerError> {
        let Some(external) = &self.external else { return Ok(()) };
        let deadline = Instant::now() + FETCH_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.refresh(external, left).await {
                Err(ExternalSignerError::Call { source, .. })
                    if source.code == "Unavailable" && left > PAUSE => {}
                outcome => break outcome?,
            }
        }
        let answer = external.call("Metadata", MetadataRequest {}, MAX_SIGN_RESPONSE, METADATA_LIMIT).await;
        let action = "while setting up external-jwt-signer";
        let answer: MetadataResponse =
            answer.map_err(|source| ExternalSignerError::Call { action, source })?;
        let longest = answer.max_token_expiration_seconds;
        if longest < MIN_LIFETIME {
            return Err(ExternalSignerError::Expiration(format!(
                "max token life supported by external-jwt-signer ({longest}s) is less than acceptable (min {MIN_LIFETIME}s)"
            )));
        }
        if let Some(wanted) = self.config.max_expiration_seconds.filter(|wanted| *wanted > longest) {
            return Err(ExternalSignerError::Expiration(format!(
                "service-account-max-token-expiration cannot be set longer than the token expiration supported by service-account-signing-endpoint: {wanted}s > {longest}s"
            )));
        }
        // Later calls have no effect.
        let _ = external.longest.set(longest);
        Ok(())
    }

    /// Refreshes the keys of the external signer until the task group stops.
    pub async fn follow_external(&self, group: TaskGroup) {
        let Some(external) = &self.external else { return };
        let mut due = *external.next_refresh.lock();
        loop {
            if group.until_stopped(tokio::time::sleep_until(due)).await.is_none() {
                return;
            }
            due = match self.refresh(external, FETCH_LIMIT).await {
                Ok(()) => *external.next_refresh.lock(),
                Err(error) => {
                    let error = base::errors::chain(&error);
                    tracing::error!(
                        error,
                        "failed to fetch keys of the external signer, keeping the known keys"
                    );
                    Instant::now() + RETRY
                }
            };
        }
    }

    /// Fetches the keys, unless another fetch has started since this call.
    async fn refresh(&self, external: &ExternalSigner, limit: Duration) -> Result<(), ExternalSignerError> {
        let called_at = Instant::now();
        let mut fetching = external.fetching.lock().await;
        if let Some(began) = *fetching {
            if began > called_at {
                return Ok(());
            }
            tokio::time::sleep_until(began + PAUSE).await;
        }
        *fetching = Some(Instant::now());
        let keys = external.fetch(limit).await?;
        self.replace_keys(KeyRing::external(keys));
        Ok(())
    }

    /// Fetches the keys if a token names an unknown one.
    pub(super) async fn fetch_unknown_key(&self, key_id: &str) {
        let Some(external) = &self.external else { return };
        let is_known = self.current().is_some_and(|keys| keys.has_key(key_id));
        if is_known {
            return;
        }
        if let Err(error) = self.refresh(external, external.request_limit).await {
            let error = base::errors::chain(&error);
            tracing::warn!(error, "failed to fetch keys of the external signer");
        }
    }

    /// A token signed by the external signer.
    pub(super) async fn sign_externally(
        &self,
        external: &ExternalSigner,
        claims: &str,
    ) -> Result<String, ExternalSignerError> {
        let payload = URL_SAFE_NO_PAD.encode(claims);
        let outcome = self.assemble(external, &payload).await;
        if let Some(metrics) = external.metrics.get() {
            metrics.signed(&outcome);
        }
        outcome
    }

    async fn assemble(
        &self,
        external: &ExternalSigner,
        payload: &str,
    ) -> Result<String, ExternalSignerError> {
        let (answer, header) = external.sign(payload).await?;
        self.fetch_unknown_key(&header.kid).await;
        if self.current().is_some_and(|keys| keys.is_excluded(&header.kid)) {
            let kid = header.kid;
            return Err(ExternalSignerError::Header(format!(
                "key used for signing JWT (kid: {kid}) is excluded from OIDC discovery docs"
            )));
        }
        Ok(format!("{}.{payload}.{}", answer.header, answer.signature))
    }
}
