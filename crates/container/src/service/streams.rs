//! The streaming server: CRI hands out addresses on it, each good for one connection and a minute.

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
use streaming::{Outcome, Output, Session, Wanted, forward, forward_channels, remote};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::records::{Container, Sandbox};
use super::{Doing, Runtime, RuntimeError, new_id};
use crate::attach::{self, Kind};

/// How long an address is good for.
const VALID: Duration = Duration::from_secs(60);
/// Addresses that wait for their connection.
const MOST_WAITING: usize = 1000;

/// What an address stands for.
#[derive(Clone)]
pub(super) enum Ticket {
    Exec {
        container: Arc<Container>,
        command: Vec<String>,
        wanted: Wanted,
    },
    Attach {
        container: Arc<Container>,
        wanted: Wanted,
    },
    /// `ports` are those of the request, which clients that use channels name in advance.
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
    /// An address for one connection.
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
        if waiting.len() >= MOST_WAITING {
            return Err(RuntimeError::Conflict("too many streams wait for their connection".to_owned()));
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

/// Connections without a ticket yet, at the same time. A stream that was upgraded does not count.
const MOST_CONNECTIONS: usize = 256;
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
    /// Serves streams on loopback until the tasks are told to stop.
    pub(super) async fn serve_streams(self: &Arc<Self>) -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let _ = self.streaming.base.set(format!("http://{}", listener.local_addr()?));
        let slots = Arc::new(tokio::sync::Semaphore::new(MOST_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                () = self.tasks.stopping() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
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
                tokio::select! {
                    _ = connection => {}
                    () = runtime.tasks.stopping() => {}
                }
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
            let stopping = runtime.tasks.stopping();
            tokio::select! {
                ended = runtime.stream(TokioIo::new(upgraded), protocol, ticket) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a stream ended");
                    }
                }
                () = stopping => {}
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
                        Ok(code) => Outcome::Exit(code),
                        Err(error) => Outcome::Failure(error.to_string()),
                    };
                    let _ = output.send(Output::Done(outcome)).await;
                };
                remote::serve(io, protocol, wanted, run).await
            }
            Ticket::Attach { container, wanted } => {
                let run = async |session: Session| {
                    let output = session.output.clone();
                    let outcome = match self.attach_session(&container, wanted, session).await {
                        Ok(()) => Outcome::Exit(0),
                        Err(error) => Outcome::Failure(error.to_string()),
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
        wanted: Wanted,
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
            let moving =
                async { tokio::join!(feed(stdin, writer, false), copy(reader, &output, Output::Stdout)) };
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
        let outputs = async { tokio::join!(out, err) };
        // The command's end of input must not keep its output from ending.
        let moving = async {
            let mut outputs = std::pin::pin!(outputs);
            tokio::select! {
                _ = &mut outputs => {}
                () = input => drop(outputs.await),
            }
        };
        finish(&mut running, moving, std::future::pending::<()>()).await
    }

    async fn attach_session(
        self: &Arc<Self>,
        container: &Arc<Container>,
        wanted: Wanted,
        session: Session,
    ) -> Result<(), RuntimeError> {
        let step = || "talk to the container's shim".to_owned();
        let socket = sys::sockets::connect(&container.directory.join("shim.sock")).doing(step)?;
        socket.set_nonblocking(true).doing(step)?;
        let (mut reader, mut writer) = UnixStream::from_std(socket).doing(step)?.into_split();
        let Session { mut stdin, mut sizes, output } = session;
        // The end of the input ends the session where the container's input stays open; elsewhere it ends with the
        // container, as kubectl expects.
        let config = &container.config;
        let detaches = wanted.stdin && config.stdin && (config.tty || !config.stdin_once);
        let talk = async {
            let mut frame = Vec::new();
            attach::put(&mut frame, Kind::Attach, b"");
            let (mut input, mut resizing) = (true, true);
            loop {
                let failed = writer.write_all(&frame).await.is_err();
                if failed || !(input || resizing) || (detaches && !input) {
                    return !failed && detaches;
                }
                frame.clear();
                tokio::select! {
                    data = stdin.recv(), if input => match data {
                        Some(data) => attach::put(&mut frame, Kind::Stdin, &data),
                        None => {
                            input = false;
                            attach::put(&mut frame, Kind::CloseStdin, b"");
                        }
                    },
                    size = sizes.recv(), if resizing => match size {
                        Some(size) => {
                            let [a, b] = size.columns.to_be_bytes();
                            let [c, d] = size.rows.to_be_bytes();
                            attach::put(&mut frame, Kind::Resize, &[a, b, c, d]);
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
                        Kind::Stdout => Output::Stdout(frame.data.into()),
                        Kind::Stderr => Output::Stderr(frame.data.into()),
                        Kind::Exit => return,
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

/// Waits for a command's end and the rest of its output; one whose client has left is killed.
async fn finish<M: Future, R: Future>(
    running: &mut super::exec::Running,
    moving: M,
    beside: R,
) -> Result<i32, RuntimeError> {
    const REST: Duration = Duration::from_secs(5);
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
        let _ = tokio::time::timeout(REST, moving).await;
    }
    code
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

/// A terminal is read and written like two pipes.
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
        // A terminal hangs up when it is closed; its program ends by itself.
        std::future::pending::<()>().await;
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, to: &mpsc::Sender<Output>, wrap: fn(Bytes) -> Output) {
    let mut buffer = vec![0; 32 << 10];
    // A terminal without programs answers with an error, which is its end.
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 || to.send(wrap(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}

/// Connects to a port on the pod's loopback. A thread of its own enters the pod's network for that.
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
        let _ = sender.send(connect());
    })?;
    let stream = receiver.await.map_err(io::Error::other)??;
    TcpStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let asking = async {
                client.write_all(sent).await.unwrap();
                let _ = client.read_to_end(&mut Vec::new()).await;
            };
            let closed = tokio::time::timeout(HEAD * 2, async { tokio::join!(serving, asking) }).await;
            assert!(closed.is_ok(), "{sent:?}");
        }
    }
}
