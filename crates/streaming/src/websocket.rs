//! WebSocket frames, as RFC 6455 has them.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::StreamError;

/// What a server answers to a client's key.
#[must_use]
pub fn accept(key: &str) -> String {
    let salted = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::prelude::BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, salted.as_bytes()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Data(Bytes),
    Ping(Bytes),
    Pong,
    Close,
}

/// Larger messages are refused; clients send 32 kB at most.
const LARGEST: u64 = 4 << 20;

/// Reads messages of a peer.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    fragments: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, fragments: BytesMut::new() }
    }

    /// The next message; the end of the connection is a close.
    pub async fn next(&mut self) -> Result<Message, StreamError> {
        loop {
            let mut head = [0; 2];
            match self.inner.read_exact(&mut head).await {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Message::Close),
                other => other?,
            };
            let (last, kind, masked) = (head[0] & 0x80 != 0, head[0] & 0x0f, head[1] & 0x80 != 0);
            let length = match head[1] & 0x7f {
                126 => u64::from(self.inner.read_u16().await?),
                127 => self.inner.read_u64().await?,
                short => u64::from(short),
            };
            if length > LARGEST || self.fragments.len() as u64 + length > LARGEST {
                return Err(StreamError::Protocol("a message is too long"));
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
                0..=2 => {
                    self.fragments.extend_from_slice(&payload);
                    if last {
                        return Ok(Message::Data(self.fragments.split().freeze()));
                    }
                }
                8 => return Ok(Message::Close),
                9 => return Ok(Message::Ping(payload.into())),
                10 => return Ok(Message::Pong),
                _ => return Err(StreamError::Protocol("a frame of an unknown kind")),
            }
        }
    }
}

/// Writes messages to a peer.
#[derive(Debug)]
pub struct Writer<W> {
    inner: W,
    /// Clients mask what they send, servers do not.
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
            // The mask is against old caches, not against readers: zero is as good as any.
            frame.extend_from_slice(&[0; 4]);
        }
        for part in parts {
            frame.extend_from_slice(part);
        }
        self.inner.write_all(&frame).await?;
        Ok(self.inner.flush().await?)
    }

    /// Sends a binary message, given in parts.
    pub async fn data(&mut self, parts: &[&[u8]]) -> Result<(), StreamError> {
        self.frame(2, parts).await
    }

    /// Sends a message of text.
    pub async fn text(&mut self, text: &str) -> Result<(), StreamError> {
        self.frame(1, &[text.as_bytes()]).await
    }

    pub async fn pong(&mut self, payload: &[u8]) -> Result<(), StreamError> {
        self.frame(10, &[payload]).await
    }

    /// Says goodbye, with the code for "all is well".
    pub async fn close(&mut self) -> Result<(), StreamError> {
        self.frame(8, &[&1000_u16.to_be_bytes()]).await?;
        Ok(self.inner.shutdown().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_standard() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn messages_of_all_lengths() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let (here, there) = tokio::io::duplex(1 << 20);
            let payload = vec![7; length];
            Writer::client(here).data(&[&payload]).await.unwrap();
            assert_eq!(Reader::new(there).next().await.unwrap(), Message::Data(payload.into()));
        }
    }

    #[tokio::test]
    async fn fragments_masks_and_nonsense() {
        let wire: &[u8] = &[0x02, 0x01, b'a', 0x89, 0x00, 0x80, 0x81, 1, 0, 0, 0, b'b' ^ 1, 0x88, 0x00];
        let mut reader = Reader::new(wire);
        assert_eq!(reader.next().await.unwrap(), Message::Ping(Bytes::new()));
        assert_eq!(reader.next().await.unwrap(), Message::Data(Bytes::from_static(b"ab")));
        assert_eq!(reader.next().await.unwrap(), Message::Close);
        assert_eq!(reader.next().await.unwrap(), Message::Close, "the end");
        assert!(Reader::new(&[0x82, 0x7f, 255, 255, 255, 255, 255, 255, 255, 255][..]).next().await.is_err());
        assert!(Reader::new(&[0x83, 0x00][..]).next().await.is_err());
    }
}
