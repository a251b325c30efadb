//! Streaming rewriter of proxied HTML: links go through the proxy, everything else is unchanged.
//!
//! Only an unfinished tag is buffered, and a tag that is too long passes unmodified.

use super::links::Links;
use super::tag::Tag;
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use std::io::Write;

/// Compressed bytes inflated per step: to about 1 MiB at most, since deflate reaches a ratio of 1,032.
const INFLATE_STEP: usize = 1 << 10;
/// Longer tags are not parsed.
const LONGEST_TAG: usize = 16 << 10;

/// Parser state at the next byte.
#[derive(Debug)]
enum PageState {
    Text,
    Comment,
    /// Raw text, up to this end tag.
    Raw(Vec<u8>),
}

/// State of a page.
pub struct Page {
    links: Links,
    inside: PageState,
    held: Vec<u8>,
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window.eq_ignore_ascii_case(wanted))
}

impl Page {
    pub fn new(links: Links) -> Self {
        Self { links, inside: PageState::Text, held: Vec::new() }
    }

    /// Consumes a piece; appends the output that is complete to `out`.
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(piece);
        let mut at = 0;
        while let Some(taken) = self.step(&held[at..], out) {
            at += taken;
        }
        held.drain(..at);
        if held.len() > LONGEST_TAG {
            out.append(&mut held);
        }
        self.held = held;
    }

    /// Appends the rest at the end of input.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }

    /// Processes the next token; `None` if more input is needed.
    fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if bytes.is_empty() {
            return None;
        }
        let wanted = match &self.inside {
            PageState::Comment => b"-->",
            PageState::Raw(end) => end.as_slice(),
            PageState::Text => return self.text(bytes, out),
        };
        let (taken, over) = match find(bytes, wanted) {
            Some(at) => (at + wanted.len(), true),
            // A prefix of the end may be in the buffer.
            None => (bytes.len().saturating_sub(wanted.len() - 1), false),
        };
        if over {
            self.inside = PageState::Text;
        }
        out.extend_from_slice(&bytes[..taken]);
        (taken > 0).then_some(taken)
    }

    fn text(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let open = bytes.iter().position(|byte| *byte == b'<').unwrap_or(bytes.len());
        if open > 0 {
            out.extend_from_slice(&bytes[..open]);
            return Some(open);
        }
        let next = *bytes.get(1)?;
        if next.is_ascii_alphabetic() {
            let tag = Tag::read(bytes)?;
            tag.write(bytes, |link| self.links.through(link), out);
            if tag.is_raw() {
                self.inside = PageState::Raw(format!("</{}", tag.name).into_bytes());
            }
            return Some(tag.end);
        }
        let mut taken = 1;
        if next == b'!' {
            let start = bytes.get(..4).unwrap_or(bytes);
            if start == b"<!--" {
                self.inside = PageState::Comment;
                taken = 4;
            } else if b"<!--".starts_with(start) {
                return None;
            }
        }
        out.extend_from_slice(&bytes[..taken]);
        Some(taken)
    }
}

/// A page by content encoding: plain or compressed.
pub enum SentPage {
    Plain(Page),
    /// Recompressed page; inflated bytes are buffered in the decoder.
    Gzip(Page, Box<Coders>),
}

/// Decoder and encoder of a compressed page.
pub struct Coders {
    decoder: GzDecoder<Vec<u8>>,
    encoder: GzEncoder<Vec<u8>>,
}

impl SentPage {
    /// A page in this content encoding, if it is supported.
    pub fn new(coding: Option<&[u8]>, links: Links) -> Option<Self> {
        let page = Page::new(links);
        match coding {
            None | Some(b"") => Some(Self::Plain(page)),
            Some(b"gzip") => {
                let coders = Coders {
                    decoder: GzDecoder::new(Vec::new()),
                    encoder: GzEncoder::new(Vec::new(), Compression::default()),
                };
                Some(Self::Gzip(page, Box::new(coders)))
            }
            Some(_) => None,
        }
    }

