//! A finished document, and its writer. Recently used documents are plain, others are compressed.

use super::gnostic::Encoder;
use base::clock::Clock;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha512};
use std::collections::VecDeque;
use std::io::{Read as _, Write};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

const LEVEL: Compression = Compression::new(5);

/// Limits of cached plain documents of version 3: number, and total bytes.
const MAX_HOT: usize = 16;
const MAX_HOT_BYTES: usize = 8 << 20;

/// A document in one encoding.
#[derive(Debug)]
pub struct Document {
    /// SHA-512 of the JSON in upper-case hexadecimal: the `hash` of URLs and, quoted, the ETag. The protobuf form
    /// shares the hash of the JSON.
    pub hash: String,
    /// Length of the plain document.
    pub length: usize,
    /// For `Last-Modified`.
    pub built: SystemTime,
    body: Mutex<Body>,
}

/// At least one form of a document.
#[derive(Debug)]
struct Body {
    plain: Option<Bytes>,
    gzip: Option<Bytes>,
}

impl Body {
    fn gzip(&mut self) -> Bytes {
        let Self { plain, gzip } = self;
        gzip.get_or_insert_with(|| compress(plain.as_deref().unwrap_or_default())).clone()
    }
}

impl Document {
    fn new(hash: String, length: usize, body: Body) -> Self {
        Self { hash, length, built: Clock::system().now().into(), body: Mutex::new(body) }
    }

    /// The plain document, for clients without gzip.
    pub fn plain(&self) -> Bytes {
        let gzip = {
            let body = self.body.lock();
            if let Some(plain) = &body.plain {
                return plain.clone();
            }
            body.gzip.clone().unwrap_or_default()
        };
        let mut plain = Vec::with_capacity(self.length);
        GzDecoder::new(gzip.as_ref()).read_to_end(&mut plain).expect("own gzip data is valid");
        Bytes::from(plain)
    }

    /// The document compressed with gzip.
    pub fn gzip(&self) -> Bytes {
        self.body.lock().gzip()
    }

    /// Drops the plain form.
    fn compact(&self) {
        let mut body = self.body.lock();
        body.gzip();
        body.plain = None;
    }

    /// The protobuf form of this JSON document.
    pub(super) fn in_protobuf(&self, bytes: &[u8]) -> Document {
        let body = Body { plain: None, gzip: Some(compress(bytes)) };
        Document { built: self.built, ..Document::new(self.hash.clone(), bytes.len(), body) }
    }

    /// Reports whether a request's `If-None-Match` matches this document.
    pub fn matches(&self, if_none_match: &str) -> bool {
        if_none_match.split(',').map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| {
            tag == "*"
                || tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(self.hash.as_str())
        })
    }
}

fn compress(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), LEVEL);
    encoder.write_all(bytes).expect("writing to memory does not fail");
    exactly(encoder.finish().expect("writing to memory does not fail"))
}

/// Copies bytes without the spare capacity of the vector, since they are kept for long.
fn exactly(bytes: Vec<u8>) -> Bytes {
    Bytes::from(bytes.into_boxed_slice())
}

/// The most recently built documents. They are plain, so that a changed one is served without being compressed and
/// inflated; older ones are compressed.
#[derive(Default)]
pub struct HotDocuments {
    documents: Mutex<VecDeque<Weak<Document>>>,
}

impl HotDocuments {
    pub fn insert(&self, document: &Arc<Document>) {
        let cold = {
            let mut hot = self.documents.lock();
            hot.retain(|known| known.strong_count() > 0);
            hot.push_back(Arc::downgrade(document));
            let length = |known: &Weak<Document>| known.upgrade().map_or(0, |known| known.length);
            let mut bytes: usize = hot.iter().map(length).sum();
            let mut cold = Vec::new();
            while hot.len() > MAX_HOT || bytes > MAX_HOT_BYTES {
                let Some(oldest) = hot.pop_front() else { break };
                bytes -= length(&oldest).min(bytes);
                cold.extend(oldest.upgrade());
            }
            cold
        };
        cold.iter().for_each(|document| document.compact());
    }
}

/// The bytes of a document while it is written.
enum Form {
    Plain(Vec<u8>),
    Compressed(Box<GzEncoder<Vec<u8>>>),
}

/// Counts, hashes and stores the bytes written to it.
struct Sink {
    form: Form,
    hasher: Sha512,
    length: usize,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hasher.update(bytes);
        self.length += bytes.len();
        match &mut self.form {
            Form::Plain(plain) => plain.extend_from_slice(bytes),
            Form::Compressed(encoder) => encoder.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Receiver of a document, member by member, so that its value is never in memory as a whole.
pub trait Output {
    /// Opens a member that is an object.
    fn open(&mut self, key: &str);
    fn close(&mut self);
    fn member(&mut self, key: &str, value: &Value);
}

/// Writes JSON.
pub struct Writer {
    sink: std::io::BufWriter<Sink>,
    /// For each depth, true while the object has no member.
    empty: Vec<bool>,
}

impl Writer {
    /// A writer that compresses documents while writing.
    pub fn compressing() -> Self {
        Self::new(Form::Compressed(Box::new(GzEncoder::new(Vec::new(), LEVEL))))
    }

    /// A writer of plain documents.
    pub fn plain() -> Self {
        Self::new(Form::Plain(Vec::new()))
    }

    fn new(form: Form) -> Self {
        let sink = Sink { form, hasher: Sha512::new(), length: 0 };
        let mut writer =
            Writer { sink: std::io::BufWriter::with_capacity(32 * 1024, sink), empty: vec![true] };
        writer.put(b"{");
        writer
    }

    /// Writing to memory does not fail.
    fn put(&mut self, bytes: &[u8]) {
        self.sink.write_all(bytes).expect("writing to memory does not fail");
    }

    fn key(&mut self, key: &str) {
        if !std::mem::replace(self.empty.last_mut().expect("an open object"), false) {
            self.put(b",");
        }
        serde_json::to_writer(&mut self.sink, key).expect("writing to memory does not fail");
        self.put(b":");
    }

    pub fn finish(mut self) -> Document {
        while !self.empty.is_empty() {
            self.close();
        }
        let sink = self
            .sink
            .into_inner()
            .map_err(|error| error.into_error())
            .expect("writing to memory does not fail");
        let body = match sink.form {
            Form::Plain(plain) => Body { plain: Some(exactly(plain)), gzip: None },
            Form::Compressed(encoder) => {
                let gzip = encoder.finish().expect("writing to memory does not fail");
                Body { plain: None, gzip: Some(exactly(gzip)) }
            }
        };
        Document::new(hex::encode_upper(sink.hasher.finalize()), sink.length, body)
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
        serde_json::to_writer(&mut self.sink, value).expect("writing to memory does not fail");
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
