//! Distributed claims (OpenID Connect Core 1.0, section 5.6.2): groups that are not in the token, but in a signed
//! response of another endpoint.

use super::check;
use super::config::{self, JwtAuthenticator, Source};
use super::keys::Keys;
use crate::authenticate::jwt::Unverified;
use crate::outbound::{Client, Credentials, Target, Trust};
use machinery::Value;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub const NAMES: &str = "_claim_names";
const SOURCES: &str = "_claim_sources";
/// Time limit of an endpoint's response.
const LIMIT: Duration = Duration::from_secs(10);
/// Size limit of a response in bytes.
const MAX_TOKEN: usize = 256 << 10;
/// Issuers of responses whose keys are cached.
const MAX_ISSUERS: usize = 32;

/// Resolves the claim that groups are read from.
pub struct ClaimResolver {
    claim: String,
    authorities: Option<Vec<u8>>,
    /// Keys of the issuers of responses, by issuer.
    issuers: Mutex<HashMap<String, Arc<Keys>>>,
}

impl ClaimResolver {
    /// `None`: groups are not read from a claim.
    pub fn of(config: &JwtAuthenticator, groups: Option<&Source>) -> Option<Self> {
        let Some(Source::Claim { name, .. }) = groups else { return None };
        let authority = config.issuer.certificate_authority.clone().into_bytes();
        Some(Self {
            claim: name.clone(),
            authorities: Some(authority).filter(|authority| !authority.is_empty()),
            issuers: Mutex::default(),
        })
    }

    /// Adds the claim to those of a verified token, if they refer to an endpoint.
    pub async fn expand(
        &self,
        config: &JwtAuthenticator,
        claims: &mut Value,
        now: i64,
    ) -> Result<(), String> {
        let claim = self.claim.as_str();
        if claims.get(claim).is_some() {
            return Ok(());
        }
        let Some(names) = claims.get(NAMES) else { return Ok(()) };
        let is_map = names.as_object().is_some_and(|names| names.values().all(Value::is_string));
        if !is_map {
            return Err("oidc: error parsing distributed claim names: not a map of strings".to_owned());
        }
        let sources = claims.get(SOURCES).ok_or("oidc: no claim sources")?;
        if !sources.is_object() {
            return Err("oidc: could not parse claim sources: not a map".to_owned());
        }
        let Some(name) = names[claim].as_str() else { return Ok(()) };
        let source = sources.get(name).ok_or_else(|| {
            format!("id token _claim_names contained a source {name} missing in _claims_sources")
        })?;
        let Some(endpoint) = source["endpoint"].as_str().filter(|endpoint| !endpoint.is_empty()) else {
            // Aggregated claims are not supported.
            return Ok(());
        };
        let access = source["access_token"].as_str().unwrap_or_default();
        let value = self.resolve(config, endpoint, access, now).await?;
        claims[claim] = value;
        Ok(())
    }

    async fn resolve(
        &self,
        config: &JwtAuthenticator,
        endpoint: &str,
        access: &str,
        now: i64,
    ) -> Result<Value, String> {
        let claim = self.claim.as_str();
        let token = self.answer(endpoint, access).await;
        let token = token.map_err(|why| format!("while getting distributed claim {claim:?}: {why}"))?;
        let no_issuer = || {
            format!(
                "getting untrusted issuer from endpoint {endpoint} failed for claim {claim:?}: malformed JWT"
            )
        };
        let parsed = Unverified::parse(&token).ok_or_else(no_issuer)?;
        let found: Value = serde_json::from_slice(&parsed.payload).map_err(|_| no_issuer())?;
        let issuer = found["iss"].as_str().ok_or_else(no_issuer)?;
        let keys = self
            .keys_of(issuer)
            .map_err(|why| format!("verifying untrusted issuer {issuer} failed: {why}"))?;
        check(config, &keys, &parsed, &found, now)
            .await
            .map_err(|why| format!("verify distributed claim token: {why}"))?;
        found.get(claim).cloned().ok_or_else(|| {
            format!("jwt returned by distributed claim endpoint {endpoint:?} did not contain claim: {claim}")
        })
    }

