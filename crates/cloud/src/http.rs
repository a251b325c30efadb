//! HTTP client of an external provider, which serves the calls of `docs/cloud-provider.md`.
//!
//! A [`Caller`] transports the calls, so this module implements only the protocol.

use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use objects::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Node, Service};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::node_addresses::current;
use crate::{Instance, Instances, LoadBalancers, Provider, ProviderError, Route, Routes};

/// Status code for an unimplemented call.
const NOT_IMPLEMENTED: u16 = 501;
/// Health check path for services with the external traffic policy Local.
const HEALTH_PATH: &str = "/healthz";
/// Length limit of a provider's error text in messages.
const LONGEST_MESSAGE: usize = 512;

/// Transport of calls to the provider.
#[async_trait]
pub trait Caller: Send + Sync + 'static {
    /// Posts `body` to a path below the provider's URL and returns the response body.
    async fn call(&self, path: &str, body: &Value) -> Result<Value, CallError>;
}

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("status {code}: {body}")]
    Status { code: u16, body: String },
    #[error("no response")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug, Deserialize)]
struct Description {
    name: String,
    #[serde(default)]
    capabilities: Vec<String>,
}

/// Any response may request a retry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NotYet {
    retry_after_seconds: Option<u32>,
    message: String,
}

#[derive(Debug, Deserialize)]
struct FindResponse {
    exists: bool,
    #[serde(flatten)]
    instance: Instance,
}

#[derive(Debug, Deserialize)]
struct RouteList {
    routes: Vec<Route>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Balancer {
    exists: bool,
    ingress: Option<Vec<LoadBalancerIngress>>,
}

/// Provider that calls an HTTP server.
pub struct Http {
    caller: Arc<dyn Caller>,
    name: String,
    capabilities: Vec<String>,
}

impl Http {
    /// Requests the provider's name and capabilities.
    pub fn connect(caller: Arc<dyn Caller>) -> BoxFuture<'static, Result<Self, ProviderError>> {
        Box::pin(async move {
            let Description { name, capabilities } =
                call(&*caller, "describe its capabilities", "/v1/describe", &json!({ "protocol": 1 }))
                    .await?;
            Ok(Self { caller, name, capabilities })
        })
    }

    fn can(&self, what: &str) -> bool {
        self.capabilities.iter().any(|known| known == what)
    }

    async fn call<R: DeserializeOwned>(
        &self,
        operation: &'static str,
        path: &str,
        body: &Value,
    ) -> Result<R, ProviderError> {
        call(&*self.caller, operation, path, body).await
    }
}

async fn call<R: DeserializeOwned>(
    caller: &dyn Caller,
    operation: &'static str,
    path: &str,
    body: &Value,
) -> Result<R, ProviderError> {
    let failed = |source| ProviderError::Failed { operation, source };
    let answer = match caller.call(path, body).await {
        Ok(answer) => answer,
        Err(CallError::Status { code: NOT_IMPLEMENTED, .. }) => return Err(ProviderError::Elsewhere),
        Err(CallError::Status { code, body }) => return Err(rejection(code, &body)),
        Err(error @ CallError::Failed(_)) => return Err(failed(Box::new(error))),
    };
    if let Some(not_yet) = not_yet(&answer) {
        return Err(not_yet);
    }
    serde_json::from_value(answer).map_err(|error| failed(Box::new(error)))
}

fn not_yet(answer: &Value) -> Option<ProviderError> {
    let retry: NotYet = serde_json::from_value(answer.clone()).unwrap_or_default();
    let after = Duration::from_secs(retry.retry_after_seconds?.max(1).into());
    Some(ProviderError::NotYet { after, reason: shortened(&retry.message) })
}

/// The provider's error text, if there is one.
fn rejection(code: u16, body: &str) -> ProviderError {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    if let Some(not_yet) = not_yet(&answer) {
        return not_yet;
    }
    match answer["message"].as_str() {
        Some(message) => ProviderError::Refused(shortened(message)),
        None => ProviderError::Refused(format!("the provider returned status {code}")),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST_MESSAGE).collect()
}

