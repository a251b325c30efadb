//! The client: typed verbs over a transport.

use std::any::TypeId;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use objects::meta::v1::{ListMeta, Status};
use objects::{Codec, DecodeShared, Shared};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dynamic;
use crate::metrics;
use crate::object;
use crate::watch::Decode;
use crate::{
    Body, Cause, Causes, ClientError, Collection, DeleteOptions, Dynamic, ListOptions, Object, ObjectList,
    Patch, Remote, ResourceKey, Transport, WatchOptions, WatchStream,
};

/// Response time limit, except for watches; slightly above the server's own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);
/// Limit of retries on 429 responses with `Retry-After`.
const MAX_RETRIES: u32 = 10;
pub(crate) const JSON: &str = "application/json";

/// One identity at one API server. Clones are cheap and share the connection.
///
/// ```
/// use bytes::Bytes;
/// use client::{Call, Client, Transport};
/// use http_body_util::{BodyExt, Full};
/// use objects::core::v1::ConfigMap;
///
/// /// A server with one object; `Client::connect` is a client over TCP and TLS.
/// struct OneObject;
///
/// impl Transport for OneObject {
///     fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
///         assert_eq!(request.uri(), "/api/v1/namespaces/default/configmaps/settings");
///         let body = r#"{"metadata": {"name": "settings"}, "data": {"colour": "blue"}}"#;
///         let body = Full::from(body).map_err(|error| match error {}).boxed_unsync();
///         Box::pin(async { Ok(http::Response::new(body)) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), client::ClientError> {
/// let client = Client::new(std::sync::Arc::new(OneObject), "example");
/// let map: ConfigMap = client.get("default", "settings").await?;
/// assert_eq!(map.data.expect("data")["colour"], "blue");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: Arc<str>,
    cause: Option<Arc<dyn Causes>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("user_agent", &self.user_agent).finish_non_exhaustive()
    }
}

/// A list of undecoded items.
#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: Option<ListMeta>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// A request in progress. Boxed, so that its body is compiled in this crate and not in each caller's.
type Pending<'a, T> = BoxFuture<'a, Result<T, ClientError>>;

/// A request of any form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRequest {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub content_type: String,
    pub accept: String,
    pub body: Bytes,
}

impl RawRequest {
    /// A request that reads JSON.
    #[must_use]
    pub fn get(target: impl Into<String>) -> Self {
        let (accept, content_type) = (JSON.to_owned(), String::new());
        Self { method: Method::GET, target: target.into(), content_type, accept, body: Bytes::new() }
    }

    fn prepared(&self) -> PreparedRequest<'_> {
        PreparedRequest {
            method: self.method.clone(),
            target: self.target.clone(),
            content_type: &self.content_type,
            accept: &self.accept,
            body: self.body.clone(),
        }
    }
}

/// A request without headers.
pub(crate) struct PreparedRequest<'a> {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub content_type: &'a str,
    pub accept: &'a str,
    pub body: Bytes,
}

impl PreparedRequest<'_> {
    pub fn get(target: String) -> Self {
        Self { method: Method::GET, target, content_type: "", accept: JSON, body: Bytes::new() }
    }

    pub fn with_body(method: Method, target: String, body: &impl Codec) -> Result<Self, ClientError> {
        let body = body.encode().map_err(ClientError::Encode)?.into();
        Ok(Self { method, target, content_type: JSON, accept: JSON, body })
    }

    pub fn undecodable(self, source: serde_json::Error) -> ClientError {
        ClientError::Decode { verb: self.method.to_string(), path: self.target, source }
    }
}

