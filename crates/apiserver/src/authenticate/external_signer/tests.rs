use super::messages::{DataTimestamp, Key};
use super::*;
use crate::authenticate::{AuthenticationConfig, ServiceAccountConfig};
use crate::test_server::{ADMIN, ALICE, TestServer};
use crate::unix_grpc::tests::{Answer, serve};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base::clock::Clock;
use base::metrics::Metrics;
use http::Method;
use machinery::Value;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const JSON: &str = "application/json";

/// A plugin with adjustable responses.
struct Plugin {
    pair: Mutex<(String, EcdsaKeyPair)>,
    /// Responses that replace the correct ones, by method.
    wrong: Mutex<Option<(&'static str, Answer)>>,
    longest: i64,
    fetches: AtomicUsize,
}

fn pair() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key")
}

fn public(pair: &EcdsaKeyPair) -> Vec<u8> {
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().expect("DER");
    der.as_ref().to_vec()
}

impl Plugin {
    fn start(socket: &Path, longest: i64) -> Arc<Self> {
        let plugin = Arc::new(Self {
            pair: Mutex::new(("first".to_owned(), pair())),
            wrong: Mutex::new(None),
            longest,
            fetches: AtomicUsize::new(0),
        });
        let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
        let shared = plugin.clone();
        serve(listener, move |method, body| shared.answer(method, body));
        plugin
    }

    fn answer(&self, method: &str, body: &[u8]) -> Answer {
        if method == "FetchKeys" {
            self.fetches.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((of, wrong)) = &*self.wrong.lock()
            && *of == method
        {
            return wrong.clone();
        }
        Some(Ok(match method {
            "FetchKeys" => self.keys().encode_to_vec(),
            "Metadata" => MetadataResponse { max_token_expiration_seconds: self.longest }.encode_to_vec(),
            _ => {
                let (id, pair) = &*self.pair.lock();
                let header = json!({"alg": "ES256", "kid": id, "typ": "JWT"}).to_string();
                let header = URL_SAFE_NO_PAD.encode(header);
                let claims = SignJwtRequest::decode(body).expect("a request").claims;
                let signed = pair.sign(&SystemRandom::new(), format!("{header}.{claims}").as_bytes());
                let signature = URL_SAFE_NO_PAD.encode(signed.expect("a signature"));
                SignJwtResponse { header, signature }.encode_to_vec()
            }
        }))
    }

    /// The signing key, and one that is excluded from discovery.
    fn keys(&self) -> FetchKeysResponse {
        let (id, own) = &*self.pair.lock();
        let key = Key { key_id: id.clone(), key: public(own), exclude_from_oidc_discovery: false };
        let hidden = Key { key_id: "hidden".to_owned(), exclude_from_oidc_discovery: true, ..key.clone() };
        FetchKeysResponse {
            keys: vec![key, hidden],
            data_timestamp: Some(DataTimestamp { seconds: 1_790_000_000, nanos: 0 }),
            refresh_hint_seconds: 500,
        }
    }

    fn rotate(&self, name: &str) {
        *self.pair.lock() = (name.to_owned(), pair());
    }

    fn break_with(&self, method: &'static str, message: &impl Message) {
        *self.wrong.lock() = Some((method, Some(Ok(message.encode_to_vec()))));
    }
}

/// A server, its plugin, and the directory of the socket.
struct Fixture {
    server: TestServer,
    plugin: Arc<Plugin>,
    metrics: Metrics,
    _directory: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let (world, started) = Self::with(3600, None).await;
        started.expect("started");
        world
    }

    async fn with(longest: i64, wanted: Option<i64>) -> (Self, Result<(), ExternalSignerError>) {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("signer.sock");
        let plugin = Plugin::start(&socket, longest);
        let service_accounts = ServiceAccountConfig {
            signing_endpoint: Some(socket),
            max_expiration_seconds: wanted,
            ..ServiceAccountConfig::default()
        };
        let config = AuthenticationConfig { service_accounts, ..AuthenticationConfig::default() };
        let server = TestServer::start_with(config);
        let clock = Clock::system();
        let metrics = Metrics::new(&clock).expect("metrics");
        let tokens = &server.chain.rest.authentication.service_accounts;
        let external = tokens.external.as_ref().expect("an external signer");
        external.observe(ExternalJwtMetrics::new(&metrics, &clock).expect("new names"));
        let started = tokens.start_external().await;
        (Self { server, plugin, metrics, _directory: directory }, started)
    }

    fn tokens(&self) -> &ServiceAccountTokens {
        &self.server.chain.rest.authentication.service_accounts
    }

    async fn account(&self) {
        self.server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
        let account = json!({"metadata": {"name": "a"}});
        self.server.create("/api/v1/namespaces/n/serviceaccounts", &account).await;
    }

