//! One run of a command: its settings, its connection, and what the server serves.

use std::path::PathBuf;
use std::sync::Arc;

use base::version::user_agent;
use bytes::Bytes;
use client::{
    Call, Client, Discovery, Kubeconfig, MergedKubeconfig, Overrides, RawRequest, Remote, Transport,
    Upgraded, escape,
};
use http::header::{HeaderName, HeaderValue};
use http::{Method, Response};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use crate::error::{CliError, fail};
use crate::flags::Globals;
use crate::{Environment, Io};

/// Longest answer that is read; lists come in pages.
const LONGEST_ANSWER: usize = 256 << 20;
const JSON: &str = "application/json";
/// Server of a command without a kubeconfig.
const NO_SERVER: &str = "localhost:8080";

pub struct Session {
    pub globals: Globals,
    pub environment: Environment,
    pub io: Io,
    /// Path of the command, such as `kubectl get`.
    pub command: String,
    /// Warnings of the server that were printed.
    pub warnings: Vec<String>,
    connection: Option<Connection>,
    discovery: Option<Arc<Discovery>>,
}

#[derive(Clone)]
struct Connection {
    client: Client,
    remote: Arc<Remote>,
    namespace: String,
    server: String,
}

/// A request: method, path, query and body.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub accept: &'static str,
    pub content_type: &'static str,
    pub body: Option<Value>,
}

impl Request {
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), query: Vec::new(), accept: JSON, content_type: JSON, body: None }
    }

    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    #[must_use]
    pub fn body(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    #[must_use]
    pub fn query(mut self, key: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.query.push((key, value));
        }
        self
    }

    #[must_use]
    pub fn queries(mut self, query: Vec<(&'static str, String)>) -> Self {
        self.query.extend(query);
        self
    }

    fn raw(&self) -> RawRequest {
        let mut target = self.path.clone();
        for (index, (key, value)) in self.query.iter().enumerate() {
            let separator = if index == 0 && !target.contains('?') { '?' } else { '&' };
            target.push_str(&format!("{separator}{key}={}", escape(value)));
        }
        let body = self.body.as_ref().map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let content_type = if self.body.is_some() { self.content_type } else { "" };
        RawRequest {
            method: self.method.clone(),
            target,
            content_type: content_type.to_owned(),
            accept: self.accept.to_owned(),
            body,
        }
    }
}

/// Adds headers to every request.
struct WithHeaders {
    remote: Arc<Remote>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Transport for WithHeaders {
    fn call(&self, mut request: http::Request<Bytes>) -> Call<'_> {
        for (name, value) in &self.headers {
            request.headers_mut().append(name.clone(), value.clone());
        }
        self.remote.call(request)
    }
}

impl Session {
    pub fn new(globals: Globals, environment: Environment, io: Io, command: String) -> Self {
        Self { globals, environment, io, command, warnings: Vec::new(), connection: None, discovery: None }
    }

