//! Supervises a container: copies its output to the log and to attached clients, until its first process exits.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::log::{Lines, Log};
use super::spec::Spec;
use super::{ShimError, Step, failure, now, start};
use crate::attach::{self, Frame, FrameType};

/// The shim's ends of the container's standard streams.
#[derive(Default)]
pub(super) struct Streams {
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
    terminal: bool,
}

/// Limit of buffered data, above which the writer is paused or an attached client is disconnected.
const BACKLOG: usize = 256 << 10;
const CHUNK: usize = 16 << 10;

fn nonblocking(file: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file.as_fd())?;
    Ok(rustix::fs::fcntl_setfl(file.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?)
}

impl Streams {
    /// Creates the pipes: the shim's ends, and the container's unless it gets a terminal.
    pub(super) fn new(spec: &Spec) -> io::Result<(Self, Option<[OwnedFd; 3]>)> {
        if spec.process.terminal {
            return Ok((Self { terminal: true, ..Self::default() }, None));
        }
        let (out_reader, out_writer) = io::pipe()?;
        let (err_reader, err_writer) = io::pipe()?;
        let mut streams = Self {
            stdout: Some(File::from(OwnedFd::from(out_reader))),
            stderr: Some(File::from(OwnedFd::from(err_reader))),
            ..Self::default()
        };
        let stdin = if spec.stdin {
            let (reader, writer) = io::pipe()?;
            nonblocking(&writer)?;
            streams.stdin = Some(File::from(OwnedFd::from(writer)));
            OwnedFd::from(reader)
        } else {
            OwnedFd::from(File::open("/dev/null")?)
        };
        for output in [&streams.stdout, &streams.stderr].into_iter().flatten() {
            nonblocking(output)?;
        }
        Ok((streams, Some([stdin, out_writer.into(), err_writer.into()])))
    }

    pub(super) fn use_terminal(&mut self, file: OwnedFd) {
        let file = File::from(file);
        let _ = nonblocking(&file);
        self.stdin = file.try_clone().ok();
        self.stdout = Some(file);
    }
}

/// A client of the shim: sends one request, or stays attached.
struct AttachedClient {
    socket: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    attached: bool,
    gone: bool,
}

struct Supervisor<'a> {
    spec: &'a Spec,
    streams: Streams,
    log: Option<Log>,
    out: Lines,
    err: Lines,
    clients: Vec<AttachedClient>,
    input: Vec<u8>,
    input_ended: bool,
}

/// Socket for requests to the shim.
const SOCKET: &str = "shim.sock";

/// Listens for clients. Called before the start is reported, since clients may connect immediately.
pub(super) fn listen(directory: &Path) -> Result<UnixListener, ShimError> {
    let socket = directory.join(SOCKET);
    let _ = std::fs::remove_file(&socket);
    let listener = sys::sockets::listen(&socket).step(|| "listen".to_owned())?;
    listener.set_nonblocking(true).step(|| "listen".to_owned())?;
    Ok(listener)
}

/// Runs until the container's first process exits; returns its exit code.
pub(super) fn supervise(
    directory: &Path,
    spec: &Spec,
    pid: i32,
    streams: Streams,
    log: Option<Log>,
    listener: &UnixListener,
) -> Result<i32, ShimError> {
    let child = rustix::process::Pid::from_raw(pid).ok_or_else(|| failure("supervise", "no process"))?;
    let ended = pidfd_open(child, PidfdFlags::empty()).step(|| "watch the container".to_owned())?;
    let mut supervisor = Supervisor {
        spec,
        streams,
        log,
        out: Lines::new("stdout"),
        err: Lines::new("stderr"),
        clients: Vec::new(),
        input: Vec::new(),
        input_ended: false,
    };
    let mut buffer = vec![0; CHUNK];
    while !supervisor.turn(&ended, listener, &mut buffer).step(|| "wait for events".to_owned())? {}
    supervisor.drain(&mut buffer);
    let code = start::wait(pid).step(|| "wait for the container".to_owned())?;
    for client in supervisor.clients.iter_mut().filter(|client| client.attached) {
        client.send(FrameType::Exit, code.to_string().as_bytes());
        let _ = client.socket.set_nonblocking(false);
        let _ = client.socket.set_write_timeout(Some(std::time::Duration::from_secs(1)));
        let _ = client.socket.write_all(&client.outgoing);
    }
    let _ = std::fs::remove_file(directory.join(SOCKET));
    Ok(code)
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    Ended,
    Listener,
    Stdout,
    Stderr,
    Stdin,
    AttachedClient(usize),
}

