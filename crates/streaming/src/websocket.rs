//! WebSocket messages (RFC 6455), for clients and servers: frames, fragments, close codes, UTF-8.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::StreamError;

/// `Sec-WebSocket-Accept` value for a client's key.
#[must_use]
pub fn accept(key: &str) -> String {
    let salted = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::prelude::BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, salted.as_bytes()))
}

/// Close codes (RFC 6455, section 7.4).
pub mod close {
    pub const NORMAL: u16 = 1000;
    pub const PROTOCOL_ERROR: u16 = 1002;
    /// The close frame has no code; never sent.
    pub const NO_STATUS: u16 = 1005;
    /// The connection ended without a close frame; never sent.
    pub const ABNORMAL: u16 = 1006;
    pub const INVALID_DATA: u16 = 1007;
    pub const TOO_LARGE: u16 = 1009;

    /// True for codes that a close frame may have.
    pub(super) fn is_valid(code: u16) -> bool {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }

    /// The code that reports an error of the peer.
    #[must_use]
    pub fn of_error(error: &crate::StreamError) -> u16 {
        match error {
            crate::StreamError::TooLong => TOO_LARGE,
            crate::StreamError::InvalidText => INVALID_DATA,
            _ => PROTOCOL_ERROR,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A binary message, or a text message that is valid UTF-8.
    Data(Bytes),
    Ping(Bytes),
    Pong,
    /// The end, with a close code.
    Close(u16),
}

/// Opcodes.
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Maximum payload of a control frame.
const MAX_CONTROL: u64 = 125;

/// Maximum message size; clients send 32 kB at most.
const MAX_MESSAGE: u64 = 4 << 20;

/// Reads messages from a peer.
///
/// ```
/// use streaming::websocket::{Message, Reader, Writer, close};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), streaming::StreamError> {
/// let (here, there) = tokio::io::duplex(1024);
/// let mut writer = Writer::client(here);
/// writer.text("hello").await?;
/// writer.close().await?;
/// let mut reader = Reader::new(there);
/// assert_eq!(reader.next().await?, Message::Data("hello".into()));
/// assert_eq!(reader.next().await?, Message::Close(close::NORMAL));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    /// Opcode of the message whose fragments are being read.
    started: Option<u8>,
    fragments: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, started: None, fragments: BytesMut::new() }
    }

    /// Returns the next message; the end of the connection is an abnormal close.
    pub async fn next(&mut self) -> Result<Message, StreamError> {
        loop {
            let mut head = [0; 2];
            match self.inner.read_exact(&mut head).await {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(Message::Close(close::ABNORMAL));
                }
                other => other?,
            };
            let (last, kind, masked) = (head[0] & 0x80 != 0, head[0] & 0x0f, head[1] & 0x80 != 0);
            if head[0] & 0x70 != 0 {
                return Err(StreamError::Protocol("reserved bits are set"));
            }
            let length = match head[1] & 0x7f {
                126 => u64::from(self.inner.read_u16().await?),
                127 => self.inner.read_u64().await?,
                short => u64::from(short),
            };
            if kind >= CLOSE && (length > MAX_CONTROL || !last) {
                return Err(StreamError::Protocol("control frame too long or fragmented"));
            }
            if length > MAX_MESSAGE || self.fragments.len() as u64 + length > MAX_MESSAGE {
                return Err(StreamError::TooLong);
            }
            let mut mask = [0; 4];
            if masked {
                self.inner.read_exact(&mut mask).await?;
            }
            let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
            self.inner.read_exact(&mut payload).await?;
            if masked {
                payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
            }
            match kind {
                CONTINUATION | TEXT | BINARY => {
                    if let Some(message) = self.fragment(kind, last, &payload)? {
                        return Ok(message);
                    }
                }
                CLOSE => return closed(&payload),
                PING => return Ok(Message::Ping(payload.into())),
                PONG => return Ok(Message::Pong),
                _ => return Err(StreamError::Protocol("unknown frame opcode")),
            }
        }
    }

    /// Adds a data frame to the message that it belongs to; returns the message if it is complete.
    fn fragment(&mut self, kind: u8, last: bool, payload: &[u8]) -> Result<Option<Message>, StreamError> {
        let kind = match (self.started, kind) {
            (None, CONTINUATION) => return Err(StreamError::Protocol("continuation of no message")),
            (Some(started), CONTINUATION) => started,
            (None, kind) => kind,
            (Some(_), _) => return Err(StreamError::Protocol("new message before the end of another")),
        };
        self.started = Some(kind).filter(|_| !last);
        self.fragments.extend_from_slice(payload);
        if !last {
            return Ok(None);
        }
        let message = self.fragments.split().freeze();
        if kind == TEXT && std::str::from_utf8(&message).is_err() {
            return Err(StreamError::InvalidText);
        }
        Ok(Some(Message::Data(message)))
    }
}

