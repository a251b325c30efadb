//! ComponentStatus: the health of the scheduler, the controller manager and the store, checked when it is read.
//!
//! All checks of a list run concurrently and each has a time limit, so an unresponsive component costs its own row
//! only.

use super::{Rest, Route};
use crate::cache::Entry;
use crate::registry::Stores;
use crate::selection::Selection;
use crate::wire::forms::{self, Include};
use crate::wire::negotiate::Accepted;
use crate::wire::options::ListOptions;
use crate::wire::reply::{self, Reply};
use base::http::{Authorities, Client, HttpError, Limits, Origin, Trust};
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use http::Request;
use http_body_util::Full;
use machinery::Value;
use machinery::status::{Result, Status};
use parking_lot::RwLock;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// Time limit of one check.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// Time limits of the steps of an HTTP check; all of them end before [`CHECK_LIMIT`].
const STEP_LIMIT: Duration = Duration::from_secs(2);
/// Part of a response that becomes the message, as in Kubernetes' probes.
const MAX_ANSWER: usize = 10 << 10;
/// Ports of the components on the API server's machine, as in Kubernetes.
const PORTS: [(&str, u16); 2] = [("controller-manager", 10257), ("scheduler", 10259)];

/// Result of a check: the message of a healthy component, or the reason.
pub type ComponentHealth = std::result::Result<String, Unhealthy>;

/// Reason why a component is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unhealthy {
    /// Response of the component, or the reason why there is none: the condition's `message`.
    Message(String),
    /// Failure of the check: the condition's `error`.
    Error(String),
}

type Check = Arc<dyn Fn() -> BoxFuture<'static, ComponentHealth> + Send + Sync>;

/// The components and their checks, by name.
pub struct ComponentChecks {
    checks: RwLock<BTreeMap<String, Check>>,
    /// Time limit of each check.
    limit: Duration,
}

impl Default for ComponentChecks {
    fn default() -> Self {
        Self { checks: RwLock::default(), limit: CHECK_LIMIT }
    }
}

impl ComponentChecks {
    /// The components of Kubernetes: the store, and the ports of scheduler and controller manager on this machine.
    pub fn of_machine(stores: &Stores) -> Self {
        let checks = Self::default();
        for (name, port) in PORTS {
            checks.set(name, move || Box::pin(probe(port)));
        }
        for (number, store) in std::iter::once(&stores.main).chain(stores.others()).enumerate() {
            checks.set_store(&format!("etcd-{number}"), store);
        }
        checks
    }

    /// Adds a component, or replaces its check.
    pub fn set(
        &self,
        name: &str,
        check: impl Fn() -> BoxFuture<'static, ComponentHealth> + Send + Sync + 'static,
    ) {
        self.checks.write().insert(name.to_owned(), Arc::new(check));
    }

    /// Adds a store, which is healthy while it responds.
    fn set_store(&self, name: &str, store: &Arc<dyn Store>) {
        let store = Arc::clone(store);
        self.set(name, move || {
            let store = Arc::clone(&store);
            Box::pin(async move {
                let answer = store.get("/registry/health").await;
                answer.map(|_| "ok".to_owned()).map_err(|error| Unhealthy::Error(error.to_string()))
            })
        });
    }

    async fn status(&self, name: &str, check: &Check) -> Value {
        let health = tokio::time::timeout(self.limit, check()).await;
        let health = health.unwrap_or_else(|_| Err(Unhealthy::Error("context deadline exceeded".to_owned())));
        let mut condition = match health {
            Ok(message) => json!({"type": "Healthy", "status": "True", "message": message}),
            Err(Unhealthy::Message(message)) => {
                json!({"type": "Healthy", "status": "False", "message": message})
            }
            Err(Unhealthy::Error(error)) => json!({"type": "Healthy", "status": "False", "error": error}),
        };
        if let Some(fields) = condition.as_object_mut() {
            fields.retain(|_, value| value.as_str() != Some(""));
        }
        json!({
            "kind": "ComponentStatus",
            "apiVersion": "v1",
            "metadata": {"name": name},
            "conditions": [condition],
        })
    }
}

