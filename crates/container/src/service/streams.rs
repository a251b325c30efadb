//! The streaming server: CRI returns URLs on it, each valid for one connection within a minute.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use streaming::upgrade::{Protocol, Purpose, choose};
use streaming::{CommandOutcome, Output, RequestedStreams, Session, forward, forward_channels, remote};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::records::{Container, Sandbox};
use super::update::connect_to_shim;
use super::{Doing, Runtime, RuntimeError, new_id};
use crate::attach::{self, FrameType};

/// Validity of a URL.
const VALID: Duration = Duration::from_secs(60);
/// Limit of unused URLs.
const MAX_PENDING: usize = 1000;

/// Request behind a URL.
#[derive(Clone)]
pub(super) enum Ticket {
    Exec {
        container: Arc<Container>,
        command: Vec<String>,
        wanted: RequestedStreams,
    },
    Attach {
        container: Arc<Container>,
        wanted: RequestedStreams,
    },
    /// `ports` are those of the request, which clients of channel protocols list in advance.
    PortForward {
        sandbox: Arc<Sandbox>,
        ports: Vec<u16>,
    },
}

#[derive(Default)]
pub(super) struct Streaming {
    base: std::sync::OnceLock<String>,
    waiting: Mutex<HashMap<String, (Ticket, Instant)>>,
}

impl Streaming {
    /// Returns a URL for one connection.
    pub(super) fn address(&self, ticket: Ticket) -> Result<String, RuntimeError> {
        let base = self.base.get();
        let base =
            base.ok_or_else(|| RuntimeError::Conflict("the streaming server is not running".to_owned()))?;
        let token = new_id();
        let kind = match ticket {
            Ticket::Exec { .. } => "exec",
            Ticket::Attach { .. } => "attach",
            Ticket::PortForward { .. } => "portforward",
        };
        let mut waiting = self.waiting.lock();
        waiting.retain(|_, (_, made)| made.elapsed() < VALID);
        if waiting.len() >= MAX_PENDING {
            return Err(RuntimeError::Conflict("too many pending streaming requests".to_owned()));
        }
        let address = format!("{base}/{kind}/{token}");
        waiting.insert(token, (ticket, Instant::now()));
        Ok(address)
    }

    fn take(&self, path: &str) -> Option<Ticket> {
        let token = path.rsplit('/').next()?;
        let (ticket, made) = self.waiting.lock().remove(token)?;
        (made.elapsed() < VALID).then_some(ticket)
    }
}

/// Concurrent connections without a ticket yet. Upgraded streams do not count.
const MAX_CONNECTIONS: usize = 256;
/// Time to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);

fn http() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(hyper_util::rt::TokioTimer::new()).header_read_timeout(HEAD);
    builder
}

type Answer = Response<http_body_util::Full<Bytes>>;

fn refuse(status: StatusCode, message: &str) -> Answer {
    let mut answer = Response::new(Bytes::copy_from_slice(message.as_bytes()).into());
    *answer.status_mut() = status;
    answer
}

impl Runtime {
    /// Serves streams on loopback until shutdown.
    pub(super) async fn serve_streams(self: &Arc<Self>) -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let _ = self.streaming.base.set(format!("http://{}", listener.local_addr()?));
        let slots = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
        let mut acceptor = base::accept::Acceptor::new(&listener);
        loop {
            let Some((socket, _)) = self.tasks.until_stopped(acceptor.accept()).await else { return Ok(()) };
            // Any local process can connect; without a ticket a connection is bounded by these limits.
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                tracing::debug!("streaming connection refused, too many are open");
                continue;
            };
            let runtime = Arc::clone(self);
            self.tasks.spawn(async move {
                let _slot = slot;
                let answering = Arc::clone(&runtime);
                let service = hyper::service::service_fn(move |request| {
                    let answer = answering.answer(request);
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                let connection = http().serve_connection(TokioIo::new(socket), service).with_upgrades();
                runtime.tasks.until_stopped(connection).await;
            });
        }
    }