    /// Response to a token request.
    async fn request(&self, seconds: i64) -> (u16, Value) {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}});
        let path = "/api/v1/namespaces/n/serviceaccounts/a/token";
        self.server.ask(ADMIN, Method::POST, path, JSON, body.to_string()).await
    }

    async fn token(&self) -> String {
        let (code, answer) = self.request(3600).await;
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// Status code of a request with a token.
    async fn accepted(&self, token: &str) -> u16 {
        self.server.ask(token, Method::GET, "/api/v1/namespaces/n/pods", JSON, "").await.0
    }

    fn shown(&self, text: &str) -> bool {
        String::from_utf8(self.metrics.encode().expect("encoded")).expect("UTF-8").contains(text)
    }
}

#[tokio::test]
async fn external_signer_signs_tokens_and_provides_keys() {
    let world = Fixture::start().await;
    world.account().await;
    let token = world.token().await;
    // The account is authenticated, but has no permission.
    assert_eq!(world.accepted(&token).await, 403);
    assert_eq!(world.accepted(&format!("{token}x")).await, 401);
    let (_, keys) = world.server.ask(ALICE, Method::GET, "/openid/v1/jwks", "", "").await;
    world.server.grant(&[]);
    let names = |keys: &Value| keys["keys"].as_array().map_or(0, Vec::len);
    let found = world.tokens().keys().await.expect("keys").jwks();
    assert_eq!((names(&found), found["keys"][0]["kid"].as_str()), (1, Some("first")), "{keys}");
    assert!(world.tokens().keys_max_age() <= 500);
    for text in [
        "apiserver_externaljwt_sign_request_total{code=\"OK\"} 1",
        "apiserver_externaljwt_fetch_keys_request_total{code=\"OK\"} 1",
        "apiserver_externaljwt_fetch_keys_data_timestamp 1790000000",
        "apiserver_externaljwt_request_duration_seconds_count{code=\"OK\",method=\"/v1.ExternalJWTSigner/Metadata\"} 1",
    ] {
        assert!(world.shown(text), "{text}");
    }
}

#[tokio::test]
async fn external_signer_unknown_key_is_fetched_and_removed_key_is_dropped() {
    let world = Fixture::start().await;
    world.account().await;
    let old = world.token().await;
    assert_eq!(world.accepted(&old).await, 403);
    world.plugin.rotate("second");
    let new = world.token().await;
    assert_eq!(world.accepted(&new).await, 403);
    // The response with the new key did not contain the old one.
    assert_eq!(world.accepted(&old).await, 401);
}

#[tokio::test]
async fn external_signer_limits_token_lifetime() {
    let (world, started) = Fixture::with(1800, None).await;
    started.expect("started");
    world.account().await;
    let (code, answer) = world.request(7200).await;
    assert_eq!((code, answer["spec"]["expirationSeconds"].as_i64()), (201, Some(1800)), "{answer}");
    assert_eq!(world.tokens().extended(365 * 24 * 3600), 1800);
    let (_, short) = Fixture::with(599, None).await;
    assert_eq!(
        short.expect_err("too short").to_string(),
        "max token life supported by external-jwt-signer (599s) is less than acceptable (min 600s)"
    );
    let (_, long) = Fixture::with(3600, Some(7200)).await;
    assert!(long.expect_err("too long").to_string().contains("7200s > 3600s"));
}

#[tokio::test]
async fn external_signer_invalid_signatures_are_rejected() {
    let world = Fixture::start().await;
    world.account().await;
    let header = |value: Value| SignJwtResponse {
        header: URL_SAFE_NO_PAD.encode(value.to_string()),
        signature: "c2ln".to_owned(),
    };
    let good = json!({"alg": "ES256", "kid": "first", "typ": "JWT"});
    let with = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed[field] = value;
        header(changed)
    };
    for (answer, want) in [
        (SignJwtResponse { header: "!".to_owned(), ..header(good.clone()) }, "while unwrapping header"),
        (with("jku", json!("https://example.com")), "while parsing header JSON"),
        (with("typ", json!("at+jwt")), "bad type"),
        (with("kid", json!("")), "key id missing"),
        (with("kid", json!("k".repeat(1025))), "key id longer than 1 kb"),
        (with("alg", json!("none")), "bad signing algorithm \"none\""),
        (with("alg", json!("HS256")), "bad signing algorithm \"HS256\""),
        (with("kid", json!("hidden")), "(kid: hidden) is excluded from OIDC discovery docs"),
        (SignJwtResponse { signature: String::new(), ..header(good.clone()) }, "empty signature returned"),
        (SignJwtResponse { signature: "a.b\n".to_owned(), ..header(good.clone()) }, "not base64"),
        (SignJwtResponse { signature: "a".repeat(1 << 20), ..header(good.clone()) }, "ResourceExhausted"),
    ] {
        world.plugin.break_with("Sign", &answer);
        let (code, answer) = world.request(3600).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(code, 500, "{want}: {answer}");
        assert!(message.starts_with("failed to generate token: ") && message.contains(want), "{message}");
    }
    *world.plugin.wrong.lock() = Some(("Sign", Some(Err((7, "not today")))));
    let (_, answer) = world.request(3600).await;
    assert_eq!(
        answer["message"],
        "failed to generate token: while signing jwt: rpc error: code = PermissionDenied desc = not today"
    );
    // A token signed by another key is issued, as in Kubernetes, but accepted nowhere.
    world.plugin.break_with("Sign", &header(good));
    let forged = world.token().await;
    assert_eq!(world.accepted(&forged).await, 401);
    assert!(world.shown("apiserver_externaljwt_sign_request_total{code=\"PermissionDenied\"} 1"));
}