impl Route<'_> {
    /// Reports whether the resource is computed from component checks instead of stored objects.
    pub(super) fn is_component_status(&self) -> bool {
        self.served.kind.group().is_empty() && self.served.kind.resource() == "componentstatuses"
    }
}

impl Rest {
    pub(super) async fn component(&self, route: &Route<'_>, accepted: &Accepted) -> Result<Reply> {
        let name = route.context.info.name.as_str();
        let check = self.components.checks.read().get(name).cloned();
        let check = check.ok_or_else(|| Status::not_found("", "componentstatus", name))?;
        let status = self.components.status(name, &check).await;
        let include = Include::read(&route.context.query, accepted)?;
        let shown = forms::object(&route.served, status, accepted, include)?;
        reply::value(200, &shown, accepted, route.context)
    }

    pub(super) async fn list_components(&self, route: &Route<'_>, accepted: &Accepted) -> Result<Reply> {
        let options = ListOptions::read(&route.context.query, false)?;
        let selection = Selection::read(&route.served, &options)?;
        let include = Include::read(&route.context.query, accepted)?;
        let checks: Vec<_> = self.components.checks.read().clone().into_iter().collect();
        let checks = checks.iter().map(|(name, check)| self.components.status(name, check));
        let mut statuses = join_all(checks).await;
        let layout = &route.served.storage.cache.layout;
        statuses.retain(|status| {
            let key = route.served.key("", status["metadata"]["name"].as_str().unwrap_or_default());
            selection.matches(&Entry::new(key.into(), layout.prefix.encode(status), 0), layout)
        });
        let shown = forms::list(&route.served, json!({}), statuses, accepted, include)?;
        reply::value(200, &shown, accepted, route.context)
    }
}

/// Requests `/healthz` of a local port over HTTPS, as Kubernetes does. The ports of `ferry scheduler` and `ferry
/// controller-manager` have no TLS, so plain HTTP is tried after a failed handshake.
async fn probe(port: u16) -> ComponentHealth {
    let limits = Limits {
        connect: STEP_LIMIT,
        response: STEP_LIMIT,
        silence: STEP_LIMIT,
        max_idle: 0,
        ..Limits::default()
    };
    let (host, client) = ("127.0.0.1", Client::new(limits));
    let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
    let url = format!("https://{host}:{port}/healthz");
    let secured = Origin::of_url(&url, &trust).map_err(|error| Unhealthy::Error(error.to_string()))?;
    let (code, body) = match get(&client, &secured).await {
        Err(HttpError::Tls { source, .. }) => match get(&client, &Origin::plain(host, port)).await {
            Ok(answer) => answer,
            Err(_) => return Err(Unhealthy::Message(format!("Get {url:?}: {source}"))),
        },
        Err(error) => return Err(Unhealthy::Message(format!("Get {url:?}: {}", reason(&error)))),
        Ok(answer) => answer,
    };
    match code {
        200..400 => Ok(body),
        code => Err(Unhealthy::Message(format!("HTTP probe failed with statuscode: {code}"))),
    }
}

/// Status code and beginning of the body of `/healthz`.
async fn get(client: &Client, origin: &Origin) -> std::result::Result<(u16, String), HttpError> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = http::Uri::from_static("/healthz");
    let mut response = client.send(origin, request).await?;
    let code = response.status.as_u16();
    let mut body = Vec::new();
    while body.len() < MAX_ANSWER
        && let Some(piece) = response.piece().await?
    {
        body.extend_from_slice(&piece);
    }
    body.truncate(MAX_ANSWER);
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

