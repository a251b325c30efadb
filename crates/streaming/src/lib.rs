//! Streams of exec, attach and port-forward: WebSocket channels and SPDY/3.1.
//!
//! [`upgrade`] looks at a request and says which protocol it wants; [`remote`] makes of an upgraded connection a
//! [`Session`], whatever the protocol; [`forward`] carries connections to ports.

pub mod channels;
pub mod forward;
pub mod forward_channels;
pub mod remote;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Which streams a client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub terminal: bool,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

impl Size {
    /// As clients send it: `{"Width":80,"Height":24}`.
    #[must_use]
    pub fn parse(json: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(json).ok()?;
        let part = |name: &str| u16::try_from(value[name].as_u64()?).ok();
        Some(Self { columns: part("Width")?, rows: part("Height")? })
    }
}

/// What goes to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// The end; nothing comes after it.
    Done(Outcome),
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Exit(i32),
    Failure(String),
}

impl Outcome {
    /// The status that tells a client.
    #[must_use]
    pub fn status(&self) -> Value {
        match self {
            Self::Exit(0) => json!({"metadata": {}, "status": "Success"}),
            Self::Exit(code) => json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}}),
            Self::Failure(message) => json!({"metadata": {}, "status": "Failure", "reason": "InternalError",
                "message": message, "code": 500}),
        }
    }
}

/// The server's end of an exec or attach: it reads input and sizes, and writes output.
#[derive(Debug)]
pub struct Session {
    /// Ends when the client closes its input.
    pub stdin: mpsc::Receiver<Bytes>,
    pub sizes: mpsc::Receiver<Size>,
    pub output: mpsc::Sender<Output>,
}

/// The other end, which a protocol's driver holds.
#[derive(Debug)]
pub(crate) struct Driven {
    pub stdin: Option<mpsc::Sender<Bytes>>,
    pub sizes: mpsc::Sender<Size>,
    pub output: mpsc::Receiver<Output>,
}

/// How many pieces may wait on each stream.
const BACKLOG: usize = 16;

impl Session {
    pub(crate) fn pair() -> (Self, Driven) {
        let (stdin_sender, stdin) = mpsc::channel(BACKLOG);
        let (sizes_sender, sizes) = mpsc::channel(BACKLOG);
        let (output, output_receiver) = mpsc::channel(BACKLOG);
        let driven = Driven { stdin: Some(stdin_sender), sizes: sizes_sender, output: output_receiver };
        (Self { stdin, sizes, output }, driven)
    }
}

/// What can go wrong on a connection.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the client did not open its streams in time")]
    Incomplete,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes() {
        assert_eq!(Outcome::Exit(0).status()["status"], "Success");
        assert_eq!(Outcome::Exit(3).status()["details"]["causes"][0]["message"], "3");
        assert_eq!(Outcome::Failure("x".into()).status()["message"], "x");
        assert_eq!(Size::parse(br#"{"Width":80,"Height":24}"#), Some(Size { columns: 80, rows: 24 }));
        assert_eq!(Size::parse(br#"{"Width":800000}"#), None);
    }
}