    fn answer(self: &Arc<Self>, mut request: Request<hyper::body::Incoming>) -> Answer {
        let Some(ticket) = self.streaming.take(request.uri().path()) else {
            return refuse(StatusCode::NOT_FOUND, "no such stream, or it was used already");
        };
        let purpose = match ticket {
            Ticket::PortForward { .. } => Purpose::PortForward,
            _ => Purpose::Command,
        };
        let (protocol, switching) = match choose(request.headers(), purpose) {
            Ok(chosen) => chosen,
            Err(refused) => return refuse(StatusCode::BAD_REQUEST, &refused.to_string()),
        };
        if let (Protocol::Channels(_), Ticket::PortForward { ports, .. }) = (protocol, &ticket) {
            match ports.len() {
                0 => return refuse(StatusCode::BAD_REQUEST, "query parameter \"port\" is required"),
                1..=forward_channels::MOST_PORTS => {}
                _ => return refuse(StatusCode::BAD_REQUEST, "too many ports"),
            }
        }
        let upgrade = hyper::upgrade::on(&mut request);
        let runtime = Arc::clone(self);
        self.tasks.spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let streaming = runtime.stream(TokioIo::new(upgraded), protocol, ticket);
            if let Some(Err(error)) = runtime.tasks.until_stopped(streaming).await {
                tracing::debug!(%error, "stream closed");
            }
        });
        switching.map(|()| Bytes::new().into())
    }

    async fn stream(
        self: &Arc<Self>,
        io: TokioIo<hyper::upgrade::Upgraded>,
        protocol: Protocol,
        ticket: Ticket,
    ) -> Result<(), streaming::StreamError> {
        match ticket {
            Ticket::Exec { container, command, wanted } => {
                let run = async |session: Session| {
                    let output = session.output.clone();
                    let outcome = match self.exec_session(&container, command, wanted, session).await {
                        Ok(code) => CommandOutcome::Exit(code),
                        Err(error) => CommandOutcome::Failure(error.to_string()),
                    };
                    let _ = output.send(Output::Done(outcome)).await;
                };
                remote::serve(io, protocol, wanted, run).await
            }
            Ticket::Attach { container, wanted } => {
                let run = async |session: Session| {
                    let output = session.output.clone();
                    let outcome = match self.attach_session(&container, wanted, session).await {
                        Ok(()) => CommandOutcome::Exit(0),
                        Err(error) => CommandOutcome::Failure(error.to_string()),
                    };
                    let _ = output.send(Output::Done(outcome)).await;
                };
                remote::serve(io, protocol, wanted, run).await
            }
            Ticket::PortForward { sandbox, ports } => {
                let open = move |port| connect_inside(Arc::clone(&sandbox), port);
                match protocol {
                    Protocol::Channels(dialect) => {
                        forward_channels::serve(io, dialect.base64, &ports, open).await
                    }
                    _ => forward::serve(io, protocol, open).await,
                }
            }
        }
    }

    async fn exec_session(
        self: &Arc<Self>,
        container: &Arc<Container>,
        command: Vec<String>,
        wanted: RequestedStreams,
        session: Session,
    ) -> Result<i32, RuntimeError> {
        let Session { stdin, mut sizes, output } = session;
        if wanted.terminal {
            let (mut running, console) = self.exec(container, command, true, Vec::new()).await?;
            let console = console.ok_or_else(|| RuntimeError::Conflict("no terminal".to_owned()))?;
            let step = || "use the terminal".to_owned();
            let (reader, writer) = both_ends(&console).doing(step)?;
            let resize = async {
                while let Some(size) = sizes.recv().await {
                    let _ = crate::shim::resize(console.as_fd(), size.columns, size.rows);
                }
                std::future::pending::<()>().await;
            };
            let moving = until_output_ends(feed(stdin, writer, false), copy(reader, &output, Output::Stdout));
            return finish(&mut running, moving, resize).await;
        }
        let made = pipes(wanted.stdin).doing(|| "make pipes".to_owned())?;
        let (mut running, _) = self.exec(container, command, false, made.theirs).await?;
        let (out, err) =
            (copy(made.stdout, &output, Output::Stdout), copy(made.stderr, &output, Output::Stderr));
        let input = async {
            if let Some(writer) = made.stdin {
                feed(stdin, writer, true).await;
            }
        };
        let moving = until_output_ends(input, async { tokio::join!(out, err) });
        finish(&mut running, moving, std::future::pending::<()>()).await
    }

    async fn attach_session(
        self: &Arc<Self>,
        container: &Arc<Container>,
        wanted: RequestedStreams,
        session: Session,
    ) -> Result<(), RuntimeError> {
        let step = || "talk to the container's shim".to_owned();
        let socket = connect_to_shim(container)?;
        socket.set_nonblocking(true).doing(step)?;
        let (mut reader, mut writer) = UnixStream::from_std(socket).doing(step)?.into_split();
        let Session { mut stdin, mut sizes, output } = session;
        // EOF on stdin ends the session if the container's stdin stays open; otherwise the session ends with the
        // container, as kubectl expects.
        let config = &container.config;
        let detaches = wanted.stdin && config.stdin && (config.tty || !config.stdin_once);
        let talk = async {
            let mut frame = Vec::new();
            attach::put(&mut frame, FrameType::Attach, b"");
            let (mut input, mut resizing) = (true, true);
            loop {
                let failed = writer.write_all(&frame).await.is_err();
                if failed || !(input || resizing) || (detaches && !input) {
                    return !failed && detaches;
                }
                frame.clear();
                tokio::select! {
                    data = stdin.recv(), if input => match data {
                        Some(data) => attach::put(&mut frame, FrameType::Stdin, &data),
                        None => {
                            input = false;
                            attach::put(&mut frame, FrameType::CloseStdin, b"");
                        }
                    },
                    size = sizes.recv(), if resizing => match size {
                        Some(size) => {
                            let [a, b] = size.columns.to_be_bytes();
                            let [c, d] = size.rows.to_be_bytes();
                            attach::put(&mut frame, FrameType::Resize, &[a, b, c, d]);
                        }
                        None => resizing = false,
                    },
                }
            }
        };
        let listen = async {
            let (mut bytes, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
            loop {
                while let Ok(Some(frame)) = attach::take(&mut bytes) {
                    let piece = match frame.kind {
                        FrameType::Stdout => Output::Stdout(frame.data.into()),
                        FrameType::Stderr => Output::Stderr(frame.data.into()),
                        FrameType::Exit => return,
                        _ => continue,
                    };
                    if output.send(piece).await.is_err() {
                        return;
                    }
                }
                match reader.read(&mut buffer).await {
                    Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
                    _ => return,
                }
            }
        };
        let mut listen = std::pin::pin!(listen);
        tokio::select! {
            () = &mut listen => {}
            detached = talk => if !detached {
                tokio::select! {
                    () = &mut listen => {}
                    () = output.closed() => {}
                }
            },
        }
        Ok(())
    }
}

