//! Encodes a reply: header, the original question, records, OPT; truncated at the limit.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{CLASS_IN, HEADER, Query, flags, rtype};

/// A pointer to the name of the question, which begins right after the header.
const QUESTION_NAME: [u8; 2] = [0xc0, HEADER as u8];
/// Advertised UDP size: avoids fragmentation on every path.
const OUR_UDP_SIZE: u16 = 1232;
const OPT_LENGTH: usize = 11;

/// Section of a record; sections are written in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

/// A reply under construction.
#[derive(Debug)]
pub struct Reply<'b> {
    buffer: &'b mut Vec<u8>,
    limit: usize,
    counts: [u16; 3],
    edns: bool,
    full: bool,
}

impl<'b> Reply<'b> {
    /// Starts a reply to `query` in `buffer`, which is cleared. `limit` is the largest size of the message.
    pub fn begin(
        buffer: &'b mut Vec<u8>,
        query: &Query<'_>,
        rcode: u8,
        more_flags: u16,
        limit: usize,
    ) -> Self {
        buffer.clear();
        buffer.extend(query.id.to_be_bytes());
        let copied = query.flags & (flags::RECURSION_DESIRED | flags::CHECKING_DISABLED);
        buffer.extend((flags::RESPONSE | copied | more_flags | u16::from(rcode & 0xf)).to_be_bytes());
        buffer.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        buffer.extend(query.question);
        let edns = query.edns.is_some();
        let limit = limit - if edns { OPT_LENGTH } else { 0 };
        Self { buffer, limit, counts: [0; 3], edns, full: false }
    }

    /// A reply to a query whose question could not be decoded: a header alone.
    pub fn bare(buffer: &mut Vec<u8>, id: u16, query_flags: u16, rcode: u8) {
        buffer.clear();
        buffer.extend(id.to_be_bytes());
        let copied = query_flags & (flags::RECURSION_DESIRED | flags::OPCODE);
        buffer.extend((flags::RESPONSE | copied | u16::from(rcode & 0xf)).to_be_bytes());
        buffer.extend([0; 8]);
    }

    /// Adds a record; `owner` is a name in wire form, or `None` for the question's own. Once an answer record does not
    /// fit, the reply is marked truncated and accepts no more; records of later sections that do not fit are omitted.
    /// Returns the offset of the record's data, if it was added.
    pub fn record(
        &mut self,
        section: Section,
        owner: Option<&[u8]>,
        kind: u16,
        ttl: u32,
        data: &[u8],
    ) -> Option<usize> {
        if self.full {
            return None;
        }
        let start = self.buffer.len();
        let Ok(length) = u16::try_from(data.len()) else { return None };
        self.buffer.extend(owner.unwrap_or(&QUESTION_NAME));
        self.buffer.extend(kind.to_be_bytes());
        self.buffer.extend(CLASS_IN.to_be_bytes());
        self.buffer.extend(ttl.to_be_bytes());
        self.buffer.extend(length.to_be_bytes());
        self.buffer.extend(data);
        if self.buffer.len() > self.limit {
            self.buffer.truncate(start);
            self.full = true;
            if section == Section::Answer {
                self.buffer[2] |= (flags::TRUNCATED >> 8) as u8;
            }
            return None;
        }
        self.counts[section as usize] += 1;
        Some(self.buffer.len() - data.len())
    }

    pub fn ipv4(&mut self, section: Section, owner: Option<&[u8]>, ttl: u32, address: Ipv4Addr) {
        self.record(section, owner, rtype::A, ttl, &address.octets());
    }

    pub fn ipv6(&mut self, section: Section, owner: Option<&[u8]>, ttl: u32, address: Ipv6Addr) {
        self.record(section, owner, rtype::AAAA, ttl, &address.octets());
    }

    /// Writes the counts and the OPT record.
    pub fn finish(self) {
        let [answers, authority, mut additional] = self.counts;
        if self.edns {
            self.buffer.push(0);
            self.buffer.extend(rtype::OPT.to_be_bytes());
            self.buffer.extend(OUR_UDP_SIZE.to_be_bytes());
            self.buffer.extend([0; 6]);
            additional += 1;
        }
        for (at, count) in [(6, answers), (8, authority), (10, additional)] {
            self.buffer[at..at + 2].copy_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_beyond_the_limit_is_truncated() {
        let mut message =
            b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01".to_vec();
        message.resize(message.len(), 0);
        let query = Query::parse(&message).expect("a query");
        let mut buffer = Vec::new();
        let mut reply = Reply::begin(&mut buffer, &query, 0, flags::AUTHORITATIVE, 19 + 16 * 2 + 3);
        for last in 0..3 {
            reply.ipv4(Section::Answer, None, 30, Ipv4Addr::new(10, 0, 0, last));
        }
        reply.finish();
        assert_eq!(buffer.len(), 19 + 32);
        assert_eq!(buffer[..12], [0, 7, 0x87, 0, 0, 1, 0, 2, 0, 0, 0, 0]);
        assert_eq!(buffer[19..35], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 0, 0, 0]);
    }
}
