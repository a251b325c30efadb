//! Unary gRPC calls over a Unix socket, a connection per call: for plugins that are called rarely.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// A flag for compression and the length of the message.
const FRAME_BYTES: usize = 5;
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

/// A connection that ends with the call.
struct Driver(JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UnixGrpc {
    /// `socket` is a path, or a name in the abstract namespace after `@`; `service` is `package.Service`.
    pub fn new(socket: &Path, service: &'static str) -> Self {
        let abstract_name = socket.to_str().and_then(|path| path.strip_prefix('@'));
        let socket = abstract_name.map_or_else(|| socket.to_owned(), |name| format!("\0{name}").into());
        Self { socket, service }
    }

    /// The path of a method, as metrics name it.
    pub fn method(&self, method: &str) -> String {
        format!("/{}/{method}", self.service)
    }

    /// The answer, if it has at most `most` bytes. The caller bounds the time.
    pub async fn call<T: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        most: usize,
    ) -> Result<T, GrpcError> {
        let unavailable = |error: &dyn std::error::Error| GrpcError::new("Unavailable", error.to_string());
        let internal = |error: &dyn std::error::Error| GrpcError::new("Internal", error.to_string());
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| unavailable(&error))?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unavailable(&error))?;
        let _driver = Driver(tokio::spawn(connection));
        let length = request.encoded_len();
        let mut body = BytesMut::with_capacity(FRAME_BYTES + length);
        body.put_u8(0);
        body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        request.encode(&mut body).map_err(|error| internal(&error))?;
        let request = http::Request::post(format!("http://localhost{}", self.method(method)))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(Full::new(body.freeze()))
            .map_err(|error| internal(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| unavailable(&error))?;
        let (head, body) = answer.into_parts();
        let collected = Limited::new(body, most.saturating_add(FRAME_BYTES)).collect().await;
        let collected = collected.map_err(|error| GrpcError::new("ResourceExhausted", error.to_string()))?;
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let field = |name: &str| {
            let found = trailers.get(name).or_else(|| head.headers.get(name));
            found.and_then(|value| value.to_str().ok()).unwrap_or("").to_owned()
        };
        match field("grpc-status").parse::<usize>() {
            Ok(0) => decode(&collected.to_bytes()),
            Ok(code) => {
                Err(GrpcError::new(CODES.get(code).copied().unwrap_or("Unknown"), field("grpc-message")))
            }
            Err(_) => Err(GrpcError::new("Unknown", format!("no status; HTTP status {}", head.status))),
        }
    }
}

fn decode<T: Message + Default>(frame: &Bytes) -> Result<T, GrpcError> {
    let wrong = |why: &str| GrpcError::new("Internal", why);
    let (head, message) = frame.split_at_checked(FRAME_BYTES).ok_or_else(|| wrong("the answer is empty"))?;
    if head[0] != 0 {
        return Err(wrong("the answer is compressed"));
    }
    let length = head[1..].iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    if length != message.len() {
        return Err(wrong("the answer has another length than its frame"));
    }
    T::decode(message).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use std::convert::Infallible;
    use std::sync::Arc;

    /// The message of an answer, or a code and text; `None` never answers.
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
                        Ok::<_, Infallible>(http::Response::new(StreamBody::new(futures_util::stream::iter(
                            frames,
                        ))))
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
    async fn answers_have_limits_and_errors_their_codes() {
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
        let ask = async |method: &str, most: usize| grpc.call::<Text>(method, &sent, most).await;
        assert_eq!(ask("Echo", 1000).await, Ok(sent.clone()));
        assert_eq!(ask("Echo", 50).await.expect_err("too long").code, "ResourceExhausted");
        let refused = ask("Refuse", 1000).await.expect_err("refused");
        assert_eq!(refused.to_string(), "rpc error: code = PermissionDenied desc = not you");
        assert_eq!(ask("Strange", 1000).await.expect_err("refused").code, "Unknown");
        assert_eq!(ask("Rubbish", 1000).await.expect_err("undecodable").code, "Internal");
        let nowhere = UnixGrpc::new(&directory.path().join("none"), "v1.Service");
        assert_eq!(nowhere.call::<Text>("Echo", &sent, 9).await.expect_err("absent").code, "Unavailable");
    }

    #[tokio::test]
    async fn abstract_sockets_are_reached() {
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
        assert_eq!(grpc.call::<Text>("Echo", &sent, 100).await, Ok(sent));
    }
}