/// Error text as worded by Go's HTTP client.
fn reason(error: &HttpError) -> String {
    match error {
        HttpError::Connect { address, source } => {
            format!("dial tcp {address}: connect: {}", base::errors::system(source))
        }
        HttpError::ConnectTimeout { address, .. } => format!("dial tcp {address}: i/o timeout"),
        HttpError::NoResponse(_) | HttpError::Silence(_) => {
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()
        }
        other => base::errors::chain(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::{ADMIN, TestServer};
    use http::Method;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const PATH: &str = "/api/v1/componentstatuses";

    async fn read(server: &TestServer, path: &str) -> (u16, Value) {
        server.ask(ADMIN, Method::GET, path, "application/json", "").await
    }

    #[tokio::test]
    async fn hanging_component_affects_its_own_row_only() {
        let mut server = TestServer::start();
        server.chain.rest.components.limit = Duration::from_secs(1);
        let checks = &server.chain.rest.components;
        // Each of the two checks waits for the other one.
        let both = Arc::new(tokio::sync::Barrier::new(2));
        for name in ["controller-manager", "etcd-0"] {
            let both = Arc::clone(&both);
            checks.set(name, move || {
                let both = Arc::clone(&both);
                Box::pin(async move {
                    both.wait().await;
                    if name == "etcd-0" {
                        Ok("ok".to_owned())
                    } else {
                        Err(Unhealthy::Message("refused".to_owned()))
                    }
                })
            });
        }
        checks.set("scheduler", || Box::pin(std::future::pending()));
        checks.set("other", || Box::pin(std::future::pending()));
        let (code, list) = read(&server, PATH).await;
        assert_eq!(code, 200, "{list}");
        assert_eq!(list["kind"], "ComponentStatusList");
        assert_eq!(list["metadata"], json!({}));
        let row = |name: &str, status: &str, key: &str, text: &str| json!({"metadata": {"name": name}, "conditions": [{"type": "Healthy", "status": status, key: text}]});
        let want = json!([
            row("controller-manager", "False", "message", "refused"),
            row("etcd-0", "True", "message", "ok"),
            row("other", "False", "error", "context deadline exceeded"),
            row("scheduler", "False", "error", "context deadline exceeded"),
        ]);
        assert_eq!(list["items"], want);
    }

    #[tokio::test]
    async fn component_is_read_by_name_and_selector() {
        let server = TestServer::start();
        for name in ["etcd-0", "scheduler"] {
            server.chain.rest.components.set(name, || Box::pin(async { Ok("ok".to_owned()) }));
        }
        let (code, one) = read(&server, &format!("{PATH}/etcd-0")).await;
        assert_eq!((code, &one["metadata"]), (200, &json!({"name": "etcd-0"})));
        assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("ComponentStatus"), &json!("v1")));
        let (code, missing) = read(&server, &format!("{PATH}/etcd-7")).await;
        assert_eq!((code, &missing["message"]), (404, &json!("componentstatus \"etcd-7\" not found")));
        let names = async |query: &str| {
            let (code, list) = read(&server, &format!("{PATH}?{query}")).await;
            let items = list["items"].as_array().cloned().unwrap_or_default();
            (code, items.iter().map(|item| item["metadata"]["name"].clone()).collect::<Vec<_>>())
        };
        assert_eq!(names("fieldSelector=metadata.name%3Dscheduler").await, (200, vec![json!("scheduler")]));
        assert_eq!(names("labelSelector=a%3Db").await, (200, vec![]));
        assert_eq!(names("labelSelector=a%21%3Db").await.1.len(), 2);
        assert_eq!(names("labelSelector=%3D%3D%3D").await.0, 400);
        let (code, _) = server.ask(ADMIN, Method::POST, PATH, "application/json", "{}").await;
        assert_eq!(code, 405);
    }

    #[tokio::test]
    async fn probe_reads_ports_without_tls_and_reports_refused_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answers = tokio::spawn(async move {
            for answer in
                ["", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "", "HTTP/1.1 503 No\r\n\r\n"]
            {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        assert_eq!(probe(port).await, Ok("ok".to_owned()));
        let failed = Unhealthy::Message("HTTP probe failed with statuscode: 503".to_owned());
        assert_eq!(probe(port).await, Err(failed));
        answers.await.expect("no panic");
        let url = format!("https://127.0.0.1:{port}/healthz");
        let refused = format!("Get {url:?}: dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(probe(port).await, Err(Unhealthy::Message(refused)));
    }
}
