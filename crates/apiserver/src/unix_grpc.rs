//! Unary gRPC calls over a Unix socket, a connection per call: for plugins that are called rarely.

use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// Start of the message of a response over the size limit.
const TOO_LONG: &str = "Error, decoded message length too large";
/// Names of status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct GrpcError {
    pub code: &'static str,
    pub message: String,
}

impl GrpcError {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A service behind a socket.
pub struct UnixGrpc {
    socket: PathBuf,
    service: &'static str,
}

impl UnixGrpc {
    /// `socket` is a path, or a name in the abstract namespace after `@`; `service` is `package.Service`.
    pub fn new(socket: &Path, service: &'static str) -> Self {
        let abstract_name = socket.to_str().and_then(|path| path.strip_prefix('@'));
        let socket = abstract_name.map_or_else(|| socket.to_owned(), |name| format!("\0{name}").into());
        Self { socket, service }
    }

    /// Path of a method, as used in metrics.
    pub fn method(&self, method: &str) -> String {
        format!("/{}/{method}", self.service)
    }

    /// Returns the response, of at most `most` bytes. The caller sets the time limit.
    pub async fn call<T: Message + Default + 'static>(
        &self,
        method: &str,
        request: impl Message + 'static,
        most: usize,
    ) -> Result<T, GrpcError> {
        let path = PathAndQuery::try_from(self.method(method));
        let path = path.map_err(|error| GrpcError::new("Internal", error.to_string()))?;
        let connector = UnixConnector(self.socket.clone());
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        let channel = channel.map_err(|error| GrpcError::new("Unavailable", root_cause(&error)))?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(most);
        grpc.ready().await.map_err(|error| GrpcError::new("Unavailable", root_cause(&error)))?;
        let answer = grpc.unary(Request::new(request), path, ProstCodec::default()).await;
        answer.map(Response::into_inner).map_err(|status| GrpcError::from(&status))
    }
}

/// Text of the innermost error: the outer ones only say that the transport failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let innermost = std::iter::successors(Some(error), |error| error.source()).last();
    innermost.unwrap_or(error).to_string()
}

impl From<&Status> for GrpcError {
    fn from(status: &Status) -> Self {
        // Responses over the limit: clients of other languages report them as ResourceExhausted.
        let too_long = status.code() == Code::OutOfRange && status.message().starts_with(TOO_LONG);
        let code = if too_long { Code::ResourceExhausted } else { status.code() };
        let name = CODES.get(i32::from(code) as usize).copied().unwrap_or("Unknown");
        Self::new(name, status.message())
    }
}

/// Connects to a socket whatever the address of the endpoint.
struct UnixConnector(PathBuf);

impl Service<http::Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let socket = self.0.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use bytes::{BufMut, Bytes, BytesMut};
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioExecutor;
    use std::convert::Infallible;
    use std::sync::Arc;

    /// Compression flag and message length.
    const FRAME_BYTES: usize = 5;

    /// The message of a response, or a code and text; `None` never responds.
    pub type Answer = Option<Result<Vec<u8>, (usize, &'static str)>>;

    /// Serves a socket by a function of method and message, until the runtime ends.
    pub fn serve(
        listener: tokio::net::UnixListener,
        answer: impl Fn(&str, &[u8]) -> Answer + Send + Sync + 'static,
    ) {
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let method = request.uri().path().rsplit('/').next().unwrap_or("").to_owned();
                        let body = request.into_body().collect().await.expect("a body").to_bytes();
                        let (message, code, text) = match answer(&method, &body[FRAME_BYTES..]) {
                            Some(Ok(message)) => (message, 0, ""),
                            Some(Err((code, text))) => (Vec::new(), code, text),
                            None => std::future::pending().await,
                        };
                        let mut frame = BytesMut::new();
                        frame.put_u8(0);
                        frame.put_u32(u32::try_from(message.len()).expect("short"));
                        frame.extend_from_slice(&message);
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("grpc-status", code.into());
                        trailers.insert("grpc-message", http::HeaderValue::from_static(text));
                        let frames: [Result<Frame<Bytes>, Infallible>; 2] =
                            [Ok(Frame::data(frame.freeze())), Ok(Frame::trailers(trailers))];
                        Ok::<_, Infallible>(
                            http::Response::builder()
                                .header("content-type", "application/grpc")
                                .body(StreamBody::new(futures_util::stream::iter(frames)))
                                .expect("a response"),
                        )
                    }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
    }

    #[derive(Clone, PartialEq, Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    #[tokio::test]
    async fn grpc_responses_are_limited_and_errors_have_codes() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let listener = tokio::net::UnixListener::bind(&socket).expect("a socket");
        serve(listener, |method, body| match method {
            "Echo" => Some(Ok(body.to_vec())),
            "Refuse" => Some(Err((7, "not you"))),
            "Strange" => Some(Err((99, ""))),
            _ => Some(Ok(vec![0xff; 10])),
        });
        let grpc = UnixGrpc::new(&socket, "v1.Service");
        let sent = Text { text: "x".repeat(100) };
        let ask = async |method: &str, most: usize| grpc.call::<Text>(method, sent.clone(), most).await;
        assert_eq!(ask("Echo", 1000).await, Ok(sent.clone()));
        assert_eq!(ask("Echo", 50).await.expect_err("too long").code, "ResourceExhausted");
        let refused = ask("Refuse", 1000).await.expect_err("refused");
        assert_eq!(refused.to_string(), "rpc error: code = PermissionDenied desc = not you");
        assert_eq!(ask("Strange", 1000).await.expect_err("refused").code, "Unknown");
        assert_eq!(ask("Rubbish", 1000).await.expect_err("undecodable").code, "Internal");
        let nowhere = UnixGrpc::new(&directory.path().join("none"), "v1.Service");
        assert_eq!(nowhere.call::<Text>("Echo", sent, 9).await.expect_err("absent").code, "Unavailable");
    }

    #[tokio::test]
    async fn grpc_connects_to_abstract_socket() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("ferry-test-{}", uuid::Uuid::new_v4());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("bound");
        listener.set_nonblocking(true).expect("set");
        serve(tokio::net::UnixListener::from_std(listener).expect("a listener"), |_, body| {
            Some(Ok(body.to_vec()))
        });
        let grpc = UnixGrpc::new(Path::new(&format!("@{name}")), "v1.Service");
        let sent = Text { text: "x".to_owned() };
        assert_eq!(grpc.call::<Text>("Echo", sent.clone(), 100).await, Ok(sent));
    }
}
