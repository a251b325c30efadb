//! Port-forward over SPDY: pairs of streams, one for data and one for errors, per connection to a port.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::mpsc;

use crate::spdy::{self, Incoming, Sender};
use crate::upgrade::Protocol;
use crate::websocket::{Message, Reader, Writer};
use crate::{BACKLOG, StreamError};

/// Maximum number of incomplete stream pairs.
const MAX_INCOMPLETE_PAIRS: usize = 256;

/// Serves port-forwarding on an upgraded connection until the client disconnects. `open` connects to a port.
pub async fn serve<T, F, Fut, S>(io: T, protocol: Protocol, open: F) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match protocol {
        Protocol::TunnelledSpdy => {
            let (tunnel, driver) = tunnel(io);
            let mut driver = std::pin::pin!(driver);
            let mut serving = std::pin::pin!(pairs(tunnel, open));
            tokio::select! {
                ended = &mut serving => ended,
                ended = &mut driver => ended,
            }
        }
        _ => pairs(io, open).await,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tasks end with their connection; this crate cannot use `base`"
)]
async fn pairs<T, F, Fut, S>(io: T, open: F) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connection = spdy::connect(io);
    let mut driver = std::pin::pin!(connection.driver);
    let mut incomplete: HashMap<String, Incoming> = HashMap::new();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            ended = &mut driver => return ended,
            Some(_) = connections.join_next() => {}
            stream = connection.incoming.recv() => {
                let Some(stream) = stream else { return Ok(()) };
                let request = stream.header("requestid").unwrap_or_default().to_owned();
                let Some(other) = incomplete.remove(&request) else {
                    if incomplete.len() >= MAX_INCOMPLETE_PAIRS {
                        return Err(StreamError::Protocol("too many incomplete stream pairs"));
                    }
                    incomplete.insert(request, stream);
                    continue;
                };
                let (data, error) =
                    if stream.header("streamtype") == Some("data") { (stream, other) } else { (other, stream) };
                connections.spawn(carry(connection.sender.clone(), data, error.id, open.clone()));
            }
        }
    }
}

/// One connection, from the client's streams to the port and back.
async fn carry<F, Fut, S>(sender: Sender, stream: Incoming, error: u32, open: F)
where
    F: Fn(u16) -> Fut,
    Fut: Future<Output = io::Result<S>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let port = stream.header("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
    let opened = match port {
        Some(port) => open(port).await.map_err(|error| format!("failed to connect to port {port}: {error}")),
        None => Err("missing port header".to_owned()),
    };
    match opened {
        Err(message) => drop(sender.data(error, message.into()).await),
        Ok(connection) => {
            relay(connection, stream.data, |piece| sender.data(stream.id, piece)).await;
        }
    }
    sender.finish(stream.id).await;
    sender.finish(error).await;
}

/// Copies bytes between a client and a connection until the connection ends.
pub(crate) async fn relay<S, F, Fut>(connection: S, mut data: mpsc::Receiver<Bytes>, send: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Bytes) -> Fut,
    Fut: Future<Output = bool>,
{
    let (mut reader, mut writer) = tokio::io::split(connection);
    let out = async {
        while let Some(piece) = data.recv().await {
            if writer.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    };
    let back = async {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(count) = reader.read(&mut buffer).await {
            if count == 0 || !send(Bytes::copy_from_slice(&buffer[..count])).await {
                return;
            }
        }
    };
    let mut back = std::pin::pin!(back);
    tokio::select! {
        () = &mut back => {}
        // The client may have finished sending and still expect the response.
        () = out => back.await,
    }
}

/// Byte stream carried in WebSocket messages.
struct Tunnel {
    incoming: mpsc::Receiver<Bytes>,
    rest: Bytes,
    outgoing: tokio::io::WriteHalf<tokio::io::SimplexStream>,
}

fn tunnel<T>(io: T) -> (Tunnel, impl Future<Output = Result<(), StreamError>> + Send)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (sender, incoming) = mpsc::channel(BACKLOG);
    let (mut out, outgoing) = tokio::io::simplex(64 << 10);
    let driver = async move {
        let (reader, writer) = tokio::io::split(io);
        let (mut reader, mut writer) = (Reader::new(reader), Writer::server(writer));
        let (pings, mut pinged) = mpsc::channel::<Bytes>(4);
        let reading = async move {
            loop {
                match reader.next().await? {
                    Message::Data(data) => drop(sender.send(data).await),
                    Message::Ping(payload) => drop(pings.send(payload).await),
                    Message::Pong => {}
                    Message::Close(_) => return Ok(()),
                }
            }
        };
        let writing = async move {
            let mut buffer = vec![0; 32 << 10];
            loop {
                tokio::select! {
                    Some(payload) = pinged.recv() => writer.pong(&payload).await?,
                    count = out.read(&mut buffer) => match count? {
                        0 => return writer.close().await,
                        count => writer.data(&[&buffer[..count]]).await?,
                    },
                }
            }
        };
        tokio::select! {
            ended = reading => ended,
            ended = writing => ended,
        }
    };
    (Tunnel { incoming, rest: Bytes::new(), outgoing }, driver)
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match self.incoming.poll_recv(context) {
                Poll::Ready(Some(data)) => self.rest = data,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.outgoing).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.outgoing).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Echo server that prefixes its port number.
    async fn echo(port: u16) -> io::Result<tokio::io::DuplexStream> {
        if port == 1 {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let (near, mut far) = tokio::io::duplex(1 << 12);
        tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            far.write_all(format!("{port}:").as_bytes()).await.unwrap();
            far.write_all(&all).await.unwrap();
        });
        Ok(near)
    }

    async fn talk<T: AsyncRead + AsyncWrite + Send + 'static>(io: T) {
        let mut client = spdy::connect(io);
        let driver = tokio::spawn(client.driver);
        for (error, data, port) in [(1, 3, "80"), (5, 7, "1")] {
            let id = error.to_string();
            client.sender.open(error, &[("streamType", "error"), ("port", port), ("requestID", &id)]).await;
            client.sender.open(data, &[("streamType", "data"), ("port", port), ("requestID", &id)]).await;
            client.sender.data(data, "ping".into()).await;
            client.sender.finish(data).await;
        }
        let mut seen: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut ended = 0;
        while ended < 4 {
            let (id, data) = client.answers.recv().await.expect("answers");
            ended += usize::from(data.is_empty());
            seen.entry(id).or_default().extend_from_slice(&data);
        }
        assert_eq!(seen[&3], b"80:ping");
        assert!(String::from_utf8_lossy(&seen[&5]).contains("failed to connect to port 1"));
        driver.abort();
    }

    #[tokio::test]
    async fn port_forward_over_spdy() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(serve(server, Protocol::Spdy, echo));
        talk(client).await;
        serving.abort();
    }

    #[tokio::test]
    async fn port_forward_over_spdy_in_websocket() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(serve(server, Protocol::TunnelledSpdy, echo));
        // Both ends use the same code except for the mask, which readers accept either way.
        let (near, driver) = tunnel(client);
        let driving = tokio::spawn(driver);
        talk(near).await;
        serving.abort();
        driving.abort();
    }
}
