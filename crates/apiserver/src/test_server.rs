//! A whole request chain on its own store, whose users have exactly the permissions that a test grants.

use crate::admission::Admission;
use crate::authenticate::{Authentication, AuthenticationConfig};
use crate::authorize::{Attributes, Authorizer, Choice, Decision, ResolvedRules};
use crate::chain::{Chain, ChainConfig};
use crate::registry::Registry;
use crate::registry::services::{ServiceConfig, Services};
use crate::rest::component_status::ComponentChecks;
use crate::rest::connect::Connections;
use crate::rest::{Limits, Rest, WatchMetrics};
use crate::serve::{ClientTrust, Connection, RequestBody, Service};
use crate::user::UserInfo;
use base::clock::Clock;
use base::metrics::Metrics;
use base::readiness::Readiness;
use futures_util::future::BoxFuture;
use http::{Method, Request};
use http_body_util::BodyExt;
use machinery::Value;
use machinery::status::Result;
use parking_lot::Mutex;
use std::sync::Arc;
use store::{Embedded, EmbeddedOptions, Store};

/// Member of `system:masters`.
pub const ADMIN: &str = "admin";
/// User with the granted permissions only.
pub const ALICE: &str = "alice";

pub struct TestServer {
    pub chain: Chain,
    connection: Arc<Connection>,
    grants: Arc<Grants>,
    _directory: tempfile::TempDir,
}

/// Permissions of users outside `system:masters`: verb and resource, with its subresource if any.
#[derive(Default)]
struct Grants(Mutex<Vec<(String, String)>>);

impl Authorizer for Grants {
    fn label(&self) -> (&'static str, &str) {
        ("Grants", "grants")
    }

    fn authorize<'a>(
        &'a self,
        _user: &'a UserInfo,
        wanted: &'a Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>> {
        let resource = match wanted.subresource {
            "" => wanted.resource.to_owned(),
            subresource => format!("{}/{subresource}", wanted.resource),
        };
        let has = |(verb, of): &(String, String)| *verb == wanted.verb && *of == resource;
        let decision = match self.0.lock().iter().any(has) {
            true => Decision::Allowed(Arc::default()),
            false => Decision::NoOpinion(String::new()),
        };
        Box::pin(std::future::ready(Ok(decision)))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>> {
        Box::pin(std::future::ready(Ok(ResolvedRules::default())))
    }
}

impl TestServer {
    pub fn start() -> Self {
        Self::start_with(AuthenticationConfig::default())
    }

    /// A server with this authentication, besides its two users.
    pub fn start_with(authentication: AuthenticationConfig) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        Self::on(Arc::new(store), directory, "", authentication)
    }

    /// Another server on the same store.
    pub fn beside(&self) -> Self {
        self.beside_with("")
    }

    /// Another server on the same store with this `--runtime-config`.
    pub fn beside_with(&self, runtime: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authentication = AuthenticationConfig::default();
        Self::on(Arc::clone(&self.chain.rest.registry.store), directory, runtime, authentication)
    }

    fn on(
        store: Arc<dyn Store>,
        directory: tempfile::TempDir,
        runtime: &str,
        authentication: AuthenticationConfig,
    ) -> Self {
        let tokens = directory.path().join("tokens");
        let lines = format!("{ADMIN},{ADMIN},1,system:masters\n{ALICE},{ALICE},2\n");
        std::fs::write(&tokens, lines).expect("written");
        let grants = Arc::new(Grants::default());
        let runtime = api::runtime_config::RuntimeConfig::parse(runtime.split(',')).expect("valid");
        let clock = Clock::system();
        let metrics = Metrics::new(&clock).expect("metrics");
        let mut admission = Admission::default();
        admission.observe(&metrics).expect("metrics");
        let registry = Arc::new(Registry::with_runtime_config(
            store,
            admission,
            Services::new(ServiceConfig::default()),
            vec![Choice::Other(grants.clone())],
            String::new(),
            &runtime,
        ));
        let config = AuthenticationConfig { token_file: Some(tokens), ..authentication };
        let authentication = Authentication::new(config, registry.clone(), &clock).expect("authentication");
        let rest = Rest {
            registry,
            authentication: Arc::new(authentication),
            limits: Limits { max_body_bytes: 3 << 20, cbor: true },
            connections: Connections::default(),
            components: ComponentChecks::default(),
            watch_metrics: Some(WatchMetrics::new(&metrics).expect("metrics")),
        };
        let config = ChainConfig { priority_and_fairness: false, ..ChainConfig::default() };
        let chain = Chain::new(rest, Readiness::new(), metrics, clock, None, config);
        let trust = ClientTrust::new(&[], &[]).expect("no authorities");
        Self {
            chain: chain.expect("a chain"),
            connection: Arc::new(Connection::in_process(Vec::new(), &trust)),
            grants,
            _directory: directory,
        }
    }

    /// Replaces all permissions.
    pub fn grant(&self, permissions: &[(&str, &str)]) {
        let owned = permissions.iter().map(|(verb, of)| ((*verb).to_owned(), (*of).to_owned()));
        *self.grants.0.lock() = owned.collect();
    }

    /// Sends a request without waiting for the end of its response.
    pub async fn send(&self, request: Request<RequestBody>) -> crate::wire::reply::Reply {
        self.chain.call(request, self.connection.clone()).await
    }

    /// Status code and body of a user's request.
    pub async fn ask(
        &self,
        user: &str,
        method: Method,
        path: &str,
        media: &str,
        body: impl Into<Vec<u8>>,
    ) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {user}"))
            .header("content-type", media)
            .body(RequestBody::from(body.into()))
            .expect("a request");
        let reply = self.chain.call(request, self.connection.clone()).await;
        let code = reply.status().as_u16();
        let body = reply.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub async fn create(&self, path: &str, object: &Value) -> Value {
        let (code, body) = self.ask(ADMIN, Method::POST, path, "application/json", object.to_string()).await;
        assert_eq!(code, 201, "{path}: {body}");
        body
    }
}
