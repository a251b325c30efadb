//! Keys of an issuer, located by discovery and cached until a token names an unknown one.

use super::config::Issuer;
use super::metrics::JwtMetrics;
use crate::authenticate::jwt::Unverified;
use crate::authenticate::public_key::PublicKey;
use crate::outbound::{Client, Target, TargetError, Trust};
use machinery::Value;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const WELL_KNOWN: &str = "/.well-known/openid-configuration";
/// Time limit of an issuer's response.
const LIMIT: Duration = Duration::from_secs(10);
/// Shortest time between fetches from an issuer, whatever tokens arrive.
const PAUSE: Duration = Duration::from_secs(10);

struct KeySet {
    /// With their key IDs.
    keys: Vec<(String, PublicKey)>,
}

pub struct Keys {
    issuer: String,
    discovery: Client,
    authorities: Option<Vec<u8>>,
    metrics: Arc<OnceLock<JwtMetrics>>,
    known: Mutex<Option<Arc<KeySet>>>,
    /// Time and error of the last fetch. One fetch runs at a time.
    last_fetch: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

impl Keys {
    pub fn new(issuer: &Issuer, metrics: Arc<OnceLock<JwtMetrics>>) -> Result<Self, TargetError> {
        let authorities =
            Some(issuer.certificate_authority.clone().into_bytes()).filter(|authority| !authority.is_empty());
        let url = match &issuer.discovery_url {
            Some(url) => url.clone(),
            None => format!("{}{WELL_KNOWN}", issuer.url.trim_end_matches('/')),
        };
        let trust = Trust { authorities: authorities.clone().into(), ..Trust::default() };
        Ok(Self {
            issuer: issuer.url.clone(),
            discovery: Client::new(Target::new(&url, &trust)?),
            authorities,
            metrics,
            known: Mutex::new(None),
            last_fetch: tokio::sync::Mutex::new(None),
        })
    }

    /// Verifies the token's signature with the issuer's keys.
    pub async fn verify(&self, token: &Unverified<'_>) -> Result<(), String> {
        let known = self.known.lock().clone();
        if let Some(keys) = &known
            && let Some(outcome) = keys.verify(token)
        {
            return outcome.map_err(str::to_owned);
        }
        let fetched = self.fetch(known.as_ref()).await?;
        fetched.verify(token).unwrap_or(Err("no keys match the token")).map_err(str::to_owned)
    }

    /// The issuer's current keys; `seen` were not sufficient.
    async fn fetch(&self, seen: Option<&Arc<KeySet>>) -> Result<Arc<KeySet>, String> {
        let mut last_fetch = self.last_fetch.lock().await;
        // Another request may have fetched while this one waited for the lock.
        let newest = self.known.lock().clone();
        if let Some(newest) = &newest
            && seen.is_none_or(|seen| !Arc::ptr_eq(seen, newest))
        {
            return Ok(newest.clone());
        }
        if let Some((when, error)) = &*last_fetch
            && when.elapsed() < PAUSE
        {
            let error = error.clone().unwrap_or_else(|| "no keys match the token".to_owned());
            return newest.ok_or(error);
        }
        let outcome = self.fetch_keys().await;
        *last_fetch = Some((Instant::now(), outcome.as_ref().err().cloned()));
        let keys = Arc::new(outcome?);
        *self.known.lock() = Some(keys.clone());
        Ok(keys)
    }

    async fn fetch_keys(&self) -> Result<KeySet, String> {
        let document = self.discovery.get("", LIMIT).await.map_err(|error| error.chain())?;
        let issuer = document["issuer"].as_str().unwrap_or("");
        if issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {issuer:?}",
                self.issuer
            ));
        }
        let url = document["jwks_uri"].as_str().ok_or("provider metadata has no jwks_uri")?;
        let trust = Trust { authorities: self.authorities.clone().into(), ..Trust::default() };
        let client = Client::new(Target::new(url, &trust).map_err(|error| error.to_string())?);
        let fetched = client.get_bytes("", LIMIT).await.map_err(|error| error.chain());
        let found = fetched.and_then(|bytes| {
            let decoded = machinery::codec::json::decode(&bytes).map_err(|error| error.to_string())?;
            Ok((bytes, decoded.value))
        });
        if let Some(metrics) = self.metrics.get() {
            metrics.fetched(&self.issuer, found.as_ref().ok().map(|(bytes, _)| &bytes[..]));
        }
        let (_, found) = found.map_err(|why| format!("fetching keys {why}"))?;
        Ok(KeySet::of(&found))
    }
}

impl KeySet {
    fn of(document: &Value) -> Self {
        let rows = document["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let for_signing = |row: &&Value| row["use"].as_str().is_none_or(|purpose| purpose == "sig");
        let keys = rows
            .iter()
            .filter(for_signing)
            .filter_map(|row| Some((row["kid"].as_str().unwrap_or("").to_owned(), PublicKey::from_jwk(row)?)))
            .collect();
        Self { keys }
    }

    /// `None` if the token names another key.
    fn verify(&self, token: &Unverified<'_>) -> Option<Result<(), &'static str>> {
        let id = token.key_id();
        let mut outcome = None;
        for (name, key) in self.keys.iter().filter(|(name, _)| id.is_empty() || name == id) {
            match token.verify(key) {
                Ok(()) => return Some(Ok(())),
                // A token whose named key did not sign it is invalid; newer keys cannot change that.
                Err(why) if !id.is_empty() && name == id => outcome = Some(Err(why)),
                Err(_) => {}
            }
        }
        outcome
    }
}