impl Client {
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, user_agent: &str) -> Self {
        Self { transport, user_agent: user_agent.into(), cause: None }
    }

    /// A client for the current context of a kubeconfig. Connects on first use.
    pub fn connect(kubeconfig: &Path, user_agent: &str) -> Result<Self, ClientError> {
        let remote = Remote::new(crate::Kubeconfig::load(kubeconfig)?)?;
        Ok(Self::new(Arc::new(remote), user_agent))
    }

    /// The same client with another user agent.
    #[must_use]
    pub fn called(&self, user_agent: &str) -> Self {
        Self { user_agent: user_agent.into(), ..self.clone() }
    }

    /// The same client, whose writes carry a cause.
    #[must_use]
    pub fn with_cause(&self, cause: &Cause) -> Self {
        self.with_causes(Arc::new(cause.clone()))
    }

    /// The same client, whose writes carry the cause that `causes` returns at that time.
    #[must_use]
    pub fn with_causes(&self, causes: Arc<dyn Causes>) -> Self {
        Self { cause: Some(causes), ..self.clone() }
    }

    /// Reports a completed write to the provider of causes.
    fn wrote<K: Object>(&self, written: &K) {
        if let Some(cause) = &self.cause {
            let meta = written.metadata();
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (ns, name) = (text(&meta.namespace), text(&meta.name));
            cause.wrote(TypeId::of::<K>(), &ns, &name, &text(&meta.resource_version));
        }
    }

    /// Objects of a kind known only at run time.
    #[must_use]
    pub fn dynamic(&self, resource: &ResourceKey) -> Dynamic {
        Dynamic::new(self.clone(), resource.clone())
    }

    /// `ns` is empty for cluster-scoped objects.
    pub async fn get<K: Object>(&self, ns: &str, name: &str) -> Result<K, ClientError> {
        self.json(PreparedRequest::get(path::<K>(ns, name, None))).await
    }

    /// All namespaces if `ns` is empty.
    pub async fn list<K: Object>(
        &self,
        ns: &str,
        options: &ListOptions,
    ) -> Result<ObjectList<K>, ClientError> {
        self.list_at(&path::<K>(ns, "", None), options, JSON, K::decode).await
    }

    /// All namespaces if `ns` is empty.
    pub async fn watch<K: Object>(
        &self,
        ns: &str,
        options: &WatchOptions,
    ) -> Result<WatchStream<K>, ClientError> {
        self.watch_at(&path::<K>(ns, "", None), options, JSON, K::decode).await
    }

    /// As [`Client::list`], of a collection whose objects `decode` reads.
    pub async fn list_collection(
        &self,
        collection: &Collection,
        options: &ListOptions,
        decode: DecodeShared,
    ) -> Result<ObjectList<Shared>, ClientError> {
        let accept = if collection.metadata_only { dynamic::METADATA_LIST } else { JSON };
        self.list_at(&collection.path, options, accept, decode).await
    }

    /// As [`Client::watch`], of a collection whose objects `decode` reads, without their `managedFields`.
    pub async fn watch_collection(
        &self,
        collection: &Collection,
        options: &WatchOptions,
        decode: DecodeShared,
    ) -> Result<WatchStream<Shared>, ClientError> {
        let accept = if collection.metadata_only { dynamic::METADATA } else { JSON };
        Ok(self.watch_at(&collection.path, options, accept, decode).await?.without_managed_fields())
    }

    pub async fn create<K: Object>(&self, ns: &str, object: &K) -> Result<K, ClientError> {
        self.json(PreparedRequest::with_body(Method::POST, path::<K>(ns, "", None), object)?).await
    }

    /// Namespace and name are the object's own.
    pub async fn update<K: Object>(&self, object: &K) -> Result<K, ClientError> {
        self.put(object, None).await
    }

    pub async fn update_status<K: Object>(&self, object: &K) -> Result<K, ClientError> {
        self.put(object, Some("status")).await
    }

    /// Updates any subresource, such as `finalize` of namespaces.
    pub async fn update_subresource<K: Object>(&self, object: &K, name: &str) -> Result<K, ClientError> {
        self.put(object, Some(name)).await
    }

    async fn put<K: Object>(&self, object: &K, subresource: Option<&str>) -> Result<K, ClientError> {
        let meta = object.metadata();
        let (ns, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let written = self
            .json(PreparedRequest::with_body(Method::PUT, path::<K>(ns, name, subresource), object)?)
            .await?;
        self.wrote::<K>(&written);
        Ok(written)
    }

    pub async fn patch<K: Object>(
        &self,
        ns: &str,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<K, ClientError> {
        let written = self.patch_at(path::<K>(ns, name, subresource), patch).await?;
        self.wrote::<K>(&written);
        Ok(written)
    }

    pub async fn delete<K: Object>(
        &self,
        ns: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ClientError> {
        self.delete_at(path::<K>(ns, name, None), options).await
    }

    /// Deletes the objects of `ns`, or of the cluster, that the selectors of `options` match.
    pub async fn delete_collection<K: Object>(
        &self,
        ns: &str,
        options: &ListOptions,
    ) -> Result<(), ClientError> {
        let path = format!("{}{}", path::<K>(ns, "", None), options.query().0);
        self.delete_at(path, &DeleteOptions::default()).await
    }

    /// Posts to any path: bindings, evictions, reviews, tokens.
    pub async fn post<B: Codec, R: Codec>(&self, path: &str, body: &B) -> Result<R, ClientError> {
        self.json(PreparedRequest::with_body(Method::POST, path.to_owned(), body)?).await
    }

    /// Reads any path.
    pub async fn read<R: Codec>(&self, path: &str) -> Result<R, ClientError> {
        self.json(PreparedRequest::get(path.to_owned())).await
    }

    pub(crate) async fn list_at<T>(
        &self,
        path: &str,
        options: &ListOptions,
        accept: &str,
        decode: Decode<T>,
    ) -> Result<ObjectList<T>, ClientError> {
        let prepared =
            PreparedRequest { accept, ..PreparedRequest::get(format!("{path}{}", options.query().0)) };
        let bytes = self.bytes(&prepared).await?;
        let decoded = serde_json::from_slice::<RawList<'_>>(&bytes).and_then(|list| {
            let items = list.items.unwrap_or_default().into_iter();
            let items = items.map(|item| decode(item.get().as_bytes())).collect::<Result<_, _>>()?;
            Ok(ObjectList { items, metadata: list.metadata.unwrap_or_default() })
        });
        decoded.map_err(|source| prepared.undecodable(source))
    }

    pub(crate) async fn watch_at<T>(
        &self,
        path: &str,
        options: &WatchOptions,
        accept: &str,
        decode: Decode<T>,
    ) -> Result<WatchStream<T>, ClientError> {
        let prepared =
            PreparedRequest { accept, ..PreparedRequest::get(format!("{path}{}", options.query().0)) };
        Ok(WatchStream::new(self.stream(&prepared).await?, path.to_owned(), decode))
    }

    pub(crate) async fn patch_at<R: Codec>(&self, path: String, patch: &Patch) -> Result<R, ClientError> {
        let target = format!("{path}{}", patch.query().0);
        let prepared = PreparedRequest::with_body(Method::PATCH, target, patch.body())?;
        self.json(PreparedRequest { content_type: patch.content_type(), ..prepared }).await
    }

    pub(crate) async fn delete_at(&self, path: String, options: &DeleteOptions) -> Result<(), ClientError> {
        let prepared = PreparedRequest::with_body(Method::DELETE, path, options)?;
        self.bytes(&prepared).await?;
        Ok(())
    }

    /// Sends a request and decodes its response.
    pub(crate) async fn json<R: Codec>(&self, prepared: PreparedRequest<'_>) -> Result<R, ClientError> {
        let bytes = self.bytes(&prepared).await?;
        R::decode(&bytes).map_err(|source| prepared.undecodable(source))
    }

    /// Sends a request and reads the whole response.
    pub(crate) fn bytes<'a>(&'a self, prepared: &'a PreparedRequest<'_>) -> Pending<'a, Bytes> {
        let exchange = async {
            let body = self.open(prepared).await?;
            let whole = body.collect().await.map_err(|source| transport_error(prepared, source))?;
            let whole = whole.to_bytes();
            metrics::record_response(&prepared.method, self.transport.authority(), whole.len());
            Ok(whole)
        };
        Box::pin(async {
            tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await.map_err(|_| ClientError::Timeout {
                verb: prepared.method.to_string(),
                path: prepared.target.clone(),
                limit: RESPONSE_TIMEOUT,
            })?
        })
    }

    /// Sends a request and returns the body of a successful response as a stream.
    fn stream<'a>(&'a self, prepared: &'a PreparedRequest<'_>) -> Pending<'a, Body> {
        Box::pin(self.open(prepared))
    }

    /// Sends any request; the response is a stream.
    pub fn raw_stream<'a>(&'a self, request: &'a RawRequest) -> Pending<'a, http::Response<Body>> {
        let prepared = request.prepared();
        Box::pin(async move { self.respond(&prepared).await })
    }

    async fn open(&self, prepared: &PreparedRequest<'_>) -> Result<Body, ClientError> {
        Ok(self.respond(prepared).await?.into_body())
    }

    /// Sends a request and returns a successful response. Retries 429 responses, within limits.
    async fn respond(&self, prepared: &PreparedRequest<'_>) -> Result<http::Response<Body>, ClientError> {
        let mut retries = 0;
        loop {
            match self.once(prepared).await {
                Err(error) if retries < MAX_RETRIES && error.code() == Some(429) => {
                    let Some(pause) = error.retry_after() else { return Err(error) };
                    retries += 1;
                    metrics::record_retry(&prepared.method, self.transport.authority(), 429);
                    tokio::time::sleep(pause).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn once(&self, prepared: &PreparedRequest<'_>) -> Result<http::Response<Body>, ClientError> {
        let mut request = http::Request::builder()
            .method(prepared.method.clone())
            .uri(&prepared.target)
            .header(header::ACCEPT, prepared.accept)
            .header(header::USER_AGENT, &*self.user_agent);
        if !prepared.content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, prepared.content_type);
        }
        if let Some(cause) = self.cause.as_deref().filter(|_| prepared.method != Method::GET) {
            request = request.header(Cause::HEADER, cause.cause().header());
        }
        let fail = |source| transport_error(prepared, source);
        let mut request = request
            .body(prepared.body.clone())
            .map_err(|error| fail(crate::TransportError::Request(error)))?;
        base::trace::inject(request.headers_mut());
        let begin = Instant::now();
        let outcome = self.transport.call(request).await;
        let code = outcome.as_ref().ok().map(|response| response.status().as_u16());
        let length = prepared.body.len();
        metrics::record(&prepared.method, self.transport.authority(), length, code, begin.elapsed());
        let (head, body) = outcome.map_err(fail)?.into_parts();
        if head.status.is_success() {
            return Ok(http::Response::from_parts(head, body));
        }
        let seconds =
            head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = body.collect().await.map_err(fail)?.to_bytes();
        Err(ClientError::Status {
            status: Box::new(error_of_response(head.status, &text)),
            retry_after: seconds.map(Duration::from_secs),
        })
    }
}

fn transport_error(prepared: &PreparedRequest<'_>, source: crate::TransportError) -> ClientError {
    ClientError::Transport {
        verb: prepared.method.to_string(),
        path: prepared.target.clone(),
        source: Box::new(source),
    }
}

/// The `Status` of an error response; derived from the code if the response is not from an API server.
fn error_of_response(code: StatusCode, text: &[u8]) -> Status {
    if let Ok(status) = serde_json::from_slice::<Status>(text) {
        return Status { code: status.code.or(Some(code.as_u16().into())), ..status };
    }
    let text: String = String::from_utf8_lossy(text).chars().take(200).collect();
    Status {
        code: Some(code.as_u16().into()),
        message: Some(format!("{code}: {}", text.trim())),
        status: Some("Failure".to_owned()),
        ..Status::default()
    }
}

fn path<K: Object>(ns: &str, name: &str, subresource: Option<&str>) -> String {
    object::path(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT, ns, name, subresource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, TransportError};
    use objects::core::v1::ConfigMap;
    use parking_lot::Mutex;

    type ScriptedResponse = (u16, Option<&'static str>, &'static str);

    /// Returns scripted responses in order, and records the requests.
    #[derive(Default)]
    struct ScriptedTransport {
        responses: Mutex<Vec<ScriptedResponse>>,
        requests: Mutex<Vec<(Method, String, Option<String>)>>,
    }

    impl Transport for ScriptedTransport {
        fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
            let cause = request.headers().get(Cause::HEADER).map(|v| v.to_str().expect("text").to_owned());
            self.requests.lock().push((request.method().clone(), request.uri().to_string(), cause));
            let (code, retry_after, text) = self.responses.lock().remove(0);
            let mut response = http::Response::builder().status(code);
            if let Some(retry_after) = retry_after {
                response = response.header("retry-after", retry_after);
            }
            let body = http_body_util::Full::new(Bytes::from_static(text.as_bytes()));
            let body: Body = body.map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { response.body(body).map_err(TransportError::Request) })
        }
    }

    fn client(responses: &[ScriptedResponse]) -> (Client, Arc<ScriptedTransport>) {
        let script = Arc::new(ScriptedTransport {
            responses: Mutex::new(responses.to_vec()),
            ..ScriptedTransport::default()
        });
        (Client::new(Arc::clone(&script) as Arc<dyn Transport>, "test"), script)
    }

    const BUSY: &str = r#"{"kind":"Status","apiVersion":"v1","code":429,"reason":"TooManyRequests"}"#;
    const MAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n"}}"#;

    #[tokio::test(start_paused = true)]
    async fn busy_server_is_retried_after_delay() {
        let (client, script) = client(&[(429, Some("1"), BUSY), (200, None, MAP)]);
        let map: ConfigMap = client.get("n", "a").await.expect("served in the end");
        assert_eq!(map.metadata.name.as_deref(), Some("a"));
        assert_eq!(script.requests.lock().len(), 2);
    }

    #[tokio::test]
    async fn requests_are_counted_by_code_and_method() {
        let registry = base::metrics::Metrics::new(&base::clock::Clock::system()).expect("a registry");
        metrics::register_metrics(&registry).expect("registered");
        let (client, _) = client(&[(418, None, "a teapot")]);
        client.delete::<ConfigMap>("n", "a", &DeleteOptions::default()).await.expect_err("refused");
        let page = String::from_utf8(registry.encode().expect("encoded")).expect("text");
        let row = r#"rest_client_requests_total{code="418",host="in-process",method="DELETE"} 1"#;
        assert!(page.lines().any(|line| line == row), "{page}");
        for name in ["rest_client_request_duration_seconds_count", "rest_client_request_size_bytes_count"] {
            let row = format!(r#"{name}{{host="in-process",verb="DELETE"}} "#);
            assert!(page.lines().any(|line| line.starts_with(&row)), "{page}");
        }
    }

    #[tokio::test]
    async fn error_statuses_are_distinguished() {
        let not_found =
            r#"{"kind":"Status","apiVersion":"v1","code":404,"reason":"NotFound","message":"no a"}"#;
        let (client, _) = client(&[(404, None, not_found), (502, None, "bad gateway")]);
        let error = client.get::<ConfigMap>("n", "a").await.expect_err("absent");
        assert!(error.is_not_found() && !error.is_conflict());
        assert_eq!(error.to_string(), "no a");
        let error = client.get::<ConfigMap>("n", "a").await.expect_err("not an API server");
        assert_eq!(error.code(), Some(502));
    }

    #[tokio::test]
    async fn writes_carry_their_cause_and_reads_do_not() {
        let (client, script) = client(&[(200, None, MAP), (200, None, MAP)]);
        let client = client.with_cause(&Cause {
            controller: "c".to_owned(),
            object: "configmaps/n/a".to_owned(),
            revision: "7".to_owned(),
        });
        let map: ConfigMap = client.get("n", "a").await.expect("read");
        client.update(&map).await.expect("written");
        let requests = script.requests.lock();
        assert_eq!(requests[0].2, None);
        assert_eq!(requests[1].1, "/api/v1/namespaces/n/configmaps/a");
        assert_eq!(requests[1].2.as_deref(), Some("loop=c; object=configmaps/n/a; revision=7"));
    }
}
