//! Exec and attach over a WebSocket: the first byte of a message names its channel; in text, the first digit.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::upgrade::Dialect;
use crate::websocket::{Message, Reader, Writer};
use crate::{CommandOutcome, DriverEnd, Output, Session, Size, StreamError};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Close signal of version 5: the channel named by the next byte ends.
const CLOSE: u8 = 255;
/// Timeout for the answer to a client's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Creates a session from an upgraded connection. The returned future moves the data and must be polled; it ends when
/// the session sent its result, or when the client closes the connection.
pub fn serve<T>(io: T, dialect: Dialect) -> (Session, impl Future<Output = Result<(), StreamError>> + Send)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (session, driven) = Session::pair();
    (session, drive(io, dialect, driven))
}

async fn drive<T>(io: T, dialect: Dialect, driven: DriverEnd) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(io);
    let (pings, pinged) = mpsc::channel(4);
    let DriverEnd { stdin, sizes, output } = driven;
    let reading = read(Reader::new(reader), dialect, stdin, sizes, pings);
    let writing = write(Writer::server(writer), dialect, output, pinged);
    let mut writing = std::pin::pin!(writing);
    tokio::select! {
        ended = &mut writing => ended,
        ended = reading => {
            ended?;
            // The client sent a close frame; the writer answers it, unless the client does not read any more.
            tokio::time::timeout(CLOSE_TIMEOUT, writing).await.unwrap_or(Ok(()))
        }
    }
}

async fn read<R: AsyncRead + Unpin>(
    mut reader: Reader<R>,
    dialect: Dialect,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    sizes: mpsc::Sender<Size>,
    pings: mpsc::Sender<Bytes>,
) -> Result<(), StreamError> {
    loop {
        match reader.next().await? {
            Message::Close(_) => return Ok(()),
            Message::Ping(payload) => drop(pings.send(payload).await),
            Message::Pong => {}
            Message::Data(mut data) if !data.is_empty() => {
                let mut channel = data.split_to(1)[0];
                if dialect.base64 {
                    channel = channel.wrapping_sub(b'0');
                    let decoded = BASE64_STANDARD.decode(&data);
                    data = decoded.map_err(|_| StreamError::Protocol("message is not base64"))?.into();
                }
                match channel {
                    STDIN => {
                        if let Some(stdin) = stdin.as_ref().filter(|_| !data.is_empty()) {
                            let _ = stdin.send(data).await;
                        }
                    }
                    RESIZE => {
                        if let Some(size) = Size::parse(&data) {
                            let _ = sizes.try_send(size);
                        }
                    }
                    CLOSE if dialect.close_signal && data.first() == Some(&STDIN) => stdin = None,
                    _ => {}
                }
            }
            Message::Data(_) => {}
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut writer: Writer<W>,
    dialect: Dialect,
    mut output: mpsc::Receiver<Output>,
    mut pings: mpsc::Receiver<Bytes>,
) -> Result<(), StreamError> {
    loop {
        tokio::select! {
            ping = pings.recv() => match ping {
                Some(payload) => writer.pong(&payload).await?,
                // The reader ended with a close frame.
                None => return writer.close().await,
            },
            output = output.recv() => match output {
                Some(Output::Stdout(data)) => send(&mut writer, dialect, STDOUT, &data).await?,
                Some(Output::Stderr(data)) => send(&mut writer, dialect, STDERR, &data).await?,
                Some(Output::Done(outcome)) => {
                    if let Some(end) = result_message(&outcome, dialect) {
                        send(&mut writer, dialect, ERROR, end.as_bytes()).await?;
                    }
                    return writer.close().await;
                }
                None => return writer.close().await,
            },
        }
    }
}

/// Sends the result of the command to the client.
fn result_message(outcome: &CommandOutcome, dialect: Dialect) -> Option<String> {
    let status = outcome.status();
    match (dialect.status, status["message"].as_str()) {
        (true, _) => Some(status.to_string()),
        (false, message) => message.map(str::to_owned),
    }
}

async fn send<W: AsyncWrite + Unpin>(
    writer: &mut Writer<W>,
    dialect: Dialect,
    channel: u8,
    data: &[u8],
) -> Result<(), StreamError> {
    if dialect.base64 {
        return writer.text(&format!("{channel}{}", BASE64_STANDARD.encode(data))).await;
    }
    writer.data(&[&[channel], data]).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::close;

    #[tokio::test]
    async fn session_v5_moves_data_and_status() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let newest = Dialect { close_signal: true, status: true, base64: false };
        let (mut session, driver) = serve(server, newest);
        let driving = tokio::spawn(driver);
        let (reader, writer) = tokio::io::split(client);
        let (mut reader, mut writer) = (Reader::new(reader), Writer::client(writer));
        writer.data(&[b"\x00hello"]).await.unwrap();
        writer.data(&[b"\x04{\"Width\":100,\"Height\":50}"]).await.unwrap();
        writer.data(&[b"\xff\x00"]).await.unwrap();
        assert_eq!(session.stdin.recv().await, Some(Bytes::from_static(b"hello")));
        assert_eq!(session.sizes.recv().await, Some(Size { columns: 100, rows: 50 }));
        assert_eq!(session.stdin.recv().await, None, "closed");
        session.output.send(Output::Stdout("out".into())).await.unwrap();
        session.output.send(Output::Stderr("err".into())).await.unwrap();
        session.output.send(Output::Done(CommandOutcome::Exit(2))).await.unwrap();
        let mut seen = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                Message::Data(data) => seen.push(data),
                Message::Close(_) => break,
                _ => {}
            }
        }
        assert_eq!((&seen[0][..], &seen[1][..]), (&b"\x01out"[..], &b"\x02err"[..]));
        assert!(seen[2].starts_with(b"\x03{") && seen.len() == 3);
        driving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn session_base64_v1_moves_data() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (mut session, driver) = serve(server, Dialect { base64: true, ..Dialect::default() });
        let driving = tokio::spawn(driver);
        let (reader, writer) = tokio::io::split(client);
        let (mut reader, mut writer) = (Reader::new(reader), Writer::client(writer));
        writer.text("0aGVsbG8=").await.unwrap();
        assert_eq!(session.stdin.recv().await, Some(Bytes::from_static(b"hello")));
        session.output.send(Output::Stdout("out".into())).await.unwrap();
        session.output.send(Output::Done(CommandOutcome::Exit(0))).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Message::Data(Bytes::from_static(b"1b3V0")));
        assert_eq!(reader.next().await.unwrap(), Message::Close(close::NORMAL), "success sends no message");
        driving.await.unwrap().unwrap();
    }
}
