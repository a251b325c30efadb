//! Exec and attach, independent of the protocol.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::spdy::{self, Incoming, Sender};
use crate::upgrade::Protocol;
use crate::{DriverEnd, Output, RequestedStreams, Session, Size, StreamError, channels};

/// Timeout for a client to open its streams.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves a command on an upgraded connection: `run` gets the session, and the connection is held until its end. `run`
/// is dropped when the client closes the connection.
pub async fn serve<T, F, Fut>(
    io: T,
    protocol: Protocol,
    wanted: RequestedStreams,
    run: F,
) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: FnOnce(Session) -> Fut,
    Fut: Future<Output = ()>,
{
    match protocol {
        Protocol::Channels(dialect) => {
            let (session, driver) = channels::serve(io, dialect);
            let mut driver = std::pin::pin!(driver);
            tokio::select! {
                driven = &mut driver => driven,
                () = run(session) => driver.await,
            }
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
    fn complete(&self, wanted: RequestedStreams) -> bool {
        self.error.is_some()
            && (self.stdin.is_some() || !wanted.stdin)
            && (self.stdout.is_some() || !wanted.stdout)
            && (self.stderr.is_some() || !wanted.stderr || wanted.terminal)
            && (self.resize.is_some() || !wanted.terminal)
    }

    fn add(&mut self, stream: Incoming) {
        let slot = match stream.header("streamtype") {
            Some("error") => &mut self.error,
            Some("stdin") => &mut self.stdin,
            Some("stdout") => &mut self.stdout,
            Some("stderr") => &mut self.stderr,
            Some("resize") => &mut self.resize,
            _ => return,
        };
        *slot = Some(stream);
    }
}

async fn over_spdy<T, F, Fut>(io: T, wanted: RequestedStreams, run: F) -> Result<(), StreamError>
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
        let complete = tokio::time::timeout(OPEN_TIMEOUT, gathering).await;
        if complete != Ok(true) {
            connection.sender.go_away().await;
            return Err(StreamError::Incomplete);
        }
        let (session, driven) = Session::pair();
        let DriverEnd { stdin, sizes, output } = driven;
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
            // Input may end long before output.
            _ = inward => drop(outward.await),
        }
        connection.sender.go_away().await;
        Ok(())
    };
    let mut driver = std::pin::pin!(connection.driver);
    tokio::select! {
        driven = &mut driver => driven,
        worked = work => worked.and(driver.await),
    }
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
            // Clients write consecutive JSON objects; several may arrive together.
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
    use crate::CommandOutcome;
    use crate::upgrade::Dialect;
    use crate::websocket::{Message, Reader, Writer, close};

    /// Serves a command that prints and does not end; the receiver gets an error once the command is dropped.
    fn serve_endless_command<T>(
        io: T,
        protocol: Protocol,
    ) -> (tokio::sync::oneshot::Receiver<()>, tokio::task::JoinHandle<Result<(), StreamError>>)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (running, dropped) = tokio::sync::oneshot::channel::<()>();
        let wanted = RequestedStreams { stdin: true, stdout: true, ..RequestedStreams::default() };
        let serving = tokio::spawn(serve(io, protocol, wanted, async move |session: Session| {
            let _held = running;
            for _ in 0..100 {
                let _ = session.output.send(Output::Stdout("yes\n".into())).await;
            }
            std::future::pending::<()>().await;
        }));
        (dropped, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn websocket_close_ends_the_command_and_is_answered() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (dropped, serving) = serve_endless_command(server, Protocol::Channels(Dialect::default()));
        let (reader, writer) = tokio::io::split(client);
        Writer::client(writer).close().await.unwrap();
        let mut reader = Reader::new(reader);
        let code = loop {
            if let Message::Close(code) = reader.next().await.unwrap() {
                break code;
            }
        };
        assert_eq!(code, close::NORMAL);
        assert!(dropped.await.is_err());
        serving.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn websocket_close_of_client_that_does_not_read_ends_the_command() {
        let (client, server) = tokio::io::duplex(64);
        let (dropped, serving) = serve_endless_command(server, Protocol::Channels(Dialect::default()));
        let (_unread, writer) = tokio::io::split(client);
        let _ = Writer::client(writer).close().await;
        assert!(dropped.await.is_err());
        let _ = serving.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connection_loss_ends_the_command() {
        for protocol in [Protocol::Channels(Dialect::default()), Protocol::Spdy] {
            let (client, server) = tokio::io::duplex(1 << 16);
            let (mut dropped, serving) = serve_endless_command(server, protocol);
            if let Protocol::Spdy = protocol {
                let client = spdy::connect(client);
                let driver = tokio::spawn(client.driver);
                for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
                    client.sender.open(id, &[("streamType", kind)]).await;
                }
                let waited = tokio::time::timeout(Duration::from_secs(5), &mut dropped).await;
                assert!(waited.is_err(), "the command runs");
                driver.abort();
                drop(client.sender);
            } else {
                drop(client);
            }
            assert!(dropped.await.is_err());
            let _ = serving.await.unwrap();
        }
    }

    #[tokio::test]
    async fn exec_over_spdy() {
        let (client_io, server_io) = tokio::io::duplex(1 << 16);
        let wanted = RequestedStreams { stdin: true, stdout: true, ..RequestedStreams::default() };
        let serving = tokio::spawn(serve(server_io, Protocol::Spdy, wanted, async |mut session: Session| {
            while let Some(data) = session.stdin.recv().await {
                session.output.send(Output::Stdout(data)).await.unwrap();
            }
            session.output.send(Output::Done(CommandOutcome::Exit(7))).await.unwrap();
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
