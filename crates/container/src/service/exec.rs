//! Additional processes in containers (exec).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sys::process;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::records::{self, Container};
use super::{Doing, Runtime, RuntimeError, new_id};
use crate::shim::spec::{self, ExecSpec};
use crate::shim::{Report, Task};

/// Output limit of ExecSync; more is dropped, as in other runtimes.
const LARGEST_OUTPUT: u64 = 16 << 20;
/// Time to read output after the exit of a command whose children still hold its pipes.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A process in a container.
pub(super) struct Running {
    pub pid: i32,
    reports: BufReader<UnixStream>,
}

/// Result of ExecSync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Running {
    /// Waits for the process to exit.
    pub(super) async fn wait(&mut self) -> Result<i32, RuntimeError> {
        match read_report(&mut self.reports).await? {
            Report::Exited { code } => Ok(code),
            _ => Err(RuntimeError::Invalid("the shim reported no exit code".to_owned())),
        }
    }

    pub(super) fn kill(&self) {
        if self.pid > 1 {
            let _ = process::kill(self.pid, 9);
        }
    }
}

/// Kills a process whose caller disconnected before it exited.
pub(super) struct KillOnDrop {
    /// 0 once there is nothing to kill.
    pub pid: i32,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.pid > 1 {
            let _ = process::kill(self.pid, 9);
        }
    }
}

async fn read_report(reports: &mut BufReader<UnixStream>) -> Result<Report, RuntimeError> {
    let mut line = String::new();
    reports.take(64 << 10).read_line(&mut line).await.doing(|| "read the shim report".to_owned())?;
    match serde_json::from_str(&line) {
        Ok(Report::Failed { message }) => Err(RuntimeError::Invalid(message)),
        Ok(report) => Ok(report),
        Err(_) => Err(RuntimeError::Invalid("shim exited without a report".to_owned())),
    }
}

impl Runtime {
    /// Starts a command. `files` are its standard streams; with a terminal, the master is returned instead.
    pub(super) async fn exec(
        self: &Arc<Self>,
        container: &Arc<Container>,
        command: Vec<String>,
        terminal: bool,
        files: Vec<OwnedFd>,
    ) -> Result<(Running, Option<OwnedFd>), RuntimeError> {
        let started = container.running();
        let started = started.ok_or_else(|| RuntimeError::Conflict("container is not running".to_owned()))?;
        let directory = container.directory.clone();
        let launched = self.blocking(move |runtime| {
            let spec = records::read_spec(&directory)?
                .ok_or_else(|| RuntimeError::NotFound("the container is gone".to_owned()))?;
            let mut process = spec.process;
            process.arguments = command;
            process.terminal = terminal;
            if terminal && !process.environment.iter().any(|(name, _)| name == "TERM") {
                process.environment.push(("TERM".to_owned(), "xterm".to_owned()));
            }
            let exec = ExecSpec {
                pid: started.pid,
                start_time: started.start_time,
                cgroup: spec.cgroup,
                process,
                out_of_memory_score: spec.out_of_memory_score,
            };
            let path = spec::private(&directory).join(format!("exec-{}.json", &new_id()[..16]));
            records::write(&path, &exec)?;
            let launched = runtime.launcher.spawn(Task::Exec, &path, &directory.join("shim.log"), None);
            let socket = launched.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
            let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            sys::sockets::send(&socket, b"x", &borrowed).doing(|| "send descriptors".to_owned())?;
            let mut console = None;
            if terminal {
                let mut bytes = [0; 4096];
                let (count, mut files) = sys::sockets::receive(&socket, &mut bytes)
                    .doing(|| "wait for the terminal".to_owned())?;
                console = files.pop();
                if console.is_none() {
                    let reply = String::from_utf8_lossy(&bytes[..count]);
                    let message = match serde_json::from_str(reply.trim()) {
                        Ok(Report::Failed { message }) => message,
                        _ => "no terminal was opened for the command".to_owned(),
                    };
                    return Err(RuntimeError::Invalid(message));
                }
            }
            Ok((socket, console))
        });
        let (socket, console) = launched.await?;
        let socket = socket
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(socket))
            .doing(|| "read the shim report".to_owned())?;
        let mut running = Running { pid: 0, reports: BufReader::new(socket) };
        match read_report(&mut running.reports).await? {
            Report::Started { pid, .. } => {
                running.pid = pid;
                Ok((running, console))
            }
            _ => Err(RuntimeError::Invalid("the shim did not start the command".to_owned())),
        }
    }

    /// Runs a command and waits for it; a `timeout` of zero is unlimited.
    pub(super) async fn exec_sync(
        self: &Arc<Self>,
        container: &Arc<Container>,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<Output, RuntimeError> {
        let pipes = || -> io::Result<_> {
            let (out_reader, out_writer) = io::pipe()?;
            let (err_reader, err_writer) = io::pipe()?;
            let nothing = std::fs::File::open("/dev/null")?;
            let receiver = |reader: io::PipeReader| {
                let owned = OwnedFd::from(reader);
                rustix::io::ioctl_fionbio(&owned, true)?;
                pipe::Receiver::from_owned_fd(owned)
            };
            let files = vec![nothing.into(), out_writer.into(), err_writer.into()];
            Ok((receiver(out_reader)?, receiver(err_reader)?, files))
        };
        let (stdout, stderr, files) = pipes().doing(|| "make pipes".to_owned())?;
        let (mut running, _) = self.exec(container, command, false, files).await?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let limit = if timeout.is_zero() { Duration::from_secs(u64::MAX >> 8) } else { timeout };
        let ended = {
            let reading = async { tokio::join!(read(stdout, &mut out), read(stderr, &mut err)) };
            let mut reading = std::pin::pin!(reading);
            let mut waiting = std::pin::pin!(running.wait());
            let both = async {
                let mut read = false;
                let code = loop {
                    tokio::select! {
                        code = &mut waiting => break code,
                        _ = &mut reading, if !read => read = true,
                    }
                };
                if !read {
                    let _ = tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, reading).await;
                }
                code
            };
            tokio::time::timeout(limit, both).await
        };
        match ended {
            Ok(code) => Ok(Output { code: code?, stdout: out, stderr: err }),
            Err(_) => {
                running.kill();
                let _ = running.wait().await;
                Err(RuntimeError::TimedOut(format!("command timed out after {} s", limit.as_secs_f64())))
            }
        }
    }
}

async fn read(mut from: impl AsyncRead + Unpin, into: &mut Vec<u8>) {
    let captured = (&mut from).take(LARGEST_OUTPUT).read_to_end(into).await;
    if captured.is_ok() {
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
}
