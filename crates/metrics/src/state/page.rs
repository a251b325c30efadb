//! A rendered page, compressed: the text of many objects repeats itself. Its parts make one gzip stream, so a client that
//! accepts gzip gets them as they are; each can be decompressed without the others.

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};
use std::io::Read;

/// Text of a part, about.
const PART: usize = 32 << 10;
/// Magic, deflate, no flags, no time, fastest compression, unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
/// The last block of a deflate stream, without content.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Deflate blocks that refer to nothing before them, and the checksum of their text.
struct Part {
    blocks: Bytes,
    sum: Crc,
}

/// Compresses parts, with one state for all.
pub struct Compressor(Compress);

impl Default for Compressor {
    fn default() -> Self {
        Self(Compress::new(Compression::fast(), false))
    }
}

impl Compressor {
    fn part(&mut self, text: &[u8]) -> Option<Part> {
        self.0.reset();
        let mut blocks = Vec::with_capacity(text.len() / 4 + 64);
        loop {
            let done = usize::try_from(self.0.total_in()).ok()?;
            self.0.compress_vec(text.get(done..)?, &mut blocks, FlushCompress::Sync).ok()?;
            // The flush is complete once it leaves space.
            if blocks.len() < blocks.capacity() {
                break;
            }
            blocks.reserve(text.len() / 2 + 64);
        }
        blocks.shrink_to_fit();
        let mut sum = Crc::new();
        sum.update(text);
        Some(Part { blocks: blocks.into(), sum })
    }
}

/// Text in the making: parts, and the rest that is not compressed yet.
#[derive(Default)]
pub struct Text {
    parts: Vec<Part>,
    pub rest: String,
}

impl Text {
    /// Compresses the rest once there is enough of it.
    pub fn settle(&mut self, compressor: &mut Compressor) {
        if self.rest.len() >= PART {
            self.flush(compressor);
        }
    }

    fn flush(&mut self, compressor: &mut Compressor) {
        if !self.rest.is_empty() {
            self.parts.extend(compressor.part(self.rest.as_bytes()));
            self.rest.clear();
        }
    }

    /// Appends another text.
    pub fn append(&mut self, other: Self, compressor: &mut Compressor) {
        if !other.parts.is_empty() {
            self.flush(compressor);
            self.parts.extend(other.parts);
        }
        self.rest.push_str(&other.rest);
        self.settle(compressor);
    }

    pub fn finish(mut self, compressor: &mut Compressor) -> Page {
        self.flush(compressor);
        let mut sum = Crc::new();
        self.parts.iter().for_each(|part| sum.combine(&part.sum));
        let end = [&LAST_BLOCK[..], &sum.sum().to_le_bytes(), &sum.amount().to_le_bytes()].concat();
        Page { parts: self.parts.into_iter().map(|part| part.blocks).collect(), end: end.into() }
    }
}

/// A whole page.
#[derive(Debug)]
pub struct Page {
    parts: Vec<Bytes>,
    /// Last block, checksum and length.
    end: Bytes,
}

impl Page {
    /// A piece of the gzip stream; `None` after the last one.
    pub fn compressed(&self, at: usize) -> Option<Bytes> {
        match at.checked_sub(1) {
            None => Some(Bytes::from_static(&HEADER)),
            Some(at) if at == self.parts.len() => Some(self.end.clone()),
            Some(at) => self.parts.get(at).cloned(),
        }
    }

    /// A piece of the text; `None` after the last one.
    pub fn plain(&self, at: usize) -> Option<std::io::Result<Bytes>> {
        let blocks = self.parts.get(at)?;
        let mut text = Vec::with_capacity(2 * PART);
        let stream = (&**blocks).chain(&LAST_BLOCK[..]);
        let read = flate2::read::DeflateDecoder::new(stream).read_to_end(&mut text);
        Some(read.map(|_| text.into()))
    }

    /// Bytes that the page takes.
    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    #[cfg(test)]
    pub fn text(&self) -> String {
        let pieces = (0..).map_while(|at| self.plain(at));
        pieces.map(|one| String::from_utf8(one.expect("blocks").to_vec()).expect("text")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_one_gzip_stream_of_its_text() {
        let mut compressor = Compressor::default();
        let (mut whole, mut want) = (Text::default(), String::new());
        for family in 0..5 {
            let mut text = Text::default();
            for object in 0..family * 2000 {
                let line = format!("kube_family_{family}{{object=\"{object}\"}} 1\n");
                want.push_str(&line);
                text.rest.push_str(&line);
                text.settle(&mut compressor);
            }
            whole.append(text, &mut compressor);
        }
        let page = whole.finish(&mut compressor);
        assert_eq!(page.text(), want);
        assert!(page.size() * 5 < want.len(), "{} of {}", page.size(), want.len());
        let stream: Vec<u8> = (0..).map_while(|at| page.compressed(at)).flatten().collect();
        let mut read = String::new();
        let mut decoder = flate2::read::GzDecoder::new(&*stream);
        decoder.read_to_string(&mut read).expect("one gzip stream");
        assert!(decoder.into_inner().is_empty());
        assert_eq!(read, want);
    }

    #[test]
    fn incompressible_text_is_stored() {
        let text: String = (0..40_000_u32)
            .map(|at| char::from(b'!' + (at.wrapping_mul(2_654_435_761) >> 24) as u8 % 90))
            .collect();
        let mut compressor = Compressor::default();
        let page = Text { parts: Vec::new(), rest: text.clone() }.finish(&mut compressor);
        assert_eq!(page.text(), text);
    }
}
