//! Streams of exec, attach and port-forward: WebSocket channels and SPDY/3.1.
//!
//! [`upgrade`] negotiates the protocol of a request; [`remote`] turns an upgraded connection into a [`Session`],
//! independent of the protocol; [`forward`] carries connections to ports.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

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

/// Streams requested by a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedStreams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub terminal: bool,
}

/// Terminal size.
///
/// ```
/// let size = streaming::Size::parse(br#"{"Width":80,"Height":24}"#).expect("a size");
/// assert_eq!((size.columns, size.rows), (80, 24));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

impl Size {
    /// Parses the clients' format: `{"Width":80,"Height":24}`.
    #[must_use]
    pub fn parse(json: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(json).ok()?;
        let part = |name: &str| u16::try_from(value[name].as_u64()?).ok();
        Some(Self { columns: part("Width")?, rows: part("Height")? })
    }
}

/// Output to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// Result of the command; the last message.
    Done(CommandOutcome),
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    Exit(i32),
    Failure(String),
}

impl CommandOutcome {
    /// Status object for the client.
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

/// Server side of an exec or attach: reads input and terminal sizes, writes output.
#[derive(Debug)]
pub struct Session {
    /// Ends when the client closes its input.
    pub stdin: mpsc::Receiver<Bytes>,
    pub sizes: mpsc::Receiver<Size>,
    pub output: mpsc::Sender<Output>,
}

/// The opposite end, held by a protocol driver.
#[derive(Debug)]
pub(crate) struct DriverEnd {
    pub stdin: Option<mpsc::Sender<Bytes>>,
    pub sizes: mpsc::Sender<Size>,
    pub output: mpsc::Receiver<Output>,
}

/// Queue capacity per stream.
const BACKLOG: usize = 16;

impl Session {
    pub(crate) fn pair() -> (Self, DriverEnd) {
        let (stdin_sender, stdin) = mpsc::channel(BACKLOG);
        let (sizes_sender, sizes) = mpsc::channel(BACKLOG);
        let (output, output_receiver) = mpsc::channel(BACKLOG);
        let driven = DriverEnd { stdin: Some(stdin_sender), sizes: sizes_sender, output: output_receiver };
        (Self { stdin, sizes, output }, driven)
    }
}

/// Failure of a stream connection.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("connection failed")]
    Io(#[from] std::io::Error),
    #[error("protocol violation by peer: {0}")]
    Protocol(&'static str),
    #[error("message too long")]
    TooLong,
    #[error("text message is not valid UTF-8")]
    InvalidText,
    #[error("timed out waiting for the client to open its streams")]
    Incomplete,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_maps_to_status() {
        assert_eq!(CommandOutcome::Exit(0).status()["status"], "Success");
        assert_eq!(CommandOutcome::Exit(3).status()["details"]["causes"][0]["message"], "3");
        assert_eq!(CommandOutcome::Failure("x".into()).status()["message"], "x");
        assert_eq!(Size::parse(br#"{"Width":80,"Height":24}"#), Some(Size { columns: 80, rows: 24 }));
        assert_eq!(Size::parse(br#"{"Width":800000}"#), None);
    }
}
