//! The client: typed verbs over a transport.

use std::any::TypeId;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use objects::meta::v1::{ListMeta, Status};
use objects::{Codec, DecodeShared, Shared};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dynamic;
use crate::object;
use crate::watch::Decode;
use crate::{
    Body, Cause, Causes, ClientError, Collection, DeleteOptions, Dynamic, ListOptions, Object, ObjectList,
    Patch, Remote, ResourceKey, Transport, WatchOptions, WatchStream,
};

/// How long an answer may take, watches aside; a little more than the server gives itself.
const ANSWER: Duration = Duration::from_secs(70);
/// How often a request is sent again when the server asks for that.
const TURNED_AWAY: u32 = 10;
pub(crate) const JSON: &str = "application/json";

/// One identity at one API server. Clones are cheap and share the connection.
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

/// A list whose items are not decoded yet.
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

    fn ask(&self) -> Ask<'_> {
        Ask {
            method: self.method.clone(),
            target: self.target.clone(),
            content_type: &self.content_type,
            accept: &self.accept,
            body: self.body.clone(),
        }
    }
}

/// A request, before it has headers.
pub(crate) struct Ask<'a> {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub content_type: &'a str,
    pub accept: &'a str,
    pub body: Bytes,
}

impl Ask<'_> {
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

    /// A client of the current context of a kubeconfig. Connects when it is first used.
    pub fn connect(kubeconfig: &Path, user_agent: &str) -> Result<Self, ClientError> {
        let remote = Remote::new(crate::Kubeconfig::load(kubeconfig)?)?;
        Ok(Self::new(Arc::new(remote), user_agent))
    }

    /// The same client under another name.
    #[must_use]
    pub fn called(&self, user_agent: &str) -> Self {
        Self { user_agent: user_agent.into(), ..self.clone() }
    }

    /// The same client, whose writes say why they are made.
    #[must_use]
    pub fn with_cause(&self, cause: &Cause) -> Self {
        self.with_causes(Arc::new(cause.clone()))
    }

    /// The same client, whose writes say what `causes` says when they are made.
    #[must_use]
    pub fn with_causes(&self, causes: Arc<dyn Causes>) -> Self {
        Self { cause: Some(causes), ..self.clone() }
    }

    /// Tells whoever knows the cause what became of it.
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

    /// `ns` is empty for objects of the cluster.
    pub async fn get<K: Object>(&self, ns: &str, name: &str) -> Result<K, ClientError> {
        self.json(Ask::get(path::<K>(ns, name, None))).await
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

    /// As [`Client::watch`], of a collection whose objects `decode` reads; they come without their `managedFields`.
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
        self.json(Ask::with_body(Method::POST, path::<K>(ns, "", None), object)?).await
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
        let written =
            self.json(Ask::with_body(Method::PUT, path::<K>(ns, name, subresource), object)?).await?;
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

    /// Posts to any path: bindings, evictions, reviews, tokens.
    pub async fn post<B: Codec, R: Codec>(&self, path: &str, body: &B) -> Result<R, ClientError> {
        self.json(Ask::with_body(Method::POST, path.to_owned(), body)?).await
    }

    /// Reads any path.
    pub async fn read<R: Codec>(&self, path: &str) -> Result<R, ClientError> {
        self.json(Ask::get(path.to_owned())).await
    }

    pub(crate) async fn list_at<T>(
        &self,
        path: &str,
        options: &ListOptions,
        accept: &str,
        decode: Decode<T>,
    ) -> Result<ObjectList<T>, ClientError> {
        let ask = Ask { accept, ..Ask::get(format!("{path}{}", options.query().0)) };
        let bytes = self.bytes(&ask).await?;
        let decoded = serde_json::from_slice::<RawList<'_>>(&bytes).and_then(|list| {
            let items = list.items.unwrap_or_default().into_iter();
            let items = items.map(|item| decode(item.get().as_bytes())).collect::<Result<_, _>>()?;
            Ok(ObjectList { items, metadata: list.metadata.unwrap_or_default() })
        });
        decoded.map_err(|source| ask.undecodable(source))
    }

    pub(crate) async fn watch_at<T>(
        &self,
        path: &str,
        options: &WatchOptions,
        accept: &str,
        decode: Decode<T>,
    ) -> Result<WatchStream<T>, ClientError> {
        let ask = Ask { accept, ..Ask::get(format!("{path}{}", options.query().0)) };
        Ok(WatchStream::new(self.stream(&ask).await?, path.to_owned(), decode))
    }

    pub(crate) async fn patch_at<R: Codec>(&self, path: String, patch: &Patch) -> Result<R, ClientError> {
        let target = format!("{path}{}", patch.query().0);
        let ask = Ask::with_body(Method::PATCH, target, patch.body())?;
        self.json(Ask { content_type: patch.content_type(), ..ask }).await
    }

    pub(crate) async fn delete_at(&self, path: String, options: &DeleteOptions) -> Result<(), ClientError> {
        let ask = Ask::with_body(Method::DELETE, path, options)?;
        self.bytes(&ask).await?;
        Ok(())
    }

    /// Sends a request and decodes its answer.
    pub(crate) async fn json<R: Codec>(&self, ask: Ask<'_>) -> Result<R, ClientError> {
        let bytes = self.bytes(&ask).await?;
        R::decode(&bytes).map_err(|source| ask.undecodable(source))
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) fn bytes<'a>(&'a self, ask: &'a Ask<'_>) -> Pending<'a, Bytes> {
        let exchange = async {
            let body = self.open(ask).await?;
            let whole = body.collect().await.map_err(|source| transport_error(ask, source))?;
            Ok(whole.to_bytes())
        };
        Box::pin(async {
            tokio::time::timeout(ANSWER, exchange).await.map_err(|_| ClientError::Timeout {
                verb: ask.method.to_string(),
                path: ask.target.clone(),
                limit: ANSWER,
            })?
        })
    }

    /// Sends a request; the body of a successful answer, as it comes.
    fn stream<'a>(&'a self, ask: &'a Ask<'_>) -> Pending<'a, Body> {
        Box::pin(self.open(ask))
    }

    /// Sends any request; its answer comes piece by piece.
    pub fn raw_stream<'a>(&'a self, request: &'a RawRequest) -> Pending<'a, http::Response<Body>> {
        let ask = request.ask();
        Box::pin(async move { self.respond(&ask).await })
    }

    async fn open(&self, ask: &Ask<'_>) -> Result<Body, ClientError> {
        Ok(self.respond(ask).await?.into_body())
    }

    /// Sends a request; a successful answer. Comes back as often as the server asks for it, within limits.
    async fn respond(&self, ask: &Ask<'_>) -> Result<http::Response<Body>, ClientError> {
        let mut turned_away = 0;
        loop {
            match self.once(ask).await {
                Err(error) if turned_away < TURNED_AWAY && error.code() == Some(429) => {
                    let Some(pause) = error.retry_after() else { return Err(error) };
                    turned_away += 1;
                    tokio::time::sleep(pause).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn once(&self, ask: &Ask<'_>) -> Result<http::Response<Body>, ClientError> {
        let mut request = http::Request::builder()
            .method(ask.method.clone())
            .uri(&ask.target)
            .header(header::ACCEPT, ask.accept)
            .header(header::USER_AGENT, &*self.user_agent);
        if !ask.content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, ask.content_type);
        }
        if let Some(cause) = self.cause.as_deref().filter(|_| ask.method != Method::GET) {
            request = request.header(Cause::HEADER, cause.cause().header());
        }
        let fail = |source| transport_error(ask, source);
        let request =
            request.body(ask.body.clone()).map_err(|error| fail(crate::TransportError::Request(error)))?;
        let (head, body) = self.transport.call(request).await.map_err(fail)?.into_parts();
        if head.status.is_success() {
            return Ok(http::Response::from_parts(head, body));
        }
        let seconds =
            head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = body.collect().await.map_err(fail)?.to_bytes();
        Err(ClientError::Status {
            status: Box::new(refusal(head.status, &text)),
            retry_after: seconds.map(Duration::from_secs),
        })
    }
}

fn transport_error(ask: &Ask<'_>, source: crate::TransportError) -> ClientError {
    ClientError::Transport {
        verb: ask.method.to_string(),
        path: ask.target.clone(),
        source: Box::new(source),
    }
}

/// The `Status` of a refusal; made up from the code if something other than an API server answered.
fn refusal(code: StatusCode, text: &[u8]) -> Status {
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

    type Answer = (u16, Option<&'static str>, &'static str);

    /// Answers with what it was given, in turn, and remembers what was asked.
    #[derive(Default)]
    struct Script {
        answers: Mutex<Vec<Answer>>,
        asked: Mutex<Vec<(Method, String, Option<String>)>>,
    }

    impl Transport for Script {
        fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
            let cause = request.headers().get(Cause::HEADER).map(|v| v.to_str().expect("text").to_owned());
            self.asked.lock().push((request.method().clone(), request.uri().to_string(), cause));
            let (code, retry_after, text) = self.answers.lock().remove(0);
            let mut response = http::Response::builder().status(code);
            if let Some(retry_after) = retry_after {
                response = response.header("retry-after", retry_after);
            }
            let body = http_body_util::Full::new(Bytes::from_static(text.as_bytes()));
            let body: Body = body.map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { response.body(body).map_err(TransportError::Request) })
        }
    }

    fn client(answers: &[Answer]) -> (Client, Arc<Script>) {
        let script = Arc::new(Script { answers: Mutex::new(answers.to_vec()), ..Script::default() });
        (Client::new(Arc::clone(&script) as Arc<dyn Transport>, "test"), script)
    }

    const BUSY: &str = r#"{"kind":"Status","apiVersion":"v1","code":429,"reason":"TooManyRequests"}"#;
    const MAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"n"}}"#;

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_asked_again() {
        let (client, script) = client(&[(429, Some("1"), BUSY), (200, None, MAP)]);
        let map: ConfigMap = client.get("n", "a").await.expect("served in the end");
        assert_eq!(map.metadata.name.as_deref(), Some("a"));
        assert_eq!(script.asked.lock().len(), 2);
    }

    #[tokio::test]
    async fn refusals_are_told_apart() {
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
        let asked = script.asked.lock();
        assert_eq!(asked[0].2, None);
        assert_eq!(asked[1].1, "/api/v1/namespaces/n/configmaps/a");
        assert_eq!(asked[1].2.as_deref(), Some("loop=c; object=configmaps/n/a; revision=7"));
    }
}
