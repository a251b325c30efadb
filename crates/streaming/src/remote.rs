//! Exec and attach, whatever the protocol.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::spdy::{self, Incoming, Sender};
use crate::upgrade::Protocol;
use crate::{Driven, Output, Session, Size, StreamError, Wanted, channels};

/// How long a client may take to open its streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves a command on an upgraded connection: `run` gets the session, and the connection is kept until its end.
pub async fn serve<T, F, Fut>(io: T, protocol: Protocol, wanted: Wanted, run: F) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(Session) -> Fut,
    Fut: Future<Output = ()>,
{
    match protocol {
        Protocol::Channels(dialect) => {
            let (session, driver) = channels::serve(io, dialect);
            let (driven, ()) = tokio::join!(driver, run(session));
            driven
        }
        Protocol::Spdy | Protocol::TunnelledSpdy => over_spdy(io, wanted, run).await,
    }
}

#[derive(Default)]
struct Streams {
    error: Option<Incoming>,
    stdin: Option<Incoming>,
    stdout: Option<Incoming>,
    stderr: Option<Incoming>,
    resize: Option<Incoming>,
}

impl Streams {
    fn complete(&self, wanted: Wanted) -> bool {
        self.error.is_some()
            && (self.stdin.is_some() || !wanted.stdin)
            && (self.stdout.is_some() || !wanted.stdout)
            && (self.stderr.is_some() || !wanted.stderr || wanted.terminal)
            && (self.resize.is_some() || !wanted.terminal)
    }

    fn add(&mut self, stream: Incoming) {
        let place = match stream.header("streamtype") {
            Some("error") => &mut self.error,
            Some("stdin") => &mut self.stdin,
            Some("stdout") => &mut self.stdout,
            Some("stderr") => &mut self.stderr,
            Some("resize") => &mut self.resize,
            _ => return,
        };
        *place = Some(stream);
    }
}

async fn over_spdy<T, F, Fut>(io: T, wanted: Wanted, run: F) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(Session) -> Fut,
    Fut: Future<Output = ()>,
{
    let mut connection = spdy::connect(io);
    let work = async {
        let mut streams = Streams::default();
        let gathering = async {
            while !streams.complete(wanted) {
                match connection.incoming.recv().await {
                    Some(stream) => streams.add(stream),
                    None => return false,
                }
            }
            true
        };
        let complete = tokio::time::timeout(PATIENCE, gathering).await;
        if complete != Ok(true) {
            connection.sender.go_away().await;
            return Err(StreamError::Incomplete);
        }
        let (session, driven) = Session::pair();
        let Driven { stdin, sizes, output } = driven;
        let ids = Ids {
            error: streams.error.as_ref().map(|stream| stream.id),
            stdout: streams.stdout.as_ref().map(|stream| stream.id),
            stderr: streams.stderr.as_ref().map(|stream| stream.id),
        };
        let input = forward_input(streams.stdin.map(|stream| stream.data), stdin);
        let resize = forward_sizes(streams.resize.map(|stream| stream.data), sizes);
        let output = forward_output(&connection.sender, ids, output);
        let inward = async { tokio::join!(input, resize) };
        let mut outward = std::pin::pin!(async { tokio::join!(output, run(session)) });
        tokio::select! {
            _ = &mut outward => {}
            // Input may end long before output does.
            _ = inward => drop(outward.await),
        }
        connection.sender.go_away().await;
        Ok(())
    };
    let (driven, worked) = tokio::join!(connection.driver, work);
    worked.and(driven)
}

#[derive(Clone, Copy)]
struct Ids {
    error: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
}

async fn forward_input(from: Option<mpsc::Receiver<Bytes>>, to: Option<mpsc::Sender<Bytes>>) {
    if let (Some(mut from), Some(to)) = (from, to) {
        while let Some(data) = from.recv().await {
            if !data.is_empty() && to.send(data).await.is_err() {
                return;
            }
        }
    }
}

async fn forward_sizes(from: Option<mpsc::Receiver<Bytes>>, to: mpsc::Sender<Size>) {
    if let Some(mut from) = from {
        while let Some(data) = from.recv().await {
            // Clients write one size after the other; several may come at once.
            for line in data.split(|byte| *byte == b'\n') {
                if let Some(size) = Size::parse(line) {
                    let _ = to.try_send(size);
                }
            }
        }
    }
}

async fn forward_output(sender: &Sender, ids: Ids, mut output: mpsc::Receiver<Output>) {
    while let Some(piece) = output.recv().await {
        let (id, data, last) = match piece {
            Output::Stdout(data) => (ids.stdout, data, false),
            Output::Stderr(data) => (ids.stderr, data, false),
            Output::Done(outcome) => (ids.error, outcome.status().to_string().into(), true),
        };
        if let Some(id) = id
            && !sender.data(id, data).await
        {
            return;
        }
        if last {
            break;
        }
    }
    for id in [ids.stdout, ids.stderr, ids.error].into_iter().flatten() {
        sender.finish(id).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[tokio::test]
    async fn a_command_over_spdy() {
        let (client_io, server_io) = tokio::io::duplex(1 << 16);
        let wanted = Wanted { stdin: true, stdout: true, ..Wanted::default() };
        let serving = tokio::spawn(serve(server_io, Protocol::Spdy, wanted, async |mut session: Session| {
            while let Some(data) = session.stdin.recv().await {
                session.output.send(Output::Stdout(data)).await.unwrap();
            }
            session.output.send(Output::Done(Outcome::Exit(7))).await.unwrap();
        }));
        let mut client = spdy::connect(client_io);
        let driver = tokio::spawn(client.driver);
        for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
            client.sender.open(id, &[("streamType", kind)]).await;
        }
        client.sender.data(3, "echo".into()).await;
        client.sender.finish(3).await;
        let (mut out, mut status) = (Vec::new(), Vec::new());
        while let Some((id, data)) = client.answers.recv().await {
            match id {
                5 => out.extend_from_slice(&data),
                1 if data.is_empty() => break,
                1 => status.extend_from_slice(&data),
                _ => {}
            }
        }
        assert_eq!(out, b"echo");
        assert!(String::from_utf8(status).unwrap().contains("ExitCode"));
        drop(client.sender);
        serving.await.unwrap().unwrap();
        driver.abort();
    }
}
