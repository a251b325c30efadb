//! Connections, requests and responses.

use super::HttpError;
use super::origin::{Address, Origin};
use crate::egress;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Body of a request on a connection.
type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// Time for which an idle connection may still be sending the body of its last request: a server may answer before it
/// has read that body.
const READY: Duration = Duration::from_millis(100);

/// Limits of one client. [`Duration::MAX`] is no limit: for requests that are passed on for a caller with limits of its
/// own.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time to connect, the TLS handshake included.
    pub connect: Duration,
    /// Time from a request to the head of its response.
    pub response: Duration,
    /// Time between two pieces of a response.
    pub silence: Duration,
    /// Idle connections retained for reuse. Zero: one connection per request.
    pub max_idle: usize,
    /// Time for which idle connections are retained.
    pub idle: Duration,
    /// Bytes of a response that are read ahead on each connection.
    pub read_buffer: usize,
}

/// Bytes that are read ahead by default, as hyper has it.
pub const READ_BUFFER: usize = 400 << 10;

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            response: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            max_idle: 16,
            idle: Duration::from_secs(90),
            read_buffer: READ_BUFFER,
        }
    }
}

/// A client with its idle connections.
///
/// ```no_run
/// use base::http::{Client, Limits, Origin, Trust};
/// use http_body_util::Full;
///
/// # async fn get() -> Result<(), Box<dyn std::error::Error>> {
/// let origin = Origin::of_url("https://registry.example.com/v2/", &Trust::default())?;
/// let request = http::Request::get("/v2/").body(Full::<bytes::Bytes>::default())?;
/// let response = Client::new(Limits::default()).send(&origin, request).await?;
/// assert!(response.status.is_success());
/// let body = response.bytes(64 << 10).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    limits: Limits,
    idle: Arc<Mutex<Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    origin: Origin,
    sender: SendRequest<RequestBody>,
    since: Instant,
}

/// A response with a streamed body. Its connection is reused once the body has been read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    upgrade: OnUpgrade,
    limits: Limits,
    connection: Option<(Idle, Arc<Mutex<Vec<Idle>>>)>,
}

impl Client {
    pub fn new(limits: Limits) -> Self {
        Self { limits, idle: Arc::default() }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sends a request with a path as its URI; its body may be a stream. `Host` is the origin unless the request has
    /// one: servers reject requests without it. A request is sent again only if an idle connection was closed before
    /// anything was sent; a request that may have reached the server fails.
    pub async fn send<B>(&self, origin: &Origin, request: Request<B>) -> Result<Response, HttpError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        self.send_boxed(origin, request).await
    }

    async fn send_boxed(
        &self,
        origin: &Origin,
        mut request: Request<RequestBody>,
    ) -> Result<Response, HttpError> {
        while let Some(mut kept) = self.take(origin) {
            if !matches!(tokio::time::timeout(READY, kept.sender.ready()).await, Ok(Ok(()))) {
                continue;
            }
            match self.exchange(&mut kept, request).await? {
                Ok(response) => return Ok(self.response(response, Some(kept))),
                Err((error, unsent)) => request = unsent.ok_or(HttpError::Exchange(error))?,
            }
        }
        let (response, used) = self.send_on_new(origin, request).await?;
        Ok(self.response(response, Some(used)))
    }

    /// Sends a request that switches protocols, on a connection of its own. The response may still be another one;
    /// with 101, [`Response::upgraded`] has the connection.
    pub async fn send_upgrade(&self, origin: &Origin, request: Request<()>) -> Result<Response, HttpError> {
        let request = request.map(|()| RequestBody::default());
        let (response, _) = self.send_on_new(origin, request).await?;
        Ok(self.response(response, None))
    }

    async fn send_on_new(
        &self,
        origin: &Origin,
        request: Request<RequestBody>,
    ) -> Result<(http::Response<Incoming>, Idle), HttpError> {
        let sender = self.connect(origin).await?;
        let mut used = Idle { origin: origin.clone(), sender, since: Instant::now() };
        match self.exchange(&mut used, request).await? {
            Ok(response) => Ok((response, used)),
            Err((error, _)) => Err(HttpError::Exchange(error)),
        }
    }