/// A close frame: empty, or a code and a reason.
fn closed(payload: &[u8]) -> Result<Message, StreamError> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return match payload {
            [] => Ok(Message::Close(close::NO_STATUS)),
            _ => Err(StreamError::Protocol("close frame with half a code")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !close::is_valid(code) {
        return Err(StreamError::Protocol("invalid close code"));
    }
    if std::str::from_utf8(reason).is_err() {
        return Err(StreamError::InvalidText);
    }
    Ok(Message::Close(code))
}

/// Writes messages to a peer.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
    /// Clients mask their frames, servers do not.
    client: bool,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub fn server(inner: W) -> Self {
        Self { inner, client: false }
    }

    pub fn client(inner: W) -> Self {
        Self { inner, client: true }
    }

    async fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> Result<(), StreamError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mask_bit = if self.client { 0x80 } else { 0 };
        let mut frame = BytesMut::with_capacity(length + 14);
        frame.extend_from_slice(&[0x80 | kind]);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short), _) if short < 126 => frame.extend_from_slice(&[mask_bit | short]),
            (_, Ok(medium)) => {
                frame.extend_from_slice(&[mask_bit | 126]);
                frame.extend_from_slice(&medium.to_be_bytes());
            }
            _ => {
                frame.extend_from_slice(&[mask_bit | 127]);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        if self.client {
            // The mask protects against old caches, not against readers: zero suffices.
            frame.extend_from_slice(&[0; 4]);
        }
        for part in parts {
            frame.extend_from_slice(part);
        }
        self.inner.write_all(&frame).await?;
        Ok(self.inner.flush().await?)
    }

    /// Sends a binary message from parts.
    pub async fn data(&mut self, parts: &[&[u8]]) -> Result<(), StreamError> {
        self.frame(BINARY, parts).await
    }

    /// Sends a text message.
    pub async fn text(&mut self, text: &str) -> Result<(), StreamError> {
        self.frame(TEXT, &[text.as_bytes()]).await
    }

    pub async fn pong(&mut self, payload: &[u8]) -> Result<(), StreamError> {
        self.frame(PONG, &[payload]).await
    }

    /// Sends a close frame with the code of a normal closure.
    pub async fn close(&mut self) -> Result<(), StreamError> {
        self.close_with(close::NORMAL).await
    }

    /// Sends a close frame with one of the [`close`] codes.
    pub async fn close_with(&mut self, code: u16) -> Result<(), StreamError> {
        self.frame(CLOSE, &[&code.to_be_bytes()]).await?;
        Ok(self.inner.shutdown().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_key_matches_rfc6455() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn messages_of_all_lengths_round_trip() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let (here, there) = tokio::io::duplex(1 << 20);
            let payload = vec![7; length];
            Writer::client(here).data(&[&payload]).await.unwrap();
            assert_eq!(Reader::new(there).next().await.unwrap(), Message::Data(payload.into()));
        }
    }

    #[tokio::test]
    async fn fragments_masks_and_invalid_frames() {
        let wire: &[u8] = &[0x02, 0x01, b'a', 0x89, 0x00, 0x80, 0x81, 1, 0, 0, 0, b'b' ^ 1, 0x88, 0x00];
        let mut reader = Reader::new(wire);
        assert_eq!(reader.next().await.unwrap(), Message::Ping(Bytes::new()));
        assert_eq!(reader.next().await.unwrap(), Message::Data(Bytes::from_static(b"ab")));
        assert_eq!(reader.next().await.unwrap(), Message::Close(close::NO_STATUS));
        assert_eq!(reader.next().await.unwrap(), Message::Close(close::ABNORMAL), "the end");
    }

    #[tokio::test]
    async fn protocol_violations_have_close_codes() {
        let cases: [(&str, &[u8], u16); 11] = [
            ("too long", &[0x82, 0x7f, 255, 255, 255, 255, 255, 255, 255, 255], close::TOO_LARGE),
            ("unknown opcode", &[0x83, 0], close::PROTOCOL_ERROR),
            ("reserved bit", &[0xc2, 0], close::PROTOCOL_ERROR),
            ("continuation first", &[0x80, 0], close::PROTOCOL_ERROR),
            ("message in a message", &[0x02, 0, 0x82, 0], close::PROTOCOL_ERROR),
            ("fragmented ping", &[0x09, 0], close::PROTOCOL_ERROR),
            ("long ping", &[0x89, 0x7e, 0, 126], close::PROTOCOL_ERROR),
            ("invalid text", &[0x81, 1, 0xff], close::INVALID_DATA),
            ("text split in a character", &[0x01, 1, 0xc3, 0x80, 1, b'x'], close::INVALID_DATA),
            ("half a close code", &[0x88, 1, 3], close::PROTOCOL_ERROR),
            ("invalid close code", &[0x88, 2, 3, 237], close::PROTOCOL_ERROR),
        ];
        for (name, wire, code) in cases {
            let error = Reader::new(wire).next().await.expect_err(name);
            assert_eq!(close::of_error(&error), code, "{name}: {error}");
        }
        let mut reader = Reader::new(&[0x01, 1, 0xc3, 0x80, 1, 0xbc, 0x88, 3, 3, 232, b'!'][..]);
        assert_eq!(reader.next().await.unwrap(), Message::Data(Bytes::from("ü")));
        assert_eq!(reader.next().await.unwrap(), Message::Close(close::NORMAL));
    }

    #[tokio::test]
    async fn close_code_round_trips() {
        let (here, there) = tokio::io::duplex(64);
        Writer::server(here).close_with(close::INVALID_DATA).await.unwrap();
        assert_eq!(Reader::new(there).next().await.unwrap(), Message::Close(close::INVALID_DATA));
    }
}