    /// Consumes a piece as sent, or the end; returns the bytes to send.
    pub fn pass(&mut self, piece: Option<&[u8]>) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match self {
            Self::Plain(page) => match piece {
                Some(piece) => page.feed(piece, &mut out),
                None => page.end(&mut out),
            },
            Self::Gzip(page, coders) => {
                let Coders { decoder, encoder } = coders.as_mut();
                match piece {
                    Some(piece) => {
                        for part in piece.chunks(INFLATE_STEP) {
                            decoder.write_all(part)?;
                            decoder.flush()?;
                            page.feed(&std::mem::take(decoder.get_mut()), &mut out);
                            encoder.write_all(&std::mem::take(&mut out))?;
                        }
                        encoder.flush()?;
                    }
                    None => {
                        decoder.try_finish()?;
                        page.feed(&std::mem::take(decoder.get_mut()), &mut out);
                        page.end(&mut out);
                        encoder.write_all(&out)?;
                        encoder.try_finish()?;
                    }
                }
                out = std::mem::take(encoder.get_mut());
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PAGE: &str = concat!(
        r#"<!DOCTYPE html><html><head><title><a href="/no"></title><!-- <a href="/no"> --->"#,
        r#"<script src="/yes">if (a < b) document.write('<a href="/no">')</script></head>"#,
        r#"<body>1 < 2 & <a class=x href="/yes">é</a><a href="rel">r</a></body></html><"#,
    );

    fn links() -> Links {
        Links { prefix: "/P".to_owned(), address: "192.0.2.1:80".to_owned(), host: "h".to_owned() }
    }

    #[test]
    fn page_output_is_independent_of_piece_size() {
        let want = PAGE.replace("/yes", "/P/yes");
        for size in 1..PAGE.len() + 1 {
            let mut sent = SentPage::new(None, links()).expect("plain pages are read");
            let mut out = Vec::new();
            for piece in PAGE.as_bytes().chunks(size) {
                out.extend(sent.pass(Some(piece)).expect("a piece"));
            }
            out.extend(sent.pass(None).expect("the end"));
            assert_eq!(String::from_utf8_lossy(&out), want, "in pieces of {size}");
        }
    }

    #[test]
    fn compressed_pages_stay_compressed() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(PAGE.as_bytes()).expect("memory");
        let packed = encoder.finish().expect("memory");
        let mut sent = SentPage::new(Some(b"gzip"), links()).expect("gzip is read");
        let mut out = Vec::new();
        for piece in packed.chunks(7) {
            out.extend(sent.pass(Some(piece)).expect("a piece"));
        }
        out.extend(sent.pass(None).expect("the end"));
        let mut text = String::new();
        flate2::read::GzDecoder::new(out.as_slice()).read_to_string(&mut text).expect("gzip");
        assert_eq!(text, PAGE.replace("/yes", "/P/yes"));
        assert!(SentPage::new(Some(b"br"), links()).is_none());
        let mut broken = SentPage::new(Some(b"gzip"), links()).expect("gzip is read");
        assert!(broken.pass(Some(b"this is no gzip at all")).is_err());
    }

    /// Largest resident set of this process so far, in KiB.
    fn peak_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number")
    }

    #[test]
    fn gzip_piece_with_high_ratio_inflates_in_bounded_memory() {
        const INFLATED: usize = 256 << 20;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let block = vec![b' '; 1 << 20];
        for _ in 0..INFLATED >> 20 {
            encoder.write_all(&block).expect("memory");
        }
        let packed = encoder.finish().expect("memory");
        let mut sent = SentPage::new(Some(b"gzip"), links()).expect("gzip is read");
        let before = peak_kib();
        let out = sent.pass(Some(&packed)).expect("a piece");
        let grown = peak_kib().saturating_sub(before) << 10;
        assert!(grown < INFLATED / 2, "{} bytes took {grown} bytes of memory", packed.len());
        assert!(out.len() < INFLATED / 100);
    }

    #[test]
    fn overlong_tag_is_passed_on() {
        let mut page = Page::new(links());
        let mut out = Vec::new();
        page.feed(b"<a href=\"", &mut out);
        let long = vec![b'x'; LONGEST_TAG + 1];
        page.feed(&long, &mut out);
        assert_eq!(out.len(), 9 + long.len());
        page.feed(b"\"><a href=\"/y\">", &mut out);
        assert!(out.ends_with(b"<a href=\"/P/y\">"));
    }
}