impl Provider for Http {
    fn name(&self) -> &str {
        &self.name
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.can("instances").then_some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.can("routes").then_some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        self.can("loadBalancers").then_some(self)
    }
}

#[async_trait]
impl Instances for Http {
    async fn find(&self, cluster: &str, node: &Node) -> Result<Option<Instance>, ProviderError> {
        let body = json!({ "cluster": cluster, "node": node_json(node) });
        let found: FindResponse = self.call("find an instance", "/v1/instances/find", &body).await?;
        Ok(found.exists.then_some(found.instance))
    }
}

#[async_trait]
impl Routes for Http {
    async fn list(&self, cluster: &str) -> Result<Vec<Route>, ProviderError> {
        let list: RouteList =
            self.call("list routes", "/v1/routes/list", &json!({ "cluster": cluster })).await?;
        Ok(list.routes)
    }

    async fn create(&self, cluster: &str, hint: &str, route: &Route) -> Result<(), ProviderError> {
        let body = json!({ "cluster": cluster, "nameHint": hint, "route": route });
        self.call::<Value>("create a route", "/v1/routes/create", &body).await.map(drop)
    }

    async fn delete(&self, cluster: &str, route: &Route) -> Result<(), ProviderError> {
        let body = json!({ "cluster": cluster, "route": route });
        self.call::<Value>("delete a route", "/v1/routes/delete", &body).await.map(drop)
    }
}

#[async_trait]
impl LoadBalancers for Http {
    async fn get(
        &self,
        cluster: &str,
        service: &Service,
    ) -> Result<Option<LoadBalancerStatus>, ProviderError> {
        let body = json!({ "cluster": cluster, "service": service_json(service) });
        let found: Balancer = self.call("get a load balancer", "/v1/load-balancers/get", &body).await?;
        Ok(found.exists.then_some(LoadBalancerStatus { ingress: found.ingress }))
    }

    async fn ensure(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, ProviderError> {
        let body = with_nodes(cluster, service, nodes);
        let made: Balancer = self.call("ensure a load balancer", "/v1/load-balancers/ensure", &body).await?;
        Ok(LoadBalancerStatus { ingress: made.ingress })
    }

    async fn update(
        &self,
        cluster: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<Option<LoadBalancerStatus>, ProviderError> {
        let body = with_nodes(cluster, service, nodes);
        let made: Balancer = self.call("update a load balancer", "/v1/load-balancers/update", &body).await?;
        Ok(made.ingress.map(|ingress| LoadBalancerStatus { ingress: Some(ingress) }))
    }

    async fn delete(&self, cluster: &str, service: &Service) -> Result<(), ProviderError> {
        let body = json!({ "cluster": cluster, "service": service_json(service) });
        self.call::<Value>("delete a load balancer", "/v1/load-balancers/delete", &body).await.map(drop)
    }
}

fn node_json(node: &Node) -> Value {
    json!({
        "name": node.metadata.name,
        "providerID": node.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
        "addresses": current(node),
        "labels": node.metadata.labels.clone().unwrap_or_default(),
    })
}

fn with_nodes(cluster: &str, service: &Service, nodes: &[Arc<Node>]) -> Value {
    let nodes: Vec<Value> = nodes.iter().map(|node| node_json(node)).collect();
    json!({ "cluster": cluster, "service": service_json(service), "nodes": nodes })
}

/// Fields of a service that a load balancer needs. Absent fields are null.
fn service_json(service: &Service) -> Value {
    let (meta, spec) = (&service.metadata, service.spec.clone().unwrap_or_default());
    let affinity = spec.session_affinity_config.and_then(|config| config.client_ip);
    let local = spec.external_traffic_policy.as_deref() == Some("Local");
    let health_port = spec.health_check_node_port.filter(|port| local && *port > 0);
    json!({
        "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
        "annotations": meta.annotations.clone().unwrap_or_default(),
        "ports": spec.ports.unwrap_or_default().iter().map(|port| json!({
            "name": port.name, "protocol": port.protocol.as_deref().unwrap_or("TCP"), "port": port.port,
            "nodePort": port.node_port, "appProtocol": port.app_protocol,
        })).collect::<Vec<_>>(),
        "ipFamilies": spec.ip_families.unwrap_or_default(),
        "loadBalancerIP": spec.load_balancer_ip,
        "sourceRanges": spec.load_balancer_source_ranges.unwrap_or_default(),
        "sessionAffinity": spec.session_affinity,
        "sessionAffinitySeconds": affinity.and_then(|client| client.timeout_seconds),
        "externalTrafficPolicy": spec.external_traffic_policy,
        "healthCheck": health_port.map(|port| json!({ "path": HEALTH_PATH, "port": port })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Returns prepared responses in order and records the requests.
    struct Script {
        answers: Mutex<Vec<Result<Value, CallError>>>,
        requests: Mutex<Vec<(String, Value)>>,
    }

    #[async_trait]
    impl Caller for Script {
        async fn call(&self, path: &str, body: &Value) -> Result<Value, CallError> {
            self.requests.lock().push((path.to_owned(), body.clone()));
            self.answers.lock().remove(0)
        }
    }

    async fn provider(answers: Vec<Result<Value, CallError>>) -> (Http, Arc<Script>) {
        let described = json!({ "name": "acme", "capabilities": ["loadBalancers", "flying"] });
        let answers = [Ok(described)].into_iter().chain(answers).collect();
        let script = Arc::new(Script { answers: Mutex::new(answers), requests: Mutex::default() });
        let caller: Arc<dyn Caller> = Arc::clone(&script) as _;
        (Http::connect(caller).await.expect("connected"), script)
    }

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "n", "uid": "u" },
            "spec": { "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
                "ports": [{ "port": 80, "nodePort": 30080 }] },
        }))
        .expect("a service")
    }

