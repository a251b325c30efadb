//! Service account tokens: signed by this cluster, bound to an account and possibly to a pod, a secret or a node.
//!
//! A signature is verified once per token and cached; the existence of the bound objects is checked in the watch
//! caches every time, so that deleting one revokes the token immediately.

use super::external_signer::ExternalSigner;
use super::jwt::{SigningKey, Unverified};
use super::key_ring::{KeyFileError, KeyRing, VerificationKey, read_keys};
use super::legacy_token::{self, LegacyClaims};
use super::{Authenticated, Refusal};
use crate::metrics;
use crate::registry::{Registry, store_error};
use crate::user::UserInfo;
use base::clock::Clock;
use base::pki::ServiceAccountKey;
use machinery::Value;
use machinery::status::{Result as ApiResult, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Tolerated clock skew.
const LEEWAY: i64 = 60;
/// Capacity of the cache of verified signatures.
const MAX_VERIFIED: usize = 4096;
/// Wait limit of requests for the key, which is generated while the server starts.
const KEY_WAIT: Duration = Duration::from_secs(20);

/// Claims of a token.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Claims {
    #[serde(default, deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    pub exp: i64,
    #[serde(default)]
    pub iat: i64,
    pub iss: String,
    #[serde(default)]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Bound,
    #[serde(default)]
    pub nbf: i64,
    #[serde(default)]
    pub sub: String,
}

/// Bound objects of a token.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Bound {
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::One(one) => vec![one],
        Form::Many(many) => many,
    })
}

/// Issuer settings.
#[derive(Clone, Debug)]
pub struct ServiceAccountConfig {
    /// The first one issues tokens; tokens of all are accepted.
    pub issuers: Vec<String>,
    /// Audiences of this server; by default the issuers.
    pub audiences: Vec<String>,
    /// Published URI of the key set; by default at this server.
    pub jwks_uri: Option<String>,
    /// Longest lifetime of a token that can be requested.
    pub max_expiration_seconds: Option<i64>,
    /// A private signing key instead of the cluster's own.
    pub signing_key_file: Option<PathBuf>,
    /// Socket of an external signer, which signs instead of any key of this server.
    pub signing_endpoint: Option<PathBuf>,
    /// Files with public or private keys whose tokens are accepted, besides the signing key.
    pub key_files: Vec<PathBuf>,
    /// Extends the lifetime of pod tokens, for clients that do not reload them.
    pub extend_expiration: bool,
}

impl Default for ServiceAccountConfig {
    fn default() -> Self {
        Self {
            issuers: vec!["https://kubernetes.default.svc.cluster.local".to_owned()],
            audiences: Vec::new(),
            jwks_uri: None,
            max_expiration_seconds: None,
            signing_key_file: None,
            signing_endpoint: None,
            key_files: Vec::new(),
            extend_expiration: true,
        }
    }
}

pub struct ServiceAccountTokens {
    pub config: ServiceAccountConfig,
    pub(super) registry: Arc<Registry>,
    clock: Clock,
    keys: watch::Sender<Option<Arc<KeyRing>>>,
    /// Keys of the files.
    more_keys: Vec<VerificationKey>,
    /// Signs instead of a key of this process.
    pub external: Option<ExternalSigner>,
    verified: Mutex<HashMap<Box<str>, Verified>>,
}

/// Claims of a token with a valid signature.
#[derive(Clone)]
enum Verified {
    Bound(Arc<Claims>),
    Legacy(Arc<LegacyClaims>),
}

/// The part of an object that decides whether its tokens are valid.
#[derive(Deserialize)]
struct BoundObject {
    metadata: BoundObjectMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundObjectMetadata {
    uid: String,
    deletion_timestamp: Option<String>,
}

impl ServiceAccountTokens {
    pub fn new(
        mut config: ServiceAccountConfig,
        registry: Arc<Registry>,
        clock: Clock,
    ) -> Result<Self, KeyFileError> {
        if config.audiences.is_empty() {
            config.audiences.clone_from(&config.issuers);
        }
        let mut more_keys = Vec::new();
        for path in &config.key_files {
            more_keys.extend(read_keys(path)?);
        }
        let keys = watch::Sender::new(None);
        if let Some(path) = &config.signing_key_file {
            let text =
                std::fs::read(path).map_err(|source| KeyFileError::Read { path: path.clone(), source })?;
            let signing =
                SigningKey::from_pem(&text).map_err(|_| KeyFileError::Unusable { path: path.clone() })?;
            keys.send_replace(Some(Arc::new(KeyRing::new(signing, more_keys.clone()))));
        }
        let external = config.signing_endpoint.as_deref().map(ExternalSigner::new);
        Ok(Self { config, registry, clock, keys, more_keys, external, verified: Mutex::default() })
    }

