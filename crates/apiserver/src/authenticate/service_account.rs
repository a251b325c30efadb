//! Service account tokens: signed by this cluster, bound to an account and possibly to a pod, a secret or a node.
//!
//! A signature is checked once per token and remembered; that the objects it is bound to are still there is looked up
//! in the watch caches every time, so that deleting one revokes the token at once.

use super::jwt::{SigningKey, Unverified};
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
            extend_expiration: true,
        }
    }
}

pub struct ServiceAccountTokens {
    pub config: ServiceAccountConfig,
    registry: Arc<Registry>,
    clock: Clock,
    key: watch::Sender<Option<Arc<SigningKey>>>,
    verified: Mutex<HashMap<Box<str>, Arc<Claims>>>,
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
    pub fn new(mut config: ServiceAccountConfig, registry: Arc<Registry>, clock: Clock) -> Self {
        if config.audiences.is_empty() {
            config.audiences.clone_from(&config.issuers);
        }
        Self { config, registry, clock, key: watch::Sender::new(None), verified: Mutex::default() }
    }

    /// Gives the key that signs from now on.
    pub fn set_key(&self, key: &ServiceAccountKey) -> Result<(), super::JwtError> {
        let key = SigningKey::new(key)?;
        self.verified.lock().clear();
        self.key.send_replace(Some(Arc::new(key)));
        Ok(())
    }

    /// The key; waits for it while the server starts.
    pub async fn key(&self) -> ApiResult<Arc<SigningKey>> {
        let mut receiver = self.key.subscribe();
        let found = tokio::time::timeout(KEY_WAIT, receiver.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(key)) => key.clone().ok_or_else(|| Status::internal("no key")),
            _ => Err(Status::service_unavailable("the key of service account tokens is not there yet")),
        }
    }

    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    pub async fn sign(&self, claims: &Claims) -> ApiResult<String> {
        let key = self.key().await?;
        let claims = serde_json::to_value(claims).map_err(Status::internal)?;
        // Signing takes a millisecond: others go on meanwhile.
        let signed =
            tokio::task::spawn_blocking(move || key.sign(&claims)).await.map_err(Status::internal)?;
        signed.map_err(|error| Status::internal(format!("failed to generate token: {error}")))
    }

    /// The account a token stands for; `None`: it is not one of ours.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: Option<&[String]>,
    ) -> Result<Option<Authenticated>, Refusal> {
        let known = self.verified.lock().get(token).cloned();
        let claims = match known {
            Some(claims) => claims,
            None => match self.verify(token).await? {
                Some(claims) => claims,
                None => return Ok(None),
            },
        };
        let wanted = audiences.unwrap_or(&self.config.audiences);
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

    async fn verify(&self, token: &str) -> Result<Option<Arc<Claims>>, Refusal> {
        #[derive(Deserialize)]
        struct Issuer {
            iss: String,
        }
        let Some(parsed) = Unverified::parse(token) else { return Ok(None) };
        let Ok(Issuer { iss }) = serde_json::from_slice(&parsed.payload) else { return Ok(None) };
        if !self.config.issuers.contains(&iss) {
            return Ok(None);
        }
        let key = self.key().await.map_err(|status| Refusal(status.message))?;
        key.verify(&parsed).map_err(|why| Refusal(why.to_owned()))?;
        let claims: Claims = serde_json::from_slice(&parsed.payload)
            .map_err(|error| Refusal(format!("claims of the token cannot be read: {error}")))?;
        let claims = Arc::new(claims);
        let mut verified = self.verified.lock();
        if verified.len() >= REMEMBERED {
            verified.clear();
        }
        verified.insert(token.into(), claims.clone());
        Ok(Some(claims))
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
        cache.ready().await.map_err(|error| refusal(store_error(&error)))?;
        let key = served.key(namespace, name);
        let mut entry = cache.get(&key);
        if entry.is_none() {
            // The cache of a remote store may lag behind: ask before saying no.
            cache.fresh().await.map_err(|error| refusal(store_error(&error)))?;
            entry = cache.get(&key);
        }
        let slim = |bytes: &[u8]| serde_json::from_slice::<Slim>(bytes).ok();
        Ok(entry.and_then(|entry| slim(&entry.bytes)).map(|slim| slim.metadata))
    }

    /// The document by which relying parties find the keys.
    pub fn discovery(&self, advertise: &str) -> Value {
        let uri = self.config.jwks_uri.clone();
        serde_json::json!({
            "issuer": self.config.issuers.first(),
            "jwks_uri": uri.unwrap_or_else(|| format!("https://{advertise}/openid/v1/jwks")),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        })
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
