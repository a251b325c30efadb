//! The subset of SPDY/3.1 used by exec, attach and port-forward: streams opened by either side, data, end of stream.
//! As in Kubernetes there is no flow control.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::{BACKLOG, StreamError};

/// Initial compression dictionary of both sides.
const DICTIONARY: &[u8] = include_bytes!("spdy_dictionary.bin");

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FIN: u8 = 1;

/// Limits for input from a peer.
const MAX_CONTROL: usize = 64 << 10;
const MAX_HEADERS: usize = 256 << 10;
const MAX_STREAMS: usize = 1024;
/// Maximum payload of a data frame.
const MAX_DATA: usize = 64 << 10;

/// A stream opened by the peer.
#[derive(Debug)]
pub struct Incoming {
    pub id: u32,
    pub headers: Vec<(String, String)>,
    /// Ends with the peer's end of stream.
    pub data: mpsc::Receiver<Bytes>,
}

impl Incoming {
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

enum Command {
    Open { id: u32, headers: Vec<(String, String)> },
    Reply(u32),
    Data { id: u32, data: Bytes, last: bool },
    Reset(u32),
    Ping(u32),
    GoAway,
}

/// Sender of a connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Sender {
    commands: mpsc::Sender<Command>,
}

impl Sender {
    /// Sends data on a stream; false once the connection is closed.
    pub async fn data(&self, id: u32, data: Bytes) -> bool {
        self.commands.send(Command::Data { id, data, last: false }).await.is_ok()
    }

    /// Ends this side of a stream.
    pub async fn finish(&self, id: u32) -> bool {
        self.commands.send(Command::Data { id, data: Bytes::new(), last: true }).await.is_ok()
    }

    /// Ends both sides of a stream.
    pub async fn reset(&self, id: u32) -> bool {
        self.commands.send(Command::Reset(id)).await.is_ok()
    }