impl Supervisor<'_> {
    /// Waits for events and handles them; returns true once the first process has exited.
    fn turn(&mut self, ended: &OwnedFd, listener: &UnixListener, buffer: &mut [u8]) -> io::Result<bool> {
        let ready = self.wait(ended, listener)?;
        for source in &ready {
            match source {
                Source::Ended => {}
                Source::Listener => self.accept(listener),
                Source::Stdout => self.read(true, buffer),
                Source::Stderr => self.read(false, buffer),
                Source::Stdin => self.feed(),
                Source::AttachedClient(at) => self.serve(*at, buffer),
            }
        }
        self.clients.retain(|client| !client.gone);
        Ok(ready.contains(&Source::Ended))
    }

    fn wait(&self, ended: &OwnedFd, listener: &UnixListener) -> io::Result<Vec<Source>> {
        let (mut sources, mut watched) = (Vec::new(), Vec::new());
        let mut watch = |source: Source, fd, flags| {
            sources.push(source);
            watched.push(PollFd::from_borrowed_fd(fd, flags));
        };
        watch(Source::Ended, ended.as_fd(), PollFlags::IN);
        watch(Source::Listener, listener.as_fd(), PollFlags::IN);
        if let Some(file) = &self.streams.stdout {
            watch(Source::Stdout, file.as_fd(), PollFlags::IN);
        }
        if let Some(file) = &self.streams.stderr {
            watch(Source::Stderr, file.as_fd(), PollFlags::IN);
        }
        if let Some(file) = self.streams.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            watch(Source::Stdin, file.as_fd(), PollFlags::OUT);
        }
        for (at, client) in self.clients.iter().enumerate() {
            // No further input is read while the container does not consume the buffered input.
            let mut flags = if self.input.len() < BACKLOG { PollFlags::IN } else { PollFlags::empty() };
            if !client.outgoing.is_empty() {
                flags |= PollFlags::OUT;
            }
            watch(Source::AttachedClient(at), client.socket.as_fd(), flags);
        }
        loop {
            match poll(&mut watched, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sources
            .into_iter()
            .zip(&watched)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(s, _)| s)
            .collect())
    }

    fn accept(&mut self, listener: &UnixListener) {
        if let Ok((socket, _)) = listener.accept()
            && socket.set_nonblocking(true).is_ok()
        {
            let (incoming, outgoing) = (Vec::new(), Vec::new());
            self.clients.push(AttachedClient { socket, incoming, outgoing, attached: false, gone: false });
        }
    }

    /// Reads output of the container; closes a stream that has ended.
    fn read(&mut self, stdout: bool, buffer: &mut [u8]) {
        let (stream, lines, kind) = if stdout {
            (&mut self.streams.stdout, &mut self.out, FrameType::Stdout)
        } else {
            (&mut self.streams.stderr, &mut self.err, FrameType::Stderr)
        };
        let Some(file) = stream else { return };
        match file.read(buffer) {
            Ok(0) => *stream = None,
            Ok(count) => {
                let output = &buffer[..count];
                if let Some(log) = &mut self.log {
                    lines.write(log, now(), output);
                }
                for client in self.clients.iter_mut().filter(|client| client.attached) {
                    client.send(kind, output);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // A terminal whose slave is closed returns this error.
            Err(_) => *stream = None,
        }
    }

    /// Drains the pipes after the exit.
    fn drain(&mut self, buffer: &mut [u8]) {
        for stdout in [true, false] {
            for _ in 0..1024 {
                let stream = if stdout { &self.streams.stdout } else { &self.streams.stderr };
                let Some(file) = stream else { break };
                let mut one = [PollFd::new(file, PollFlags::IN)];
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                if !matches!(poll(&mut one, Some(&now)), Ok(1)) {
                    break;
                }
                self.read(stdout, buffer);
            }
        }
        if let Some(log) = &mut self.log {
            self.out.finish(log, now());
            self.err.finish(log, now());
        }
    }

    fn feed(&mut self) {
        if let Some(file) = &mut self.streams.stdin {
            match file.write(&self.input) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.input.clear();
                    self.streams.stdin = None;
                }
            }
        }
        self.end_input();
    }

    /// Closes the container's input once all of it is written.
    fn end_input(&mut self) {
        if self.input_ended && self.input.is_empty() && !self.streams.terminal {
            self.streams.stdin = None;
        }
    }

    fn serve(&mut self, at: usize, buffer: &mut [u8]) {
        let Some(client) = self.clients.get_mut(at) else { return };
        client.flush();
        match client.socket.read(buffer) {
            Ok(0) => client.gone = true,
            Ok(count) => client.incoming.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => client.gone = true,
        }
        while let Some(client) = self.clients.get_mut(at) {
            match attach::take(&mut client.incoming) {
                Ok(Some(frame)) => self.handle(at, frame),
                Ok(None) => break,
                Err(attach::Malformed) => {
                    client.gone = true;
                    break;
                }
            }
        }
        let left = self.clients.get(at).is_some_and(|client| client.gone && client.attached);
        if left && self.spec.stdin_once && !self.clients.iter().any(|client| client.attached && !client.gone)
        {
            self.input_ended = true;
            self.end_input();
        }
    }

    fn handle(&mut self, at: usize, frame: Frame) {
        let answer = match frame.kind {
            FrameType::Attach => {
                self.clients[at].attached = true;
                Ok(())
            }
            FrameType::Reopen => self.log.as_mut().map_or(Ok(()), Log::reopen),
            FrameType::Stdin => {
                if self.streams.stdin.is_some() {
                    self.input.extend_from_slice(&frame.data);
                    self.feed();
                }
                return;
            }
            FrameType::CloseStdin => {
                // Further clients may attach to a container whose stdin stays open.
                if self.spec.stdin_once {
                    self.input_ended = true;
                    self.end_input();
                }
                return;
            }
            FrameType::Resize => {
                if let (true, Some(file), Some((columns, rows))) =
                    (self.streams.terminal, &self.streams.stdout, attach::size(&frame.data))
                {
                    let _ = resize(file.as_fd(), columns, rows);
                }
                return;
            }
            FrameType::Stdout | FrameType::Stderr | FrameType::Exit | FrameType::Done | FrameType::Failed => {
                return;
            }
        };
        match answer {
            Ok(()) => self.clients[at].send(FrameType::Done, b""),
            Err(error) => self.clients[at].send(FrameType::Failed, error.to_string().as_bytes()),
        }
    }
}

impl AttachedClient {
    fn send(&mut self, kind: FrameType, data: &[u8]) {
        attach::put(&mut self.outgoing, kind, data);
        self.flush();
        // A client that does not read must not block the container.
        if self.outgoing.len() > BACKLOG {
            self.gone = true;
        }
    }

    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(0) => break,
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.gone = true;
                    break;
                }
            }
        }
    }
}

pub(crate) fn resize(terminal: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
