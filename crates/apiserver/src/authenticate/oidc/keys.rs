//! The keys of an issuer: where they are is found by discovery, and they are kept until a token names another one.

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
/// How long an issuer may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// An issuer is not asked more often than this, whatever tokens come.
const PAUSE: Duration = Duration::from_secs(10);

struct KeySet {
    /// With the names they go by.
    keys: Vec<(String, PublicKey)>,
}

pub struct Keys {
    issuer: String,
    discovery: Client,
    authorities: Option<Vec<u8>>,
    metrics: Arc<OnceLock<JwtMetrics>>,
    known: Mutex<Option<Arc<KeySet>>>,
    /// When the issuer was asked last, and what went wrong then. One asks at a time.
    asked: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
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
            asked: tokio::sync::Mutex::new(None),
        })
    }

    /// Whether one of the issuer's keys has signed the token.
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

    /// The keys as the issuer has them now; `seen` were not enough.
    async fn fetch(&self, seen: Option<&Arc<KeySet>>) -> Result<Arc<KeySet>, String> {
        let mut asked = self.asked.lock().await;
        // Somebody else may have asked while this request waited for its turn.
        let newest = self.known.lock().clone();
        if let Some(newest) = &newest
            && seen.is_none_or(|seen| !Arc::ptr_eq(seen, newest))
        {
            return Ok(newest.clone());
        }
        if let Some((when, error)) = &*asked
            && when.elapsed() < PAUSE
        {
            let error = error.clone().unwrap_or_else(|| "no keys match the token".to_owned());
            return newest.ok_or(error);
        }
        let outcome = self.ask().await;
        *asked = Some((Instant::now(), outcome.as_ref().err().cloned()));
        let keys = Arc::new(outcome?);
        *self.known.lock() = Some(keys.clone());
        Ok(keys)
    }

    async fn ask(&self) -> Result<KeySet, String> {
        let document = self.discovery.get("", LIMIT).await.map_err(|error| error.chain())?;
        let issuer = document["issuer"].as_str().unwrap_or("");
        if issuer != self.issuer {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {issuer:?}",
                self.issuer
            ));
        }
        let url = document["jwks_uri"].as_str().ok_or("the provider names no jwks_uri")?;
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

    /// `None`: no key here is the one that the token names.
    fn verify(&self, token: &Unverified<'_>) -> Option<Result<(), &'static str>> {
        let id = token.key_id();
        let mut outcome = None;
        for (name, key) in self.keys.iter().filter(|(name, _)| id.is_empty() || name == id) {
            match token.verify(key) {
                Ok(()) => return Some(Ok(())),
                // A token that names its key and is not signed by it is bad, whatever the issuer has meanwhile.
                Err(why) if !id.is_empty() && name == id => outcome = Some(Err(why)),
                Err(_) => {}
            }
        }
        outcome
    }
}
