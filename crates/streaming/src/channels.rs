//! Exec and attach over a WebSocket: the first byte of a message names its stream.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::websocket::{Message, Reader, Writer};
use crate::{Driven, Output, Session, Size, StreamError};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// In version 5: the stream named by the next byte ends.
const CLOSE: u8 = 255;

/// Makes a session of an upgraded connection. The future moves the data and must be run along.
pub fn serve<T>(io: T, close_signal: bool) -> (Session, impl Future<Output = Result<(), StreamError>> + Send)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (session, driven) = Session::pair();
    (session, drive(io, close_signal, driven))
}

async fn drive<T>(io: T, close_signal: bool, driven: Driven) -> Result<(), StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(io);
    let (pings, pinged) = mpsc::channel(4);
    let Driven { stdin, sizes, output } = driven;
    let reading = read(Reader::new(reader), close_signal, stdin, sizes, pings);
    let writing = write(Writer::server(writer), output, pinged);
    let (mut reading, mut writing) = (std::pin::pin!(reading), std::pin::pin!(writing));
    let mut gone = false;
    loop {
        tokio::select! {
            ended = &mut writing => return ended,
            // A client that left is noticed by writing to it, or by the command's end of input.
            ended = &mut reading, if !gone => {
                ended?;
                gone = true;
            }
        }
    }
}

async fn read<R: AsyncRead + Unpin>(
    mut reader: Reader<R>,
    close_signal: bool,
    mut stdin: Option<mpsc::Sender<Bytes>>,
    sizes: mpsc::Sender<Size>,
    pings: mpsc::Sender<Bytes>,
) -> Result<(), StreamError> {
    loop {
        match reader.next().await? {
            Message::Close => return Ok(()),
            Message::Ping(payload) => drop(pings.send(payload).await),
            Message::Pong => {}
            Message::Data(mut data) if !data.is_empty() => {
                let channel = data.split_to(1)[0];
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
                    CLOSE if close_signal && data.first() == Some(&STDIN) => stdin = None,
                    _ => {}
                }
            }
            Message::Data(_) => {}
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut writer: Writer<W>,
    mut output: mpsc::Receiver<Output>,
    mut pings: mpsc::Receiver<Bytes>,
) -> Result<(), StreamError> {
    loop {
        tokio::select! {
            Some(payload) = pings.recv() => writer.pong(&payload).await?,
            output = output.recv() => match output {
                Some(Output::Stdout(data)) => writer.data(&[&[STDOUT], &data]).await?,
                Some(Output::Stderr(data)) => writer.data(&[&[STDERR], &data]).await?,
                Some(Output::Done(outcome)) => {
                    writer.data(&[&[ERROR], outcome.status().to_string().as_bytes()]).await?;
                    return writer.close().await;
                }
                None => return writer.close().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[tokio::test]
    async fn a_session() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (mut session, driver) = serve(server, true);
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
        session.output.send(Output::Done(Outcome::Exit(2))).await.unwrap();
        let mut seen = Vec::new();
        loop {
            match reader.next().await.unwrap() {
                Message::Data(data) => seen.push(data),
                Message::Close => break,
                _ => {}
            }
        }
        assert_eq!((&seen[0][..], &seen[1][..]), (&b"\x01out"[..], &b"\x02err"[..]));
        assert!(seen[2].starts_with(b"\x03{") && seen.len() == 3);
        driving.await.unwrap().unwrap();
    }
}