    /// Sets the cluster's own key. It signs from now on, unless a key file was configured: then its tokens are still
    /// accepted. An external signer takes precedence.
    pub fn set_key(&self, key: &ServiceAccountKey) -> Result<(), super::JwtError> {
        if self.external.is_some() {
            return Ok(());
        }
        let own = SigningKey::new(key)?;
        let mut more = self.more_keys.clone();
        let signing = match &self.config.signing_key_file {
            None => own,
            Some(path) => {
                more.push(VerificationKey::new(own.id.clone(), own.public));
                let text = std::fs::read(path).map_err(|_| super::JwtError::Key)?;
                SigningKey::from_pem(&text)?
            }
        };
        self.replace_keys(KeyRing::new(signing, more));
        Ok(())
    }

    /// Replaces the verification keys; tokens of removed keys are no longer accepted.
    pub(super) fn replace_keys(&self, keys: KeyRing) {
        let is_same = self.current().is_some_and(|known| known.keys() == keys.keys());
        self.keys.send_replace(Some(Arc::new(keys)));
        if !is_same {
            self.verified.lock().clear();
        }
    }

    /// The keys, if available.
    pub(super) fn current(&self) -> Option<Arc<KeyRing>> {
        self.keys.borrow().clone()
    }

    /// Longest lifetime of a token.
    pub fn max_expiration_seconds(&self) -> Option<i64> {
        self.config.max_expiration_seconds.or_else(|| self.external.as_ref()?.longest())
    }

    /// Lifetime of a token that is extended to `wanted` seconds.
    pub fn extended(&self, wanted: i64) -> i64 {
        self.external.as_ref().and_then(ExternalSigner::longest).map_or(wanted, |most| most.min(wanted))
    }

    /// Seconds that relying parties may cache the key set.
    pub fn keys_max_age(&self) -> u64 {
        self.external.as_ref().map_or(3600, ExternalSigner::cache_age)
    }

    /// The keys; waits for them during startup.
    pub async fn keys(&self) -> ApiResult<Arc<KeyRing>> {
        let mut receiver = self.keys.subscribe();
        let found = tokio::time::timeout(KEY_WAIT, receiver.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(keys)) => keys.clone().ok_or_else(|| Status::internal("no key")),
            _ => Err(Status::service_unavailable("the service account token key is not available yet")),
        }
    }

    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// Signs any claims; fails without a key.
    pub fn sign_now(&self, claims: &Value) -> Option<String> {
        self.current()?.signing.as_ref()?.sign(claims).ok()
    }

    pub async fn sign(&self, claims: &Claims) -> ApiResult<String> {
        let claims = serde_json::to_value(claims).map_err(Status::internal)?;
        if let Some(external) = &self.external {
            return self.sign_externally(external, &claims.to_string()).await.map_err(|error| {
                Status::new(500, "", format!("failed to generate token: {}", base::errors::chain(&error)))
            });
        }
        let keys = self.keys().await?;
        // Signing takes a millisecond, so it runs on a blocking thread.
        let signed = tokio::task::spawn_blocking(move || {
            keys.signing.as_ref().ok_or(super::JwtError::Key)?.sign(&claims)
        });
        let signed = signed.await.map_err(Status::internal)?;
        signed.map_err(|error| Status::internal(format!("failed to generate token: {error}")))
    }