/// Waits for a command's exit and its remaining output; kills the command if the client has disconnected.
async fn finish<M: Future, R: Future>(
    running: &mut super::exec::Running,
    moving: M,
    beside: R,
) -> Result<i32, RuntimeError> {
    const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
    let mut guard = super::exec::KillOnDrop { pid: running.pid };
    let (mut moving, mut beside) = (std::pin::pin!(moving), std::pin::pin!(beside));
    let mut moved = false;
    let code = {
        let mut ended = std::pin::pin!(running.wait());
        loop {
            tokio::select! {
                code = &mut ended => break code,
                _ = &mut moving, if !moved => moved = true,
                _ = &mut beside => {}
            }
        }
    };
    guard.pid = 0;
    if !moved {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, moving).await;
    }
    code
}

/// Moves input and output until the output ends: a stdin that stays open does not delay the end of the command.
async fn until_output_ends(input: impl Future, output: impl Future) {
    let mut output = std::pin::pin!(output);
    tokio::select! {
        _ = &mut output => {}
        _ = input => drop(output.await),
    }
}

struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    theirs: Vec<OwnedFd>,
}

fn pipes(stdin: bool) -> io::Result<Pipes> {
    let receiver = |reader: io::PipeReader| {
        let reader = OwnedFd::from(reader);
        rustix::io::ioctl_fionbio(&reader, true)?;
        pipe::Receiver::from_owned_fd(reader)
    };
    let (out, out_writer) = io::pipe()?;
    let (err, err_writer) = io::pipe()?;
    let (sender, input) = if stdin {
        let (reader, writer) = io::pipe()?;
        let writer = OwnedFd::from(writer);
        rustix::io::ioctl_fionbio(&writer, true)?;
        (Some(pipe::Sender::from_owned_fd(writer)?), OwnedFd::from(reader))
    } else {
        (None, std::fs::File::open("/dev/null")?.into())
    };
    let theirs = vec![input, out_writer.into(), err_writer.into()];
    Ok(Pipes { stdin: sender, stdout: receiver(out)?, stderr: receiver(err)?, theirs })
}