    #[tokio::test]
    async fn http_provider_calls_and_responses_match_protocol() {
        let status = |code: u16, body: &str| Err(CallError::Status { code, body: body.to_owned() });
        let (http, script) = provider(vec![
            Ok(json!({ "ingress": [{ "ip": "192.0.2.1" }] })),
            Ok(json!({ "retryAfterSeconds": 7, "message": "being built" })),
            status(503, r#"{"retryAfterSeconds": 3}"#),
            status(409, r#"{"message": "the quota is used up"}"#),
            status(500, "<html>"),
            status(501, ""),
            Ok(json!({ "ingress": 7 })),
        ])
        .await;
        assert_eq!(http.name(), "acme");
        assert!(http.load_balancers().is_some() && http.routes().is_none() && http.instances().is_none());
        let service = service();
        let ensure = async || LoadBalancers::ensure(&http, "c", &service, &[]).await;
        let made = ensure().await.expect("made");
        assert_eq!(made.ingress.expect("one")[0].ip.as_deref(), Some("192.0.2.1"));
        for seconds in [7, 3] {
            let after = Duration::from_secs(seconds);
            assert!(
                matches!(ensure().await, Err(ProviderError::NotYet { after: delay, .. }) if delay == after)
            );
        }
        assert_eq!(ensure().await.expect_err("refused").to_string(), "the quota is used up");
        assert_eq!(ensure().await.expect_err("broken").to_string(), "the provider returned status 500");
        assert!(matches!(ensure().await, Err(ProviderError::Elsewhere)));
        assert!(
            ensure()
                .await
                .expect_err("nonsense")
                .text()
                .starts_with("the cloud provider failed to ensure a load balancer")
        );
        let requests = script.requests.lock();
        assert_eq!(requests[0].0, "/v1/describe");
        let (path, body) = &requests[1];
        assert_eq!(path, "/v1/load-balancers/ensure");
        assert_eq!(body["service"]["healthCheck"], json!({ "path": "/healthz", "port": 31000 }));
        assert_eq!(body["service"]["ports"][0]["nodePort"], 30080);
    }
}
