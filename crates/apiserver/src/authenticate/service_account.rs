//! Service account tokens: signed by this cluster, bound to an account and possibly to a pod, a secret or a node.
//!
//! A signature is checked once per token and remembered; that the objects it is bound to are still there is looked up
//! in the watch caches every time, so that deleting one revokes the token at once.

use super::jwt::{SigningKey, Unverified};
use super::legacy_token::{self, LegacyClaims};
use super::public_key::{PublicKey, key_id};
use super::{Authenticated, Refusal};
use crate::registry::{Registry, store_error};
use crate::user::UserInfo;
use base::clock::Clock;
use base::pki::ServiceAccountKey;
use machinery::Value;
use machinery::status::{Result as ApiResult, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How far clocks may differ.
const LEEWAY: i64 = 60;
/// Tokens whose signature is remembered.
const REMEMBERED: usize = 4096;
/// The key is made while the server starts; this long a request waits for it.
const KEY_WAIT: Duration = Duration::from_secs(20);

/// What a token says.
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

/// What a token is bound to.
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

/// Who signs and for whom.
#[derive(Clone, Debug)]
pub struct ServiceAccountConfig {
    /// The first one signs; tokens of all are accepted.
    pub issuers: Vec<String>,
    /// Whom tokens are for that are meant for this server; by default the issuers.
    pub audiences: Vec<String>,
    /// Where the public keys are said to be; by default at this server.
    pub jwks_uri: Option<String>,
    /// Longest life of a token that can be asked for.
    pub max_expiration_seconds: Option<i64>,
    /// A private key to sign with instead of the cluster's own.
    pub signing_key_file: Option<PathBuf>,
    /// Files with public or private keys whose tokens are accepted, besides the one that signs.
    pub key_files: Vec<PathBuf>,
    /// Tokens of pods live longer than they were asked to, for clients that do not read them again.
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
    /// Of the files, with the names they go by.
    more_keys: Vec<(String, PublicKey)>,
    verified: Mutex<HashMap<Box<str>, Verified>>,
}

/// The key that signs and those whose tokens are accepted.
pub struct KeyRing {
    pub signing: SigningKey,
    more: Vec<(String, PublicKey)>,
}

/// What a token with a good signature says.
#[derive(Clone)]
enum Verified {
    Bound(Arc<Claims>),
    Legacy(Arc<LegacyClaims>),
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no key that can be used", .path.display())]
    Unusable { path: PathBuf },
}

impl KeyRing {
    fn all(&self) -> impl Iterator<Item = (&str, &PublicKey)> {
        let own = (self.signing.id.as_str(), &self.signing.public);
        let more = self.more.iter().map(|(id, key)| (id.as_str(), key));
        std::iter::once(own).chain(more.filter(|(id, _)| *id != self.signing.id))
    }

    /// The key set by which others check tokens.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.all().map(|(id, key)| key.jwk(id)).collect();
        serde_json::json!({"keys": keys})
    }

    /// Whether one of the keys signed the token; why not, otherwise.
    fn verify(&self, token: &Unverified<'_>) -> Result<(), &'static str> {
        let named = token.key_id();
        let mut why = "invalid signature, no keys found";
        for (_, key) in self.all().filter(|(id, _)| named.is_empty() || *id == named) {
            match token.verify(key) {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

/// The public keys of a file, those of private keys included.
fn read_keys(path: &Path) -> Result<Vec<(String, PublicKey)>, KeyFileError> {
    let text = std::fs::read(path).map_err(|source| KeyFileError::Read { path: path.to_owned(), source })?;
    let mut keys: Vec<(String, PublicKey)> =
        PublicKey::from_pem(&text).into_iter().map(|(key, spki)| (key_id(&spki), key)).collect();
    if let Ok(private) = SigningKey::from_pem(&text) {
        keys.push((private.id, private.public));
    }
    if keys.is_empty() { Err(KeyFileError::Unusable { path: path.to_owned() }) } else { Ok(keys) }
}

/// The little of an object that decides whether it still vouches for a token.
#[derive(Deserialize)]
struct Slim {
    metadata: SlimMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimMetadata {
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
            keys.send_replace(Some(Arc::new(KeyRing { signing, more: more_keys.clone() })));
        }
        Ok(Self { config, registry, clock, keys, more_keys, verified: Mutex::default() })
    }

    /// Gives the cluster's own key. It signs from now on, unless another one was given by file: then its tokens are
    /// still accepted.
    pub fn set_key(&self, key: &ServiceAccountKey) -> Result<(), super::JwtError> {
        let own = SigningKey::new(key)?;
        let mut more = self.more_keys.clone();
        let signing = match &self.config.signing_key_file {
            None => own,
            Some(path) => {
                more.push((own.id.clone(), own.public));
                let text = std::fs::read(path).map_err(|_| super::JwtError::Key)?;
                SigningKey::from_pem(&text)?
            }
        };
        self.verified.lock().clear();
        self.keys.send_replace(Some(Arc::new(KeyRing { signing, more })));
        Ok(())
    }

    /// The keys; waits for them while the server starts.
    pub async fn keys(&self) -> ApiResult<Arc<KeyRing>> {
        let mut receiver = self.keys.subscribe();
        let found = tokio::time::timeout(KEY_WAIT, receiver.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(keys)) => keys.clone().ok_or_else(|| Status::internal("no key")),
            _ => Err(Status::service_unavailable("the key of service account tokens is not there yet")),
        }
    }

    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// Signs any claims, unless there is no key yet.
    pub fn sign_now(&self, claims: &Value) -> Option<String> {
        let keys = self.keys.borrow().clone()?;
        keys.signing.sign(claims).ok()
    }

    pub async fn sign(&self, claims: &Claims) -> ApiResult<String> {
        let keys = self.keys().await?;
        let claims = serde_json::to_value(claims).map_err(Status::internal)?;
        // Signing takes a millisecond: others go on meanwhile.
        let signed = tokio::task::spawn_blocking(move || keys.signing.sign(&claims));
        let signed = signed.await.map_err(Status::internal)?;
        signed.map_err(|error| Status::internal(format!("failed to generate token: {error}")))
    }

    /// The account a token stands for; `None`: it is not one of ours.
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
                return self.authenticate_legacy(token, &claims, wanted).await.map(Some);
            }
        };
        let given = if claims.aud.is_empty() { &self.config.audiences } else { &claims.aud };
        let common: Vec<String> = given.iter().filter(|a| wanted.contains(a)).cloned().collect();
        if common.is_empty() {
            let quoted = crate::authorize::rules::quoted;
            return Err(Refusal(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(given),
                quoted(wanted)
            )));
        }
        self.check_time(&claims)?;
        self.check_bound(&claims.kubernetes).await?;
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
        let keys = self.keys().await.map_err(|status| Refusal(status.message))?;
        keys.verify(&parsed).map_err(|why| Refusal(why.to_owned()))?;
        let unreadable = |error| Refusal(format!("claims of the token cannot be read: {error}"));
        let verified = if iss == legacy_token::ISSUER {
            Verified::Legacy(Arc::new(serde_json::from_slice(&parsed.payload).map_err(unreadable)?))
        } else {
            Verified::Bound(Arc::new(serde_json::from_slice(&parsed.payload).map_err(unreadable)?))
        };
        let mut remembered = self.verified.lock();
        if remembered.len() >= REMEMBERED {
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

    /// Whether everything the token is bound to is still there.
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

    fn is_over(&self, object: &SlimMetadata) -> bool {
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
    ) -> Result<Option<SlimMetadata>, Refusal> {
        let refusal = |status: Status| Refusal(status.message);
        let served = self.registry.builtin("", "v1", resource).map_err(refusal)?;
        let cache = &served.storage.cache;
        let key = served.key(namespace, name);
        cache.ready_for(&key).await.map_err(|error| refusal(store_error(&error)))?;
        let mut entry = cache.get(&key);
        if entry.is_none() {
            // The cache of a remote store may lag behind: ask before saying no.
            cache.fresh(&key).await.map_err(|error| refusal(store_error(&error)))?;
            entry = cache.get(&key);
        }
        let slim = |bytes: &[u8]| serde_json::from_slice::<Slim>(bytes).ok();
        Ok(entry.and_then(|entry| slim(&entry.bytes)).map(|slim| slim.metadata))
    }

    /// The document by which relying parties find the keys.
    pub async fn discovery(&self, advertise: &str) -> ApiResult<Value> {
        let uri = self.config.jwks_uri.clone();
        let keys = self.keys().await?;
        let algorithms: std::collections::BTreeSet<&str> =
            keys.all().map(|(_, key)| key.algorithm()).collect();
        Ok(serde_json::json!({
            "issuer": self.config.issuers.first(),
            "jwks_uri": uri.unwrap_or_else(|| format!("https://{advertise}/openid/v1/jwks")),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        }))
    }
}

fn user(claims: &Claims) -> UserInfo {
    let Bound { namespace, node, pod, serviceaccount, .. } = &claims.kubernetes;
    let mut extra = BTreeMap::new();
    let mut tell = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = pod {
        tell("pod-name", &pod.name);
        tell("pod-uid", &pod.uid);
    }
    if let Some(node) = node {
        tell("node-name", &node.name);
        tell("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        tell("credential-id", &format!("JTI={}", claims.jti));
    }
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{}", serviceaccount.name),
        uid: serviceaccount.uid.clone(),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        extra,
    }
}