    /// Kubeconfig files in the order in which they count, whether they exist or not.
    pub fn kubeconfig_paths(&self) -> Vec<PathBuf> {
        if let Some(path) = &self.globals.kubeconfig {
            return vec![path.clone()];
        }
        if let Some(paths) = &self.environment.kubeconfig {
            return std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty()).collect();
        }
        self.environment.home.iter().map(|home| home.join(".kube/config")).collect()
    }

    pub fn kubeconfig(&self) -> Result<MergedKubeconfig, CliError> {
        let paths = self.kubeconfig_paths();
        if let (Some(path), true) = (&self.globals.kubeconfig, paths.iter().all(|path| !path.exists())) {
            return fail(format!("stat {}: no such file or directory", path.display()));
        }
        Ok(MergedKubeconfig::load(&paths)?)
    }

    fn configuration(&self) -> Result<Kubeconfig, CliError> {
        let overrides = &self.globals.overrides;
        let merged = self.kubeconfig()?;
        if !merged.is_empty() || overrides.server.is_some() {
            let missing = |what: &str, name: &str| fail(format!("{what} {name:?} does not exist"));
            if let Some(name) =
                overrides.context.as_deref().filter(|name| merged.entry("contexts", name).is_none())
            {
                return missing("context", name);
            }
            let named = |list: &str, name: &Option<String>| {
                name.as_deref().filter(|name| merged.entry(list, name).is_none()).map(str::to_owned)
            };
            if let Some(name) = named("clusters", &overrides.cluster).filter(|_| overrides.server.is_none()) {
                return missing("cluster", &name);
            }
            if let Some(name) = named("users", &overrides.user) {
                return missing("auth info", &name);
            }
            return match merged.select(overrides) {
                Ok(config) => Ok(config),
                Err(client::KubeconfigError::Missing { .. }) => Err(refused()),
                Err(error) => Err(error.into()),
            };
        }
        let mut config = match (Kubeconfig::of_pod(), &self.environment.fallback) {
            (Ok(config), _) => config,
            (Err(_), Some(path)) if path.exists() => {
                MergedKubeconfig::load(std::slice::from_ref(path))?.select(&Overrides::default())?
            }
            _ => return Err(refused()),
        };
        overrides.apply(&mut config);
        Ok(config)
    }

    fn connection(&mut self) -> Result<Connection, CliError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let config = self.configuration()?;
        let namespace = match config.namespace.as_str() {
            "" => "default".to_owned(),
            ns => ns.to_owned(),
        };
        let server = config.server.clone();
        let remote = Arc::new(Remote::new(config)?);
        let mut headers = Vec::new();
        for (name, value) in &self.globals.impersonate {
            let Ok(value) = HeaderValue::from_str(value) else {
                return fail(format!("invalid value for {name}"));
            };
            headers.push((HeaderName::from_static(name), value));
        }
        let transport = WithHeaders { remote: Arc::clone(&remote), headers };
        let client = Client::new(Arc::new(transport), &user_agent("kubectl"));
        let connection = Connection { client, remote, namespace, server };
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    /// The namespace of the command: `-n`, or that of the context.
    pub fn namespace(&mut self) -> Result<String, CliError> {
        Ok(self.connection()?.namespace)
    }

    /// The address of the server.
    pub fn server(&mut self) -> Result<String, CliError> {
        Ok(self.connection()?.server)
    }

    /// Resources of the server; read once.
    pub async fn discovery(&mut self) -> Result<Arc<Discovery>, CliError> {
        if let Some(discovery) = &self.discovery {
            return Ok(Arc::clone(discovery));
        }
        let discovery = Arc::new(self.connection()?.client.discover().await?);
        self.discovery = Some(Arc::clone(&discovery));
        Ok(discovery)
    }

    /// Sends a request and reads its answer, whose warnings are printed.
    pub async fn exchange(&mut self, request: &Request) -> Result<Response<Bytes>, CliError> {
        let client = self.connection()?.client;
        let raw = request.raw();
        let exchange = async {
            let (head, body) = client.raw_stream(&raw).await?.into_parts();
            let whole = Limited::new(body, LONGEST_ANSWER).collect().await;
            match whole {
                Ok(whole) => Ok(Response::from_parts(head, whole.to_bytes())),
                Err(error) => {
                    fail(format!("failed to read the response to {} {}: {error}", raw.method, raw.target))
                }
            }
        };
        let answer = match self.globals.request_timeout {
            None => exchange.await?,
            Some(limit) => match tokio::time::timeout(limit, exchange).await {
                Ok(answer) => answer?,
                Err(_) => {
                    return Err(CliError::Plain(
                        "Unable to connect to the server: net/http: request canceled (Client.Timeout exceeded while awaiting headers)".to_owned(),
                    ));
                }
            },
        };
        self.warn(answer.headers());
        Ok(answer)
    }

    /// Prints `warning` headers, each once.
    fn warn(&mut self, headers: &http::HeaderMap) {
        for value in headers.get_all("warning") {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            // `299 - "text"`
            let Some((_, quoted)) = text.split_once('"') else { continue };
            let end = quoted.rfind('"').unwrap_or(quoted.len());
            let message = quoted[..end].replace("\\\"", "\"").replace("\\\\", "\\");
            if !self.warnings.contains(&message) {
                self.io.err.line(&format!("Warning: {}", crate::printer::escape_terminal(&message)));
                self.warnings.push(message);
            }
        }
    }

    /// Sends a request; the object of its answer.
    pub async fn send(&mut self, request: &Request) -> Result<Value, CliError> {
        let answer = self.exchange(request).await?;
        match serde_json::from_slice(answer.body()) {
            Ok(value) => Ok(value),
            Err(error) => {
                fail(format!("{} {}: the answer is not JSON: {error}", request.method, request.path))
            }
        }
    }

    pub async fn read(&mut self, path: &str) -> Result<Value, CliError> {
        self.send(&Request::get(path)).await
    }

    /// Sends a request whose response is streamed.
    pub async fn stream(&mut self, request: &Request) -> Result<Response<client::Body>, CliError> {
        let client = self.connection()?.client;
        let response = client.raw_stream(&request.raw()).await?;
        self.warn(response.headers());
        Ok(response)
    }

    /// Switches a connection to WebSocket with one of `protocols`, and returns the protocol that the server chose.
    pub async fn websocket(&mut self, target: &str, protocols: &str) -> Result<(String, Upgraded), CliError> {
        let connection = self.connection()?;
        let mut request = http::Request::get(target)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            // Key of the WebSocket handshake; not a secret.
            .header("sec-websocket-key", "ZmVycnkta3ViZWN0bC0wMQ==")
            .header("sec-websocket-protocol", protocols)
            .header("user-agent", user_agent("kubectl"));
        for (name, value) in &self.globals.impersonate {
            request = request.header(*name, value);
        }
        let request = request.body(()).map_err(|error| CliError::Text(error.to_string()))?;
        let transport_error = |source| client::ClientError::Transport {
            verb: "GET".to_owned(),
            path: target.to_owned(),
            source: Box::new(source),
        };
        match connection.remote.upgrade(request).await.map_err(transport_error)? {
            Ok((head, upgraded)) => {
                let chosen = head.headers.get("sec-websocket-protocol").and_then(|value| value.to_str().ok());
                Ok((chosen.unwrap_or_default().to_owned(), upgraded))
            }
            Err(response) => {
                let code = response.status().as_u16();
                let status = serde_json::from_slice(response.body()).unwrap_or_else(|_| client::Status {
                    message: Some(String::from_utf8_lossy(response.body()).trim().to_owned()),
                    code: Some(i32::from(code)),
                    ..client::Status::default()
                });
                Err(client::ClientError::Status { status: Box::new(status), retry_after: None }.into())
            }
        }
    }
}

/// The failure of a command without a kubeconfig.
fn refused() -> CliError {
    CliError::Plain(format!(
        "The connection to the server {NO_SERVER} was refused - did you specify the right host or port?"
    ))
}