/// A terminal, read and written like two pipes.
fn both_ends(console: &OwnedFd) -> io::Result<(pipe::Receiver, pipe::Sender)> {
    rustix::io::ioctl_fionbio(console, true)?;
    let reader = pipe::Receiver::from_owned_fd_unchecked(console.try_clone()?)?;
    let writer = pipe::Sender::from_owned_fd_unchecked(console.try_clone()?)?;
    Ok((reader, writer))
}

async fn feed(mut from: mpsc::Receiver<Bytes>, mut to: pipe::Sender, close: bool) {
    while let Some(data) = from.recv().await {
        if to.write_all(&data).await.is_err() {
            return;
        }
    }
    if !close {
        // Closing a terminal sends SIGHUP, which ends its program.
        std::future::pending::<()>().await;
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, to: &mpsc::Sender<Output>, wrap: fn(Bytes) -> Output) {
    let mut buffer = vec![0; 32 << 10];
    // A terminal without processes returns an error, which means EOF.
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 || to.send(wrap(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}

/// Connects to a port on the pod's loopback, from a thread that enters the pod's network namespace.
#[expect(clippy::disallowed_methods, reason = "a named thread, which reports failures to start")]
async fn connect_inside(sandbox: Arc<Sandbox>, port: u16) -> io::Result<TcpStream> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("port-forward".to_owned()).spawn(move || {
        let connect = || -> io::Result<std::net::TcpStream> {
            if !sandbox.host_network() {
                let namespace = std::fs::File::open(sandbox.namespace("net"))?;
                sys::process::enter(namespace.as_fd(), sys::process::Namespace::Network)?;
            }
            let addresses = [([127, 0, 0, 1], port).into(), (std::net::Ipv6Addr::LOCALHOST, port).into()];
            let stream = std::net::TcpStream::connect(&addresses[..])?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        // The client shows the text.
        let for_client = |error: io::Error| io::Error::new(error.kind(), base::errors::system(error));
        let _ = sender.send(connect().map_err(for_client));
    })?;
    let stream = receiver.await.map_err(io::Error::other)??;
    TcpStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn open_stdin_does_not_delay_the_end_of_output() {
        let moving = until_output_ends(std::future::pending::<()>(), std::future::ready(()));
        assert!(tokio::time::timeout(Duration::from_secs(1), moving).await.is_ok());
        let moving = until_output_ends(std::future::ready(()), std::future::pending::<()>());
        assert!(tokio::time::timeout(Duration::from_secs(1), moving).await.is_err(), "output continues");
    }

    /// A client that connects and sends nothing, or half a request.
    #[tokio::test(start_paused = true)]
    async fn streaming_connection_without_request_is_closed() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        for sent in [&b""[..], b"GET /exec/x HTTP/1.1\r\n"] {
            let (mut client, server) = tokio::io::duplex(4096);
            let service = hyper::service::service_fn(async |_: Request<hyper::body::Incoming>| {
                Ok::<_, std::convert::Infallible>(refuse(StatusCode::NOT_FOUND, "no"))
            });
            let serving = http().serve_connection(TokioIo::new(server), service);
            let requests = async {
                client.write_all(sent).await.unwrap();
                let _ = client.read_to_end(&mut Vec::new()).await;
            };
            let closed = tokio::time::timeout(HEAD * 2, async { tokio::join!(serving, requests) }).await;
            assert!(closed.is_ok(), "{sent:?}");
        }
    }
}
