//! A finished document, and the writer that compresses it while it is written.

use super::gnostic::Encoder;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest, Sha512};
use std::io::{Read as _, Write};
use std::time::SystemTime;

/// A document in one encoding, kept compressed.
#[derive(Clone, Debug)]
pub struct Document {
    /// SHA-512 of the JSON in upper-case hexadecimal: the `hash` of URLs and, in quotes, the ETag. The protobuf
    /// form has that of the JSON.
    pub hash: String,
    /// The document, gzip-compressed.
    pub gzip: Bytes,
    /// Length of the plain document.
    pub length: usize,
    /// For `Last-Modified`.
    pub built: SystemTime,
}

impl Document {
    /// The plain document, for clients that take no gzip.
    pub fn plain(&self) -> Bytes {
        let mut plain = Vec::with_capacity(self.length);
        GzDecoder::new(self.gzip.as_ref())
            .read_to_end(&mut plain)
            .expect("what was compressed here inflates");
        Bytes::from(plain)
    }

    /// The protobuf form of a document of which this is the JSON.
    pub(super) fn in_protobuf(&self, bytes: &[u8]) -> Document {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(5));
        encoder.write_all(bytes).expect("memory takes what is written");
        let gzip = encoder.finish().expect("memory takes what is written");
        Document { gzip: exactly(gzip), length: bytes.len(), ..self.clone() }
    }

    /// Whether a request's `If-None-Match` names this document.
    pub fn matches(&self, if_none_match: &str) -> bool {
        if_none_match.split(',').map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| {
            tag == "*"
                || tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(self.hash.as_str())
        })
    }
}

/// Bytes without the spare room of the vector they grew in: they are kept for long.
fn exactly(bytes: Vec<u8>) -> Bytes {
    Bytes::from(bytes.into_boxed_slice())
}

/// Counts, hashes and compresses what passes through.
struct Sink {
    encoder: GzEncoder<Vec<u8>>,
    hasher: Sha512,
    length: usize,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hasher.update(bytes);
        self.length += bytes.len();
        self.encoder.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a document is written to, member by member, so that it is never in memory as a whole.
pub trait Output {
    /// A member that is an object, to be filled and closed.
    fn open(&mut self, key: &str);
    fn close(&mut self);
    fn member(&mut self, key: &str, value: &Value);
}

/// Writes JSON.
pub struct Writer {
    sink: std::io::BufWriter<Sink>,
    /// Whether the object at each depth has no member yet.
    empty: Vec<bool>,
}

impl Writer {
    pub fn new() -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::new(5));
        let sink = Sink { encoder, hasher: Sha512::new(), length: 0 };
        let mut writer =
            Writer { sink: std::io::BufWriter::with_capacity(32 * 1024, sink), empty: vec![true] };
        writer.put(b"{");
        writer
    }

    /// Writing to memory does not fail.
    fn put(&mut self, bytes: &[u8]) {
        self.sink.write_all(bytes).expect("memory takes what is written");
    }

    fn key(&mut self, key: &str) {
        if !std::mem::replace(self.empty.last_mut().expect("an open object"), false) {
            self.put(b",");
        }
        serde_json::to_writer(&mut self.sink, key).expect("memory takes what is written");
        self.put(b":");
    }

    pub fn finish(mut self) -> Document {
        while !self.empty.is_empty() {
            self.close();
        }
        let sink =
            self.sink.into_inner().map_err(|error| error.into_error()).expect("memory takes what is written");
        let gzip = sink.encoder.finish().expect("memory takes what is written");
        Document {
            hash: hex::encode_upper(sink.hasher.finalize()),
            gzip: exactly(gzip),
            length: sink.length,
            built: SystemTime::now(),
        }
    }
}

impl Output for Writer {
    fn open(&mut self, key: &str) {
        self.key(key);
        self.put(b"{");
        self.empty.push(true);
    }

    fn close(&mut self) {
        self.empty.pop();
        self.put(b"}");
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.key(key);
        serde_json::to_writer(&mut self.sink, value).expect("memory takes what is written");
    }
}

impl Output for Encoder {
    fn open(&mut self, key: &str) {
        Encoder::open(self, key);
    }

    fn close(&mut self) {
        Encoder::close(self);
    }

    fn member(&mut self, key: &str, value: &Value) {
        Encoder::member(self, key, value);
    }
}