    /// Opens a stream; IDs of clients are odd, of servers even, and increase.
    pub async fn open(&self, id: u32, headers: &[(&str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.commands.send(Command::Open { id, headers }).await.is_ok()
    }

    /// Sends GOAWAY, then closes the connection after flushing.
    pub async fn go_away(&self) {
        let _ = self.commands.send(Command::GoAway).await;
    }
}

/// Data of streams opened by this side, by ID; an empty piece marks the end of each.
pub type Answers = mpsc::Receiver<(u32, Bytes)>;

/// Parts of a connection.
pub struct Connection<F> {
    pub sender: Sender,
    pub incoming: mpsc::Receiver<Incoming>,
    pub answers: Answers,
    /// Moves the data; must be polled.
    pub driver: F,
}

/// Starts SPDY on a connection.
pub fn connect<T>(io: T) -> Connection<impl Future<Output = Result<(), StreamError>> + Send>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (commands, received) = mpsc::channel(BACKLOG);
    let (opened, incoming) = mpsc::channel(BACKLOG);
    let (answered, answers) = mpsc::channel(BACKLOG);
    let sender = Sender { commands: commands.clone() };
    let driver = async move {
        let (reader, writer) = tokio::io::split(io);
        let reading = read(reader, commands, opened, answered);
        let writing = write(writer, received);
        // Neither side of SPDY half-closes its connection: EOF means that the peer is gone.
        tokio::select! {
            ended = writing => ended,
            ended = reading => ended,
        }
    };
    Connection { sender, incoming, answers, driver }
}

async fn read<R: AsyncRead + Unpin>(
    mut reader: R,
    commands: mpsc::Sender<Command>,
    opened: mpsc::Sender<Incoming>,
    answered: mpsc::Sender<(u32, Bytes)>,
) -> Result<(), StreamError> {
    let mut headers = HeaderReader::new();
    let mut streams: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    loop {
        let mut head = [0; 8];
        match reader.read_exact(&mut head).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        let first_word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let flags = head[4];
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        if first_word >> 31 == 0 {
            let id = first_word & 0x7fff_ffff;
            data(&mut reader, id, length, flags, &mut streams, &answered).await?;
            continue;
        }
        if length > MAX_CONTROL {
            return Err(StreamError::Protocol("control frame too long"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await?;
        let first = body.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff);
        match u16::try_from(first_word & 0xffff).unwrap_or(0) {
            SYN_STREAM => {
                let block = body.get(10..).ok_or(StreamError::Protocol("truncated frame"))?;
                let pairs = headers.read(block)?;
                if streams.len() >= MAX_STREAMS {
                    return Err(StreamError::Protocol("too many streams"));
                }
                let (sender, receiver) = mpsc::channel(BACKLOG);
                if flags & FIN == 0 {
                    streams.insert(first, sender);
                }
                if commands.send(Command::Reply(first)).await.is_err()
                    || opened.send(Incoming { id: first, headers: pairs, data: receiver }).await.is_err()
                {
                    return Ok(());
                }
            }
            SYN_REPLY | HEADERS => {
                // Decompressed in any case, since the compression state covers all header blocks.
                headers.read(body.get(4..).ok_or(StreamError::Protocol("truncated frame"))?)?;
            }
            RST_STREAM => {
                streams.remove(&first);
                let _ = answered.try_send((first, Bytes::new()));
            }
            PING => {
                let id = body.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                let _ = commands.send(Command::Ping(id)).await;
            }
            GOAWAY => {}
            _ => {}
        }
    }
}

async fn data<R: AsyncRead + Unpin>(
    reader: &mut R,
    id: u32,
    mut length: usize,
    flags: u8,
    streams: &mut HashMap<u32, mpsc::Sender<Bytes>>,
    answered: &mpsc::Sender<(u32, Bytes)>,
) -> Result<(), StreamError> {
    while length > 0 {
        let mut piece = vec![0; length.min(MAX_DATA)];
        reader.read_exact(&mut piece).await?;
        length -= piece.len();
        match streams.get(&id) {
            // The receiver may be dropped; the rest of the connection continues.
            Some(stream) => drop(stream.send(piece.into()).await),
            None => drop(answered.try_send((id, piece.into()))),
        }
    }
    if flags & FIN != 0 && streams.remove(&id).is_none() {
        let _ = answered.try_send((id, Bytes::new()));
    }
    Ok(())
}

fn control(kind: u16, flags: u8, body: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(body.len() + 8);
    frame.extend_from_slice(&0x8003_u16.to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&[flags]);
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_be_bytes()[1..]);
    frame.extend_from_slice(body);
    frame
}

async fn write<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut commands: mpsc::Receiver<Command>,
) -> Result<(), StreamError> {
    let mut headers = HeaderWriter::new()?;
    while let Some(command) = commands.recv().await {
        let frame = match command {
            Command::Open { id, headers: pairs } => {
                let mut body = id.to_be_bytes().to_vec();
                body.extend_from_slice(&[0; 6]);
                body.extend(headers.write(&pairs)?);
                control(SYN_STREAM, 0, &body)
            }
            Command::Reply(id) => {
                let mut body = id.to_be_bytes().to_vec();
                body.extend(headers.write(&[])?);
                control(SYN_REPLY, 0, &body)
            }
            Command::Reset(id) => {
                const CANCEL: u32 = 5;
                control(RST_STREAM, 0, &[id.to_be_bytes(), CANCEL.to_be_bytes()].concat())
            }
            Command::Ping(id) => control(PING, 0, &id.to_be_bytes()),
            Command::GoAway => {
                writer.write_all(&control(GOAWAY, 0, &[0; 8])).await?;
                writer.flush().await?;
                return Ok(writer.shutdown().await?);
            }
            Command::Data { id, data, last } => {
                let mut frames = BytesMut::with_capacity(data.len() + 8);
                let mut rest = data;
                loop {
                    let piece = rest.split_to(rest.len().min(MAX_DATA));
                    frames.extend_from_slice(&(id & 0x7fff_ffff).to_be_bytes());
                    frames.extend_from_slice(&[if last && rest.is_empty() { FIN } else { 0 }]);
                    frames.extend_from_slice(&u32::try_from(piece.len()).unwrap_or(0).to_be_bytes()[1..]);
                    frames.extend_from_slice(&piece);
                    if rest.is_empty() {
                        break;
                    }
                }
                frames
            }
        };
        writer.write_all(&frame).await?;
        writer.flush().await?;
    }
    Ok(writer.shutdown().await?)
}

/// Header blocks share one compression state per direction.
struct HeaderReader {
    inflate: Decompress,
}

impl HeaderReader {
    fn new() -> Self {
        Self { inflate: Decompress::new(true) }
    }

