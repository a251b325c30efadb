//! Connections, requests and responses.

use super::HttpError;
use super::origin::{Address, Origin};
use crate::egress;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

/// Limits of one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time to connect, the TLS handshake included.
    pub connect: Duration,
    /// Time from a request to the head of its response.
    pub response: Duration,
    /// Time between two pieces of a response.
    pub silence: Duration,
    /// Connections kept for later requests. Zero: every request has its own.
    pub max_idle: usize,
    /// Time for which they are kept.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            response: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            max_idle: 16,
            idle: Duration::from_secs(90),
        }
    }
}

/// A client with its idle connections.
#[derive(Debug)]
pub struct Client {
    limits: Limits,
    idle: Arc<Mutex<Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    origin: Origin,
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// A response whose body is read piece by piece. Its connection is kept when the body has been read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
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

    /// Sends a request with a path as its URI. Its `Host` is the origin, unless the request names another: servers refuse
    /// requests without one. On an idle connection that turns out to be closed it is sent again, if nothing of it was
    /// sent; a request that may have reached the server fails.
    pub async fn send(
        &self,
        origin: &Origin,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response, HttpError> {
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(&origin.host_header())
        {
            request.headers_mut().insert(HOST, host);
        }
        while let Some(mut kept) = self.take(origin) {
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match self.exchange(&mut kept.sender, request).await? {
                Ok(response) => return Ok(self.response(response, kept)),
                Err((error, unsent)) => request = unsent.ok_or(HttpError::Exchange(error))?,
            }
        }
        let sender = self.connect(origin).await?;
        let mut fresh = Idle { origin: origin.clone(), sender, since: Instant::now() };
        match self.exchange(&mut fresh.sender, request).await? {
            Ok(response) => Ok(self.response(response, fresh)),
            Err((error, _)) => Err(HttpError::Exchange(error)),
        }
    }

    /// Sends a request on a connection. The inner error has the request if nothing of it was sent.
    async fn exchange(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        request: Request<Full<Bytes>>,
    ) -> Result<Result<http::Response<Incoming>, (hyper::Error, Option<Request<Full<Bytes>>>)>, HttpError>
    {
        let sent = tokio::time::timeout(self.limits.response, sender.try_send_request(request)).await;
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

    fn response(&self, response: http::Response<Incoming>, used: Idle) -> Response {
        let (head, body) = response.into_parts();
        let connection = (self.limits.max_idle > 0).then(|| (used, Arc::clone(&self.idle)));
        Response { status: head.status, headers: head.headers, body, limits: self.limits, connection }
    }

    async fn connect(&self, origin: &Origin) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let address = || origin.authority();
        let connecting = async {
            let failed = |source| HttpError::Connect { address: address(), source };
            match &*origin.address {
                Address::Unix(path) => handshake(UnixStream::connect(path).await.map_err(failed)?).await,
                Address::Tcp { host, port } => {
                    let stream = egress::connect(origin.network, host, *port).await.map_err(failed)?;
                    let Some(tls) = &origin.tls else { return handshake(stream).await };
                    let connector = TlsConnector::from(Arc::clone(&tls.config));
                    let stream = connector.connect(tls.name.clone(), stream).await;
                    handshake(stream.map_err(|source| HttpError::Tls { address: address(), source })?).await
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
) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(HttpError::Exchange)?;
    // Ends with the connection, which ends when its sender is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "outbound connection failed");
        }
    });
    Ok(sender)
}

impl Response {
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
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
