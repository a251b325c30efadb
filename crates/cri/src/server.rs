//! Serves gRPC on a unix socket: HTTP/2 by hyper, messages by tonic, routes by the generated functions.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::client::MAX_MESSAGE;
use crate::v1::{ImageService, RuntimeService, serve_image_service, serve_runtime_service};

/// Response stream of a streaming method.
pub type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Future of a method's response.
pub type Answer<T> = BoxFuture<'static, Result<Response<T>, Status>>;

/// Future of an encoded response.
pub type HttpAnswer = BoxFuture<'static, http::Response<Body>>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Request body of the HTTP server.
pub trait RequestBody: http_body::Body<Data: Send, Error: Into<BoxError> + Send> + Send + 'static {}

impl<B: http_body::Body<Data: Send, Error: Into<BoxError> + Send> + Send + 'static> RequestBody for B {}

struct Call<F>(Option<F>);

impl<F> Call<F> {
    fn once(&mut self) -> Result<F, Status> {
        self.0.take().ok_or_else(|| Status::internal("method called twice for one request"))
    }
}

impl<F, Req, Res> UnaryService<Req> for Call<F>
where
    F: FnOnce(Request<Req>) -> Answer<Res>,
    Res: Send + 'static,
{
    type Response = Res;
    type Future = Answer<Res>;

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        match self.once() {
            Ok(function) => function(request),
            Err(status) => Box::pin(std::future::ready(Err(status))),
        }
    }
}

struct StreamingCall<F>(Call<F>);

impl<F, Req, Res> ServerStreamingService<Req> for StreamingCall<F>
where
    F: FnOnce(Request<Req>) -> Answer<ResponseStream<Res>>,
    Res: Send + 'static,
{
    type Response = Res;
    type ResponseStream = ResponseStream<Res>;
    type Future = Answer<ResponseStream<Res>>;

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        match self.0.once() {
            Ok(function) => function(request),
            Err(status) => Box::pin(std::future::ready(Err(status))),
        }
    }
}

fn grpc<Req, Res>() -> Grpc<ProstCodec<Res, Req>>
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE)
}

/// Decodes one request, calls the method, encodes its response.
pub fn unary<Req, Res, B, F>(request: http::Request<B>, method: F) -> HttpAnswer
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
    B: RequestBody,
    F: FnOnce(Request<Req>) -> Answer<Res> + Send + 'static,
{
    Box::pin(async move { grpc::<Req, Res>().unary(Call(Some(method)), request).await })
}

/// Like [`unary`], for server-streaming methods.
pub fn server_streaming<Req, Res, B, F>(request: http::Request<B>, method: F) -> HttpAnswer
where
    Req: prost::Message + Default + Send + 'static,
    Res: prost::Message + Default + Send + 'static,
    B: RequestBody,
    F: FnOnce(Request<Req>) -> Answer<ResponseStream<Res>> + Send + 'static,
{
    let method = StreamingCall(Call(Some(method)));
    Box::pin(async move { grpc::<Req, Res>().server_streaming(method, request).await })
}

/// Listens on `path`, accessible to root only; replaces a stale socket.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process is listening on the socket"));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Serves both CRI services until `stop` completes; then connections finish requests in progress, streams are cut.
pub async fn serve<S>(listener: UnixListener, service: Arc<S>, stop: impl Future<Output = ()> + Send)
where
    S: RuntimeService + ImageService,
{
    let route = move |request: http::Request<hyper::body::Incoming>| {
        let service = Arc::clone(&service);
        let answer = if request.uri().path().starts_with("/runtime.v1.ImageService/") {
            serve_image_service(service, request)
        } else {
            serve_runtime_service(service, request)
        };
        answer.unwrap_or_else(|| {
            Box::pin(std::future::ready(Status::unimplemented("no such method").into_http()))
        })
    };
    serve_routes(listener, route, stop).await;
}

/// Serves the responses of `route`: for other services, or several on one socket.
pub async fn serve_routes<R, Fut>(listener: UnixListener, route: R, stop: impl Future<Output = ()> + Send)
where
    R: Fn(http::Request<hyper::body::Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = http::Response<Body>> + Send + 'static,
{
    use futures_util::StreamExt as _;
    let mut connections = FuturesUnordered::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(()) = connections.next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.push(connection(stream, route.clone())),
                // The client reset its connection; the next one may be accepted at once.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to accept connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn connection<R, Fut>(stream: UnixStream, route: R)
where
    R: Fn(http::Request<hyper::body::Incoming>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = http::Response<Body>> + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let answer = route(request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection closed with error");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::StreamExt as _;

    use super::*;
    use crate::v1::*;

    struct Fake;

    #[tonic::async_trait]
    impl RuntimeService for Fake {
        async fn version(
            &self,
            request: Request<VersionRequest>,
        ) -> Result<Response<VersionResponse>, Status> {
            let version = request.into_inner().version;
            Ok(Response::new(VersionResponse { runtime_version: version, ..Default::default() }))
        }

        async fn get_container_events(
            &self,
            _: Request<GetEventsRequest>,
        ) -> Result<Response<ResponseStream<ContainerEventResponse>>, Status> {
            let events = ["a", "b"]
                .map(|id| Ok(ContainerEventResponse { container_id: id.to_owned(), ..Default::default() }));
            Ok(Response::new(Box::pin(futures_util::stream::iter(events))))
        }
    }

    #[tonic::async_trait]
    impl ImageService for Fake {
        async fn list_images(
            &self,
            _: Request<ListImagesRequest>,
        ) -> Result<Response<ListImagesResponse>, Status> {
            Err(Status::not_found("nothing here"))
        }
    }

    #[tokio::test]
    async fn both_services_respond_over_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/ferry.sock");
        let listener = bind(&path).unwrap();
        assert!(bind(&path).is_err(), "the socket is in use");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, Arc::new(Fake), async move {
            let _ = stopped.await;
        }));
        let mut clients = crate::connect(path.to_str().unwrap(), Duration::from_secs(5)).await.unwrap();
        let version = clients.runtime.version(VersionRequest { version: "v1".to_owned() }).await.unwrap();
        assert_eq!(version.into_inner().runtime_version, "v1");
        let events = clients.runtime.get_container_events(GetEventsRequest {}).await.unwrap().into_inner();
        let ids: Vec<_> = events.map(|event| event.unwrap().container_id).collect().await;
        assert_eq!(ids, ["a", "b"]);
        let missing = clients.images.list_images(ListImagesRequest::default()).await.unwrap_err();
        assert_eq!(missing.code(), tonic::Code::NotFound);
        let unwritten = clients.runtime.status(StatusRequest::default()).await.unwrap_err();
        assert_eq!(unwritten.code(), tonic::Code::Unimplemented);
        stop.send(()).unwrap();
        serving.await.unwrap();
        bind(&path).expect("a stale socket is replaced");
    }
}
