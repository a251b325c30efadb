//! A finished document, and its writer.

use super::gnostic::Encoder;
use base::clock::Clock;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256, Sha512};
use std::io::{Read as _, Write};
use std::ops::Range;
use std::time::SystemTime;

const LEVEL: Compression = Compression::new(5);

/// A document in one encoding.
#[derive(Debug)]
pub struct Document {
    /// Upper-case hexadecimal digest of the content: the `hash` of URLs and, quoted, the ETag. The protobuf form
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

    /// The plain document, unless only the compressed form is kept.
    pub(super) fn kept_plain(&self) -> Option<Bytes> {
        self.body.lock().plain.clone()
    }

    /// Drops the plain form.
    pub(super) fn compact(&self) {
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

/// The bytes of a document while it is written.
enum Form {
    Plain(Vec<u8>),
    Compressed(Box<GzEncoder<Vec<u8>>>),
}

/// Digest of the JSON of a member.
type MemberDigest = [u8; 32];

/// Place of a member's JSON in a plain document.
#[derive(Clone, Debug, Default)]
pub struct Span {
    range: Range<usize>,
    digest: MemberDigest,
}

/// Receiver of a document, member by member, so that its value is never in memory as a whole.
pub trait Output {
    /// Opens a member that is an object.
    fn open(&mut self, key: &str);
    fn close(&mut self);
    /// Returns the place of the member, empty if this output has none.
    fn member(&mut self, key: &str, value: &Value) -> Span;
    /// As [`Output::member`], with a member of another plain document.
    fn repeat(&mut self, key: &str, span: &Span, plain: &[u8]) -> Span;
}

/// Writes JSON. The hash covers the digests of members, so that members of another document are not hashed again.
pub struct Writer {
    form: Form,
    hasher: Sha512,
    length: usize,
    /// For each depth, true while the object has no member.
    empty: Vec<bool>,
    /// JSON of the current member.
    scratch: Vec<u8>,
}

impl Writer {
    /// A writer that compresses documents while writing.
    pub fn compressing() -> Self {
        Self::new(Form::Compressed(Box::new(GzEncoder::new(Vec::new(), LEVEL))))
    }

    /// A writer of plain documents of about this length.
    pub fn plain(length: usize) -> Self {
        Self::new(Form::Plain(Vec::with_capacity(length)))
    }

    fn new(form: Form) -> Self {
        let (hasher, scratch) = (Sha512::new(), Vec::new());
        let mut writer = Writer { form, hasher, length: 0, empty: vec![true], scratch };
        writer.put(b"{");
        writer
    }

    /// Writes and hashes bytes outside of members.
    fn put(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.store(bytes);
    }

    fn store(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        match &mut self.form {
            Form::Plain(plain) => plain.extend_from_slice(bytes),
            Form::Compressed(encoder) => encoder.write_all(bytes).expect("writing to memory does not fail"),
        }
    }

    fn key(&mut self, key: &str) {
        let is_first = std::mem::replace(self.empty.last_mut().expect("an open object"), false);
        let mut text = if is_first { Vec::new() } else { vec![b','] };
        serde_json::to_writer(&mut text, key).expect("writing to memory does not fail");
        text.push(b':');
        self.put(&text);
    }

    fn encoded(&mut self, key: &str, json: &[u8], digest: MemberDigest) -> Span {
        self.key(key);
        let start = self.length;
        self.hasher.update(digest);
        self.store(json);
        Span { range: start..self.length, digest }
    }

    pub fn finish(mut self) -> Document {
        while !self.empty.is_empty() {
            self.close();
        }
        let body = match self.form {
            Form::Plain(plain) => Body { plain: Some(Bytes::from(plain)), gzip: None },
            Form::Compressed(encoder) => {
                let gzip = encoder.finish().expect("writing to memory does not fail");
                Body { plain: None, gzip: Some(exactly(gzip)) }
            }
        };
        Document::new(hex::encode_upper(self.hasher.finalize()), self.length, body)
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

    fn member(&mut self, key: &str, value: &Value) -> Span {
        let mut json = std::mem::take(&mut self.scratch);
        json.clear();
        serde_json::to_writer(&mut json, value).expect("writing to memory does not fail");
        let span = self.encoded(key, &json, Sha256::digest(&json).into());
        self.scratch = json;
        span
    }

    fn repeat(&mut self, key: &str, span: &Span, plain: &[u8]) -> Span {
        self.encoded(key, &plain[span.range.clone()], span.digest)
    }
}

impl Output for Encoder {
    fn open(&mut self, key: &str) {
        Encoder::open(self, key);
    }

    fn close(&mut self) {
        Encoder::close(self);
    }

    fn member(&mut self, key: &str, value: &Value) -> Span {
        Encoder::member(self, key, value);
        Span::default()
    }

    fn repeat(&mut self, key: &str, span: &Span, plain: &[u8]) -> Span {
        let value = serde_json::from_slice(&plain[span.range.clone()]).expect("own JSON is valid");
        Output::member(self, key, &value)
    }
}
