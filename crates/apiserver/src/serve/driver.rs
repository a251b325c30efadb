//! Drives one connection after its handshake: HTTP version, timeouts, graceful close.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::tasks::TaskGroup;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep};
use tokio_rustls::server::TlsStream;

use super::gather::{TurnEnd, gather};
use super::stream::GuardedStream;
use super::{Connection, RequestBody, ResponseBody, Segment, ServerConfig, Service};

/// Time limit of a closing connection without requests.
const LINGER: Duration = Duration::from_secs(5);
/// Closing a socket with unread bytes resets it, and the client loses the error response; so it gets this long to
/// read it.
const RESET_AVOIDANCE: Duration = Duration::from_millis(500);

/// Serves `io` until it ends, is idle for too long, or `group` stops and its requests are done.
pub(super) async fn drive<S: Service>(
    io: TlsStream<GuardedStream>,
    connection: Arc<Connection>,
    service: Arc<S>,
    config: &ServerConfig,
    group: &TaskGroup,
) {
    let h2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
    let goaway_chance = if h2 { config.goaway_chance } else { 0.0 };
    let handler = {
        let connection = Arc::clone(&connection);
        service_fn(move |request: http::Request<Incoming>| {
            let service = Arc::clone(&service);
            let guard = RequestGuard::new(Arc::clone(&connection));
            async move {
                let connection = Arc::clone(&guard.0);
                if goaway_chance > 0.0 && rand::random::<f64>() < goaway_chance {
                    connection.close_after_requests();
                }
                let response = service.call(request.map(RequestBody::Wire), connection).await;
                Ok::<_, Infallible>(response.map(|body| Tracked { body, _guard: guard }))
            }
        })
    };
    if h2 {
        let (io, output) = gather(io);
        let http = http2_builder(config, group).serve_connection(TokioIo::new(io), handler);
        supervise(http, &output, &connection, None, config, group).await;
    } else {
        let http = http1_builder(config).serve_connection(TokioIo::new(io), handler).with_upgrades();
        supervise(http, &(), &connection, Some(config.header_timeout), config, group).await;
    }
}

fn http1_builder(config: &ServerConfig) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // A disconnecting client cancels its request.
        .half_close(false)
        .keep_alive(true)
        .header_read_timeout(None)
        .max_header_size(config.max_header_bytes)
        .max_buf_size(config.max_header_bytes.max(1 << 16));
    builder
}

fn http2_builder(config: &ServerConfig, group: &TaskGroup) -> http2::Builder<GroupExecutor> {
    // Large enough for nearly every object in one frame; the connection window lets every stream fill its own.
    const STREAM_WINDOW: u32 = 256 * 1024;
    let mut builder = http2::Builder::new(GroupExecutor(group.clone()));
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW.saturating_mul(config.max_concurrent_streams))
        .max_frame_size(STREAM_WINDOW)
        .max_concurrent_streams(config.max_concurrent_streams)
        .max_header_list_size(u32::try_from(config.max_header_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(1 << 20)
        .max_pending_accept_reset_streams(100)
        .max_local_error_reset_streams(100);
    builder
}

/// Spawns the streams of an HTTP/2 connection in the server's task group.
#[derive(Clone)]
struct GroupExecutor(TaskGroup);

impl<F> hyper::rt::Executor<F> for GroupExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// A connection that supports graceful shutdown.
trait Graceful: Future<Output = hyper::Result<()>> {
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> Graceful for http1::UpgradeableConnection<I, S>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B> Graceful for http2::Connection<I, S, GroupExecutor>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    GroupExecutor: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Outcome of a connection's timer.
#[derive(Debug, PartialEq)]
enum TimerOutcome {
    LookAgainAfter(Duration),
    Idle,
    HeadTooSlow,
}

async fn supervise(
    http: impl Graceful,
    output: &impl TurnEnd,
    connection: &Connection,
    header_timeout: Option<Duration>,
    config: &ServerConfig,
    group: &TaskGroup,
) {
    let mut http = pin!(http);
    let mut stopping = pin!(group.stopping());
    let mut timer = pin!(sleep(header_timeout.unwrap_or(config.idle_timeout)));
    let mut finishing = false;
    loop {
        tokio::select! {
            biased;
            outcome = turn(http.as_mut(), output, connection) => {
                if let Err(error) = outcome {
                    tracing::debug!(peer = ?connection.peer, %error, "connection ended");
                    if error.is_parse() {
                        sleep(RESET_AVOIDANCE).await;
                    }
                }
                return;
            }
            () = connection.closing.notified(), if !finishing => {
                finishing = true;
                http.as_mut().finish();
                timer.as_mut().reset(Instant::now() + LINGER);
            }
            () = stopping.as_mut(), if !finishing => {
                finishing = true;
                http.as_mut().finish();
                timer.as_mut().reset(Instant::now() + LINGER);
            }
            () = timer.as_mut() => {
                let again = match judge(connection, header_timeout, config.idle_timeout) {
                    TimerOutcome::HeadTooSlow => return,
                    TimerOutcome::Idle if finishing => return,
                    TimerOutcome::Idle => {
                        finishing = true;
                        http.as_mut().finish();
                        LINGER
                    }
                    TimerOutcome::LookAgainAfter(_) if finishing && connection.activity.idle_millis().is_some() => return,
                    TimerOutcome::LookAgainAfter(_) if finishing => LINGER,
                    TimerOutcome::LookAgainAfter(wait) => wait,
                };
                timer.as_mut().reset(Instant::now() + again);
            }
        }
    }
}

/// Polls a connection; whenever it is pending, its gathered output is written.
async fn turn<H: Graceful>(
    mut http: Pin<&mut H>,
    output: &impl TurnEnd,
    connection: &Connection,
) -> hyper::Result<()> {
    std::future::poll_fn(|cx| {
        let outcome = http.as_mut().poll(cx);
        if outcome.is_pending() {
            output.end(cx, connection.activity.requests() > 1);
        }
        outcome
    })
    .await
}

fn judge(connection: &Connection, header_timeout: Option<Duration>, idle_timeout: Duration) -> TimerOutcome {
    let left = |limit: Duration, spent: u64| limit.saturating_sub(Duration::from_millis(spent));
    let Some(idle) = connection.activity.idle_millis() else {
        return TimerOutcome::LookAgainAfter(header_timeout.unwrap_or(idle_timeout));
    };
    let mut wait = left(idle_timeout, idle);
    if wait.is_zero() {
        return TimerOutcome::Idle;
    }
    if let Some(header_timeout) = header_timeout {
        let head =
            connection.activity.head_millis().map_or(header_timeout, |spent| left(header_timeout, spent));
        if head.is_zero() {
            return TimerOutcome::HeadTooSlow;
        }
        wait = wait.min(head);
    }
    TimerOutcome::LookAgainAfter(wait)
}

/// Marks the connection busy from a request's head to the end of its response.
#[derive(Debug)]
struct RequestGuard(Arc<Connection>);

impl RequestGuard {
    fn new(connection: Arc<Connection>) -> Self {
        connection.activity.request_started();
        Self(connection)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.activity.request_finished();
    }
}

/// A response body that keeps its connection marked busy.
struct Tracked {
    body: ResponseBody,
    _guard: RequestGuard,
}

impl Body for Tracked {
    type Data = Segment;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Segment>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