    /// Sends a request on a connection. The inner error has the request if nothing of it was sent.
    async fn exchange(
        &self,
        connection: &mut Idle,
        mut request: Request<RequestBody>,
    ) -> Result<Result<http::Response<Incoming>, (hyper::Error, Option<Request<RequestBody>>)>, HttpError>
    {
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(&connection.origin.host_header())
        {
            request.headers_mut().insert(HOST, host);
        }
        let sending = connection.sender.try_send_request(request);
        let sent = tokio::time::timeout(self.limits.response, sending).await;
        let sent = sent.map_err(|_| HttpError::NoResponse(self.limits.response))?;
        Ok(sent.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        }))
    }

    fn take(&self, origin: &Origin) -> Option<Idle> {
        let mut idle = self.idle.lock();
        idle.retain(|kept| !kept.sender.is_closed() && kept.since.elapsed() < self.limits.idle);
        let at = idle.iter().rposition(|kept| kept.origin.is_same(origin))?;
        Some(idle.swap_remove(at))
    }

    fn response(&self, mut response: http::Response<Incoming>, used: Option<Idle>) -> Response {
        let upgrade = hyper::upgrade::on(&mut response);
        let (head, body) = response.into_parts();
        let connection = used.filter(|_| self.limits.max_idle > 0).map(|used| (used, Arc::clone(&self.idle)));
        Response {
            status: head.status,
            headers: head.headers,
            body,
            upgrade,
            limits: self.limits,
            connection,
        }
    }

    async fn connect(&self, origin: &Origin) -> Result<SendRequest<RequestBody>, HttpError> {
        let (address, read_buffer) = (|| origin.authority(), self.limits.read_buffer);
        let connecting = async {
            let failed = |source| HttpError::Connect { address: address(), source };
            match &*origin.address {
                Address::Unix(path) => {
                    handshake(UnixStream::connect(path).await.map_err(failed)?, read_buffer).await
                }
                Address::Tcp { host, port } => {
                    let stream = egress::connect(origin.network, host, *port).await.map_err(failed)?;
                    let Some(tls) = &origin.tls else { return handshake(stream, read_buffer).await };
                    let connector = TlsConnector::from(Arc::clone(&tls.config));
                    let stream = connector.connect(tls.name.clone(), stream).await;
                    let stream = stream.map_err(|source| HttpError::Tls { address: address(), source })?;
                    handshake(stream, read_buffer).await
                }
            }
        };
        match tokio::time::timeout(self.limits.connect, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(HttpError::ConnectTimeout { address: address(), limit: self.limits.connect }),
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    read_buffer: usize,
) -> Result<SendRequest<RequestBody>, HttpError> {
    let connecting = http1::Builder::new().max_buf_size(read_buffer).handshake(TokioIo::new(stream));
    let (sender, connection) = connecting.await.map_err(HttpError::Exchange)?;
    // Ends with the connection, which ends when its sender is dropped.
    crate::tasks::spawn_detached(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "outbound connection failed");
        }
    });
    Ok(sender)
}

impl Response {
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The connection after a switch of protocols; an error if the server did not switch.
    pub async fn upgraded(self) -> Result<TokioIo<Upgraded>, HttpError> {
        // The connection ends with its sender.
        let Self { upgrade, connection, .. } = self;
        let upgraded = upgrade.await.map(TokioIo::new).map_err(HttpError::Upgrade);
        drop(connection);
        upgraded
    }

    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = tokio::time::timeout(self.limits.silence, self.body.frame()).await;
            match frame.map_err(|_| HttpError::Silence(self.limits.silence))? {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {}
                },
                Some(Err(error)) => return Err(HttpError::Body(error)),
                None => {
                    self.keep();
                    return Ok(None);
                }
            }
        }
    }

    /// The whole body, if it is not longer than `limit`.
    pub async fn bytes(mut self, limit: usize) -> Result<Bytes, HttpError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            if bytes.len() + piece.len() > limit {
                return Err(HttpError::TooLong(limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.into())
    }

    fn keep(&mut self) {
        let Some((mut used, idle)) = self.connection.take() else { return };
        let mut idle = idle.lock();
        if idle.len() < self.limits.max_idle && !used.sender.is_closed() {
            used.since = Instant::now();
            idle.push(used);
        }
    }
}
