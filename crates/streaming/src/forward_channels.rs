//! Port-forward over WebSocket channels: two per requested port, one for data and one for errors. The server starts
//! each with the port number in little endian.

use std::io;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::forward::relay;
use crate::websocket::{Message, Reader, Writer};
use crate::{BACKLOG, StreamError};

/// Maximum number of ports per connection: channels are numbered by a byte.
pub const MOST_PORTS: usize = 127;

/// Serves the ports until the client disconnects or all connections have ended. `open` connects to a port.
#[expect(
    clippy::disallowed_methods,
    reason = "tasks end with their connection; this crate cannot use `base`"
)]
pub async fn serve<T, F, Fut, S>(io: T, base64: bool, ports: &[u16], open: F) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    F: Fn(u16) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (reader, writer) = tokio::io::split(io);
    let (mut reader, mut writer) = (Reader::new(reader), Writer::server(writer));
    let (output, mut outgoing) = mpsc::channel::<(u8, Bytes)>(BACKLOG);
    let (pings, mut pinged) = mpsc::channel::<Bytes>(4);
    let mut connections = tokio::task::JoinSet::new();
    let mut inputs = Vec::new();
    for (port, channel) in ports.iter().take(MOST_PORTS).zip((0u8..).step_by(2)) {
        let number = port.to_le_bytes();
        send(&mut writer, base64, channel, &number).await?;
        send(&mut writer, base64, channel + 1, &number).await?;
        let (input, data) = mpsc::channel(BACKLOG);
        inputs.push(input);
        connections.spawn(carry(*port, channel, data, output.clone(), open.clone()));
    }
    drop(output);
    let reading = async move {
        loop {
            match reader.next().await? {
                Message::Close(_) => return Ok(()),
                Message::Ping(payload) => drop(pings.send(payload).await),
                Message::Pong => {}
                Message::Data(data) => {
                    let Some((channel, data)) = take(data, base64)? else { continue };
                    // Error channels are write-only.
                    let input = inputs.get(usize::from(channel / 2)).filter(|_| channel % 2 == 0);
                    if let Some(input) = input {
                        drop(input.send(data).await);
                    }
                }
            }
        }
    };
    let writing = async move {
        loop {
            tokio::select! {
                Some(payload) = pinged.recv() => writer.pong(&payload).await?,
                piece = outgoing.recv() => match piece {
                    Some((channel, data)) => send(&mut writer, base64, channel, &data).await?,
                    None => return writer.close().await,
                },
            }
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// One connection, from the client's channel to the port and back.
async fn carry<F, Fut, S>(
    port: u16,
    channel: u8,
    data: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<(u8, Bytes)>,
    open: F,
) where
    F: Fn(u16) -> Fut,
    Fut: Future<Output = io::Result<S>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    match open(port).await {
        Ok(connection) => {
            relay(connection, data, |piece| async { output.send((channel, piece)).await.is_ok() }).await;
        }
        Err(error) => {
            let message = format!("error forwarding port {port}: {error}");
            drop(output.send((channel + 1, message.into())).await);
        }
    }
}

/// Splits a message into channel and data.
fn take(mut data: Bytes, base64: bool) -> Result<Option<(u8, Bytes)>, StreamError> {
    if data.is_empty() {
        return Ok(None);
    }
    let channel = data.split_to(1)[0];
    if !base64 {
        return Ok(Some((channel, data)));
    }
    let decoded = BASE64_STANDARD.decode(&data);
    let decoded = decoded.map_err(|_| StreamError::Protocol("message is not base64"))?;
    Ok(Some((channel.wrapping_sub(b'0'), decoded.into())))
}

async fn send<W: AsyncWrite + Unpin>(
    writer: &mut Writer<W>,
    base64: bool,
    channel: u8,
    data: &[u8],
) -> Result<(), StreamError> {
    if base64 {
        let mut text = char::from(b'0'.wrapping_add(channel)).to_string();
        BASE64_STANDARD.encode_string(data, &mut text);
        return writer.text(&text).await;
    }
    writer.data(&[&[channel], data]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Server that replies to four bytes with its port number in front; port 1 is closed.
    async fn echo(port: u16) -> io::Result<tokio::io::DuplexStream> {
        if port == 1 {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let (near, mut far) = tokio::io::duplex(1 << 12);
        tokio::spawn(async move {
            let mut data = [0; 4];
            far.read_exact(&mut data).await.unwrap();
            far.write_all(format!("{port}:").as_bytes()).await.unwrap();
            far.write_all(&data).await.unwrap();
        });
        Ok(near)
    }

    async fn messages<R: AsyncRead + Unpin>(reader: &mut Reader<R>) -> Vec<Bytes> {
        let mut seen = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                Message::Data(data) => seen.push(data),
                Message::Close(_) => return seen,
                _ => {}
            }
        }
    }

    #[tokio::test]
    async fn port_forward_uses_two_channels_per_port() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(serve(server, false, &[80, 1], echo));
        let (reader, writer) = tokio::io::split(client);
        let (mut reader, mut writer) = (Reader::new(reader), Writer::client(writer));
        // Unknown and write-only channels are ignored.
        for message in [&b"\x09gone"[..], b"\x01none", b"", b"\x00ping"] {
            writer.data(&[message]).await.unwrap();
        }
        let seen = messages(&mut reader).await;
        let begin: [&[u8]; 4] = [b"\x00\x50\x00", b"\x01\x50\x00", b"\x02\x01\x00", b"\x03\x01\x00"];
        assert_eq!(seen[..4], begin);
        let of = |channel: u8| -> Vec<u8> {
            let pieces = seen[4..].iter().filter(|piece| piece[0] == channel);
            pieces.flat_map(|piece| piece[1..].to_vec()).collect()
        };
        assert_eq!(of(0), b"80:ping");
        assert!(of(3).starts_with(b"error forwarding port 1: "));
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn port_forward_base64_messages_decode() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(serve(server, true, &[80], echo));
        let (reader, writer) = tokio::io::split(client);
        let (mut reader, mut writer) = (Reader::new(reader), Writer::client(writer));
        writer.text("0cGluZw==").await.unwrap();
        let seen = messages(&mut reader).await;
        assert_eq!(seen[..2], ["0UAA=", "1UAA="]);
        let data: Vec<u8> =
            seen[2..].iter().flat_map(|piece| BASE64_STANDARD.decode(&piece[1..]).unwrap()).collect();
        assert_eq!(data, b"80:ping");
        serving.await.unwrap().unwrap();
    }
}