#[tokio::test]
async fn external_signer_invalid_keys_retain_known_keys() {
    let world = Fixture::start().await;
    world.account().await;
    let token = world.token().await;
    let good = world.plugin.keys();
    let key = |change: &dyn Fn(&mut Key)| {
        let mut keys = good.clone();
        change(&mut keys.keys[0]);
        keys
    };
    let external = world.tokens().external.as_ref().expect("an external signer");
    for (answer, want) in [
        (FetchKeysResponse { keys: Vec::new(), ..good.clone() }, "found no keys"),
        (FetchKeysResponse { refresh_hint_seconds: 0, ..good.clone() }, "found invalid refresh hint (0s)"),
        (FetchKeysResponse { data_timestamp: None, ..good.clone() }, "invalid data timestamp"),
        (
            FetchKeysResponse {
                data_timestamp: Some(DataTimestamp { seconds: i64::MAX, nanos: 0 }),
                ..good.clone()
            },
            "invalid data timestamp",
        ),
        (key(&|key| key.key_id.clear()), "found invalid public key id \"\""),
        (key(&|key| key.key_id = "k".repeat(1025)), "found invalid public key id"),
        (key(&|key| key.key.clear()), "found empty public key"),
        (key(&|key| key.key.truncate(9)), "while parsing external public keys"),
        (key(&|key| key.key = vec![0; 5 << 20]), "ResourceExhausted"),
    ] {
        world.plugin.break_with("FetchKeys", &answer);
        let error = external.fetch(REQUEST_LIMIT).await.expect_err(want);
        assert!(base::errors::chain(&error).contains(want), "{want}: {error}");
    }
    assert_eq!(world.accepted(&token).await, 403);
    // A huge refresh hint does not overflow.
    world.plugin.break_with("FetchKeys", &FetchKeysResponse { refresh_hint_seconds: i64::MAX, ..good });
    assert!(external.fetch(REQUEST_LIMIT).await.is_ok());
    assert!(external.cache_age() <= MAX_REFRESH_INTERVAL.unsigned_abs());
}

#[tokio::test]
async fn external_signer_unknown_keys_are_rate_limited() {
    let world = Fixture::start().await;
    world.account().await;
    let token = world.token().await;
    let before = world.plugin.fetches.load(Ordering::Relaxed);
    let (_, rest) = token.split_once('.').expect("a token");
    let forged = |number: usize| {
        let header = json!({"alg": "ES256", "kid": format!("k{number}")}).to_string();
        format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))
    };
    let codes = futures_util::future::join_all((0..300).map(|number| {
        let (token, world) = (forged(number), &world);
        async move { world.accepted(&token).await }
    }));
    assert!(codes.await.iter().all(|code| *code == 401));
    assert!(world.plugin.fetches.load(Ordering::Relaxed) - before <= 2);
}

#[tokio::test]
async fn external_signer_hanging_plugin_times_out() {
    let mut world = Fixture::start().await;
    world.account().await;
    let token = world.token().await;
    let authentication = Arc::get_mut(&mut world.server.chain.rest.authentication).expect("the only owner");
    let external = authentication.service_accounts.external.as_mut().expect("an external signer");
    external.request_limit = Duration::from_millis(300);
    *world.plugin.wrong.lock() = Some(("Sign", None));
    let (code, answer) = world.request(3600).await;
    let message = answer["message"].as_str().unwrap_or_default();
    assert_eq!(code, 500, "{answer}");
    assert!(message.contains("code = DeadlineExceeded"), "{message}");
    // A token of an unknown key is rejected; tokens of known keys are still accepted.
    *world.plugin.wrong.lock() = Some(("FetchKeys", None));
    let (_, rest) = token.split_once('.').expect("a token");
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "ES256", "kid": "unknown"}).to_string());
    assert_eq!(world.accepted(&format!("{header}.{rest}")).await, 401);
    assert_eq!(world.accepted(&token).await, 403);
    assert!(world.shown("apiserver_externaljwt_fetch_keys_request_total{code=\"DeadlineExceeded\"} 1"));
}