    async fn answer(&self, endpoint: &str, access: &str) -> Result<String, String> {
        let trust = Trust { authorities: self.authorities.clone().into(), ..Trust::default() };
        let target = Target::new(endpoint, &trust).map_err(|error| error.to_string())?;
        let credentials = match access {
            "" => Credentials::None,
            access => Credentials::Bearer(access.to_owned()),
        };
        let bytes = Client::with_credentials(target, credentials).get_bytes("", LIMIT).await;
        let bytes = bytes.map_err(|error| error.chain())?;
        if bytes.len() > MAX_TOKEN {
            return Err(format!("response is longer than {MAX_TOKEN} bytes"));
        }
        String::from_utf8(bytes.to_vec())
            .map_err(|_| "could not decode distributed claim response".to_owned())
    }

    fn keys_of(&self, issuer: &str) -> Result<Arc<Keys>, String> {
        let mut issuers = self.issuers.lock();
        if let Some(known) = issuers.get(issuer) {
            return Ok(Arc::clone(known));
        }
        let authority = self.authorities.clone().unwrap_or_default();
        let config = config::Issuer {
            url: issuer.to_owned(),
            certificate_authority: String::from_utf8(authority).unwrap_or_default(),
            ..config::Issuer::default()
        };
        let keys = Arc::new(Keys::new(&config, Arc::default()).map_err(|error| error.to_string())?);
        if issuers.len() >= MAX_ISSUERS {
            issuers.clear();
        }
        issuers.insert(issuer.to_owned(), Arc::clone(&keys));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Oidc;
    use super::super::config::{ClaimMappings, Configuration, Mapping};
    use super::*;
    use base::clock::Clock;
    use serde_json::json;
    use std::sync::OnceLock;
    use testbase::{Responder, SigningKey};

    /// An issuer that also serves distributed claims, with the responses of its endpoint.
    struct Provider {
        responder: Responder,
        key: Arc<SigningKey>,
        answer: Arc<Mutex<(u16, Value)>>,
    }

    impl Provider {
        async fn start() -> Self {
            let key = Arc::new(SigningKey::new("k").expect("a key"));
            let answer = Arc::new(Mutex::new((200, Value::Null)));
            let url: Arc<OnceLock<String>> = Arc::default();
            let (own, signer, response) = (Arc::clone(&url), Arc::clone(&key), Arc::clone(&answer));
            let responder = Responder::start(move |path, _| {
                let url = own.get().cloned().unwrap_or_default();
                match path {
                    "/.well-known/openid-configuration" => {
                        (200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
                    }
                    "/keys" => (200, json!({"keys": [signer.jwk()]})),
                    _ => response.lock().clone(),
                }
            })
            .await
            .expect("a server");
            url.set(responder.url.clone()).expect("set once");
            Self { responder, key, answer }
        }

        fn claims(&self, more: &Value) -> Value {
            let now = Clock::system().now().as_second();
            let mut claims =
                json!({"iss": self.responder.url, "aud": "ferry", "sub": "alice", "exp": now + 600});
            for (name, value) in more.as_object().into_iter().flatten() {
                claims[name] = value.clone();
            }
            claims
        }

        fn token(&self, more: &Value) -> String {
            self.key.sign(&self.claims(more)).expect("signed")
        }

        /// A token whose groups are at the endpoint.
        fn distributed(&self) -> String {
            let endpoint = format!("{}/groups", self.responder.url);
            self.token(&json!({
                "_claim_names": {"groups": "s"},
                "_claim_sources": {"s": {"endpoint": endpoint, "access_token": "secret"}},
            }))
        }

        fn oidc(&self) -> Oidc {
            let claim = |name: &str| Mapping {
                claim: name.to_owned(),
                prefix: Some(String::new()),
                ..Mapping::default()
            };
            let jwt = JwtAuthenticator {
                issuer: config::Issuer {
                    url: self.responder.url.clone(),
                    certificate_authority: self.responder.certificate.clone(),
                    audiences: vec!["ferry".to_owned()],
                    ..config::Issuer::default()
                },
                claim_mappings: ClaimMappings {
                    username: claim("sub"),
                    groups: claim("groups"),
                    ..ClaimMappings::default()
                },
                ..JwtAuthenticator::default()
            };
            let configuration = Configuration { jwt: vec![jwt], ..Configuration::default() };
            Oidc::new(configuration, None, &Clock::system()).expect("usable")
        }

        fn answers(&self, code: u16, text: impl Into<String>) {
            *self.answer.lock() = (code, json!({"text": text.into()}));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn distributed_claims_groups_are_read_from_endpoint() {
        let provider = Provider::start().await;
        let oidc = provider.oidc();
        provider.answers(200, provider.token(&json!({"groups": ["dev", "ops"]})));
        let user = oidc.authenticate(&provider.distributed()).await.expect("accepted").expect("known").user;
        assert_eq!((user.name.as_str(), user.groups), ("alice", vec!["dev".to_owned(), "ops".to_owned()]));
        let sent = provider.responder.headers();
        assert!(
            sent.iter()
                .any(|headers| headers.get("authorization").is_some_and(|value| value == "Bearer secret"))
        );
        // Claims of the token itself take precedence, and the same token is not resolved again immediately.
        let requests = || provider.responder.seen().iter().filter(|(path, _)| path == "/groups").count();
        let own = provider.token(&json!({"groups": ["own"], "_claim_names": {"groups": "s"}}));
        let user = oidc.authenticate(&own).await.expect("accepted").expect("known").user;
        assert_eq!((user.groups, requests()), (vec!["own".to_owned()], 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn distributed_claims_invalid_response_rejects_token() {
        let provider = Provider::start().await;
        let oidc = provider.oidc();
        let other_key = SigningKey::new("k").expect("a key");
        let groups = json!({"groups": ["system:masters"]});
        let expired = json!({"groups": ["dev"], "exp": 1});
        let elsewhere = json!({"groups": ["dev"], "aud": "other"});
        for (code, text, want) in [
            (500, String::new(), "while getting distributed claim \"groups\""),
            (200, "rubbish".to_owned(), "getting untrusted issuer from endpoint"),
            (200, "x".repeat(MAX_TOKEN + 1), "response is longer than"),
            (
                200,
                other_key.sign(&provider.claims(&groups)).expect("signed"),
                "verify distributed claim token",
            ),
            (200, provider.token(&expired), "token is expired"),
            (200, provider.token(&elsewhere), "expected audience"),
            (200, provider.token(&json!({})), "did not contain claim: groups"),
        ] {
            provider.answers(code, text);
            let error = oidc.authenticate(&provider.distributed()).await.map(drop).expect_err(want);
            assert!(error.0.starts_with("oidc: could not expand distributed claims: "), "{}", error.0);
            assert!(error.0.contains(want), "{want}: {}", error.0);
        }
        for (claims, want) in [
            (json!({"_claim_names": {"groups": "s"}}), "oidc: no claim sources"),
            (json!({"_claim_names": ["groups"]}), "error parsing distributed claim names"),
            (json!({"_claim_names": {"groups": "s"}, "_claim_sources": 1}), "could not parse claim sources"),
            (json!({"_claim_names": {"groups": "s"}, "_claim_sources": {}}), "missing in _claims_sources"),
        ] {
            let error = oidc.authenticate(&provider.token(&claims)).await.map(drop).expect_err(want);
            assert!(error.0.contains(want), "{want}: {}", error.0);
        }
        // Aggregated claims are not read.
        let aggregated = json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"JWT": "x"}}});
        let user =
            oidc.authenticate(&provider.token(&aggregated)).await.expect("accepted").expect("known").user;
        assert!(user.groups.is_empty());
    }

    #[test]
    fn distributed_claims_cached_issuers_are_bounded() {
        let config = JwtAuthenticator::default();
        let groups = Source::Claim { name: "groups".to_owned(), prefix: String::new() };
        let resolver = ClaimResolver::of(&config, Some(&groups)).expect("a claim");
        for number in 0..1000 {
            resolver.keys_of(&format!("https://{number}.example.com")).expect("usable");
        }
        assert!(resolver.issuers.lock().len() <= MAX_ISSUERS);
    }
}