    fn read(&mut self, mut block: &[u8]) -> Result<Vec<(String, String)>, StreamError> {
        const BROKEN: StreamError = StreamError::Protocol("failed to decompress headers");
        let mut plain = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let (taken, made) = (self.inflate.total_in(), self.inflate.total_out());
            let status = match self.inflate.decompress(block, &mut buffer, FlushDecompress::Sync) {
                Ok(status) => status,
                Err(error) if error.needs_dictionary().is_some() => {
                    let taken = usize::try_from(self.inflate.total_in() - taken).unwrap_or(0);
                    block = block.get(taken..).unwrap_or_default();
                    self.inflate.set_dictionary(DICTIONARY).map_err(|_| BROKEN)?;
                    continue;
                }
                Err(_) => return Err(BROKEN),
            };
            let taken = usize::try_from(self.inflate.total_in() - taken).unwrap_or(0);
            let made = usize::try_from(self.inflate.total_out() - made).unwrap_or(0);
            block = block.get(taken..).unwrap_or_default();
            plain.extend_from_slice(buffer.get(..made).unwrap_or_default());
            if plain.len() > MAX_HEADERS {
                return Err(StreamError::Protocol("headers too long"));
            }
            if (block.is_empty() && made < buffer.len())
                || status == Status::StreamEnd
                || (taken == 0 && made == 0)
            {
                break;
            }
        }
        parse(&plain).ok_or(StreamError::Protocol("malformed headers"))
    }
}

fn parse(mut plain: &[u8]) -> Option<Vec<(String, String)>> {
    let number = |plain: &mut &[u8]| {
        let (head, rest) = plain.split_first_chunk::<4>()?;
        *plain = rest;
        Some(u32::from_be_bytes(*head) as usize)
    };
    let count = number(&mut plain)?;
    let mut pairs = Vec::new();
    for _ in 0..count.min(1000) {
        let mut text = || {
            let length = number(&mut plain)?;
            let (head, rest) = plain.split_at_checked(length)?;
            plain = rest;
            Some(String::from_utf8_lossy(head).into_owned())
        };
        pairs.push((text()?, text()?));
    }
    Some(pairs)
}

struct HeaderWriter {
    deflate: Compress,
}

impl HeaderWriter {
    fn new() -> Result<Self, StreamError> {
        let mut deflate = Compress::new(Compression::default(), true);
        deflate
            .set_dictionary(DICTIONARY)
            .map_err(|_| StreamError::Protocol("failed to set compression dictionary"))?;
        Ok(Self { deflate })
    }

    fn write(&mut self, pairs: &[(String, String)]) -> Result<Vec<u8>, StreamError> {
        let length = |text: &str| u32::try_from(text.len()).unwrap_or(0).to_be_bytes();
        let mut plain = u32::try_from(pairs.len()).unwrap_or(0).to_be_bytes().to_vec();
        for (name, value) in pairs {
            for text in [&name.to_ascii_lowercase(), value] {
                plain.extend_from_slice(&length(text));
                plain.extend_from_slice(text.as_bytes());
            }
        }
        // Headers are short; flushed output slightly exceeds their size.
        let mut out = Vec::with_capacity(plain.len() * 2 + 256);
        self.deflate
            .compress_vec(&plain, &mut out, FlushCompress::Sync)
            .map_err(|_| StreamError::Protocol("failed to compress headers"))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_blocks_share_compression_state() {
        let (mut writer, mut reader) = (HeaderWriter::new().unwrap(), HeaderReader::new());
        for round in 0..3 {
            let pairs =
                vec![("streamtype".to_owned(), "stdin".to_owned()), ("port".to_owned(), round.to_string())];
            let block = writer.write(&pairs).unwrap();
            assert_eq!(reader.read(&block).unwrap(), pairs);
        }
        assert!(HeaderReader::new().read(b"nonsense").is_err());
    }

    #[tokio::test]
    async fn streams_open_from_both_sides() {
        let (client_io, server_io) = tokio::io::duplex(1 << 16);
        let (mut client, mut server) = (connect(client_io), connect(server_io));
        let (client_driver, server_driver) = (tokio::spawn(client.driver), tokio::spawn(server.driver));
        assert!(client.sender.open(1, &[("streamType", "stdin")]).await);
        assert!(client.sender.data(1, Bytes::from(vec![5; 200_000])).await);
        assert!(client.sender.finish(1).await);
        let mut stream = server.incoming.recv().await.unwrap();
        assert_eq!((stream.id, stream.header("streamtype")), (1, Some("stdin")));
        let mut received = 0;
        while let Some(piece) = stream.data.recv().await {
            received += piece.len();
        }
        assert_eq!(received, 200_000);
        server.sender.data(1, "answer".into()).await;
        server.sender.finish(1).await;
        assert_eq!(client.answers.recv().await, Some((1, Bytes::from_static(b"answer"))));
        assert_eq!(client.answers.recv().await, Some((1, Bytes::new())));
        server.sender.go_away().await;
        server_driver.await.unwrap().unwrap();
        drop(client.sender);
        client_driver.abort();
    }
}