    /// The account of a token; `None` for a foreign token.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Result<Option<Authenticated>, Refusal> {
        let known = self.verified.lock().get(token).cloned();
        let verified = match known {
            Some(verified) => verified,
            None => match self.verify(token).await? {
                Some(verified) => verified,
                None => return Ok(None),
            },
        };
        let wanted = audiences.unwrap_or(&self.config.audiences);
        let claims = match verified {
            Verified::Bound(claims) => claims,
            Verified::Legacy(claims) => {
                let authenticated = self.authenticate_legacy(token, &claims, wanted).await;
                if let (Ok(_), Some(metrics)) = (&authenticated, metrics::process()) {
                    metrics.legacy_tokens.inc();
                }
                return authenticated.map(Some);
            }
        };
        let valid_audiences = if claims.aud.is_empty() { &self.config.audiences } else { &claims.aud };
        let common: Vec<String> = valid_audiences.iter().filter(|a| wanted.contains(a)).cloned().collect();
        if common.is_empty() {
            let quoted = crate::authorize::rules::quoted;
            return Err(Refusal(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(valid_audiences),
                quoted(wanted)
            )));
        }
        self.check_time(&claims)?;
        self.check_bound(&claims.kubernetes).await?;
        if let Some(metrics) = metrics::process() {
            metrics.valid_tokens.inc();
        }
        Ok(Some(Authenticated { user: user(&claims), audiences: common }))
    }

    async fn verify(&self, token: &str) -> Result<Option<Verified>, Refusal> {
        #[derive(Deserialize)]
        struct Issuer {
            iss: String,
        }
        let Some(parsed) = Unverified::parse(token) else { return Ok(None) };
        let Ok(Issuer { iss }) = serde_json::from_slice(&parsed.payload) else { return Ok(None) };
        if !self.config.issuers.contains(&iss) && iss != legacy_token::ISSUER {
            return Ok(None);
        }
        let mut keys = self.keys().await.map_err(|status| Refusal(status.message))?;
        if !keys.has_key(parsed.key_id()) {
            self.fetch_unknown_key(parsed.key_id()).await;
            keys = self.keys().await.map_err(|status| Refusal(status.message))?;
        }
        keys.verify(&parsed).map_err(|why| Refusal(why.to_owned()))?;
        let unreadable = |error| Refusal(format!("failed to decode token claims: {error}"));
        let verified = if iss == legacy_token::ISSUER {
            Verified::Legacy(Arc::new(serde_json::from_slice(&parsed.payload).map_err(unreadable)?))
        } else {
            Verified::Bound(Arc::new(serde_json::from_slice(&parsed.payload).map_err(unreadable)?))
        };
        let mut remembered = self.verified.lock();
        if remembered.len() >= MAX_VERIFIED {
            remembered.clear();
        }
        remembered.insert(token.into(), verified.clone());
        Ok(Some(verified))
    }

    fn check_time(&self, claims: &Claims) -> Result<(), Refusal> {
        let now = self.clock.now().as_second();
        let why = if now + LEEWAY < claims.nbf {
            "service account token is not valid yet"
        } else if now - LEEWAY > claims.exp {
            "service account token has expired"
        } else if now + LEEWAY < claims.iat {
            "service account token is issued in the future"
        } else {
            return Ok(());
        };
        Err(Refusal(why.to_owned()))
    }

    /// Checks that all bound objects of the token exist.
    async fn check_bound(&self, bound: &Bound) -> Result<(), Refusal> {
        let invalidated = || Refusal("service account token has been invalidated".to_owned());
        let namespace = bound.namespace.as_str();
        let account = &bound.serviceaccount;
        let name = &account.name;
        let found = self.slim("serviceaccounts", namespace, name).await?;
        let found = found.ok_or_else(|| Refusal(format!("serviceaccounts {name:?} not found")))?;
        if found.uid != account.uid {
            let why = format!("service account UID ({}) does not match claim ({})", found.uid, account.uid);
            return Err(Refusal(why));
        }
        if self.is_over(&found) {
            return Err(Refusal(format!("service account {namespace}/{name} has been deleted")));
        }
        // The node of a pod is information only.
        let node = if bound.pod.is_some() { None } else { bound.node.as_ref() };
        for (reference, resource, kind, namespace) in [
            (bound.secret.as_ref(), "secrets", "secret", namespace),
            (bound.pod.as_ref(), "pods", "pod", namespace),
            (node, "nodes", "node", ""),
        ] {
            let Some(reference) = reference else { continue };
            let found = self.slim(resource, namespace, &reference.name).await?.ok_or_else(invalidated)?;
            if found.uid != reference.uid {
                return Err(Refusal(format!(
                    "{kind} UID ({}) does not match service account {kind} ref claim ({})",
                    found.uid, reference.uid
                )));
            }
            if self.is_over(&found) {
                return Err(invalidated());
            }
        }
        Ok(())
    }

    fn is_over(&self, object: &BoundObjectMetadata) -> bool {
        let now = self.clock.now().as_second();
        object.deletion_timestamp.as_ref().is_some_and(|deleted| {
            deleted.parse::<jiff::Timestamp>().is_ok_and(|deleted| deleted.as_second() < now - LEEWAY)
        })
    }

    async fn slim(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BoundObjectMetadata>, Refusal> {
        let refusal = |status: Status| Refusal(status.message);
        let served = self.registry.builtin("", "v1", resource).map_err(refusal)?;
        let cache = &served.storage.cache;
        let key = served.key(namespace, name);
        cache.ready_for(&key).await.map_err(|error| refusal(store_error(&error)))?;
        let mut entry = cache.get(&key);
        if entry.is_none() {
            // The cache of a remote store may be stale: read the store before rejecting.
            cache.fresh(&key).await.map_err(|error| refusal(store_error(&error)))?;
            entry = cache.get(&key);
        }
        let slim = |bytes: &[u8]| serde_json::from_slice::<BoundObject>(bytes).ok();
        Ok(entry.and_then(|entry| slim(&entry.bytes)).map(|slim| slim.metadata))
    }

    /// The OpenID discovery document for relying parties.
    pub async fn discovery(&self, advertise: &str) -> ApiResult<Value> {
        let uri = self.config.jwks_uri.clone();
        let keys = self.keys().await?;
        Ok(serde_json::json!({
            "issuer": self.config.issuers.first(),
            "jwks_uri": uri.unwrap_or_else(|| format!("https://{advertise}/openid/v1/jwks")),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": keys.algorithms(),
        }))
    }
}

fn user(claims: &Claims) -> UserInfo {
    let Bound { namespace, node, pod, serviceaccount, .. } = &claims.kubernetes;
    let mut extra = BTreeMap::new();
    let mut add_extra = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = pod {
        add_extra("pod-name", &pod.name);
        add_extra("pod-uid", &pod.uid);
    }
    if let Some(node) = node {
        add_extra("node-name", &node.name);
        add_extra("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        add_extra("credential-id", &format!("JTI={}", claims.jti));
    }
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{}", serviceaccount.name),
        uid: serviceaccount.uid.clone(),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        extra,
    }
}
