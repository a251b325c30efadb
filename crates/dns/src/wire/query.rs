//! Decodes a query: header, one question, EDNS. Malformed input results in an error, never in a loop.

use super::{CLASS_IN, HEADER, LARGEST_UDP, PLAIN_SIZE, flags, name, rtype};

/// A decoded query.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    pub id: u16,
    pub flags: u16,
    /// The question section as the client sent it; replies repeat it, including upper-case letters.
    pub question: &'a [u8],
    /// The name in wire form and lower case.
    name: [u8; 255],
    name_length: usize,
    pub rtype: u16,
    pub class: u16,
    pub edns: Option<Edns>,
}

/// EDNS options of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    pub udp_size: u16,
    pub version: u8,
    pub dnssec: bool,
}

/// Error of decoding a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// No reply is possible: there is no ID, or it is a response itself.
    #[error("not a query")]
    Ignore,
    #[error("a malformed query")]
    Malformed { id: u16, flags: u16 },
    #[error("unsupported opcode")]
    Operation { id: u16, flags: u16 },
}

impl<'a> Query<'a> {
    pub fn parse(message: &'a [u8]) -> Result<Self, QueryError> {
        if message.len() < HEADER {
            return Err(QueryError::Ignore);
        }
        let field = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        let (id, bits) = (field(0), field(2));
        if bits & flags::RESPONSE != 0 {
            return Err(QueryError::Ignore);
        }
        if bits & flags::OPCODE != 0 {
            return Err(QueryError::Operation { id, flags: bits });
        }
        let malformed = QueryError::Malformed { id, flags: bits };
        if field(4) != 1 {
            return Err(malformed);
        }
        let mut lower = [0; 255];
        let end = question_name(message, &mut lower).ok_or(malformed)?;
        let name_length = end - HEADER;
        let tail = message.get(end..end + 4).ok_or(malformed)?;
        let edns = additional(message, end + 4, field(6), field(8), field(10)).map_err(|()| malformed)?;
        Ok(Self {
            id,
            flags: bits,
            question: &message[HEADER..end + 4],
            name: lower,
            name_length,
            rtype: u16::from_be_bytes([tail[0], tail[1]]),
            class: u16::from_be_bytes([tail[2], tail[3]]),
            edns,
        })
    }

    /// The name in the question: wire form, lower case.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name[..self.name_length]
    }

    #[must_use]
    pub fn name_text(&self) -> String {
        name::text(self.name())
    }

    /// Limit of a UDP reply.
    #[must_use]
    pub fn udp_limit(&self) -> usize {
        self.edns.map_or(PLAIN_SIZE, |edns| usize::from(edns.udp_size).clamp(PLAIN_SIZE, LARGEST_UDP))
    }

    #[must_use]
    pub fn is_internet(&self) -> bool {
        self.class == CLASS_IN
    }
}

/// Copies the question's name in lower case; returns its end. Nothing precedes a question, so a compressed name is
/// malformed.
fn question_name(message: &[u8], lower: &mut [u8; 255]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        if length > 63 || at - HEADER + length + 1 > 255 {
            return None;
        }
        lower[at - HEADER] = message[at];
        let label = message.get(at + 1..at + 1 + length)?;
        for (to, from) in lower[at + 1 - HEADER..].iter_mut().zip(label) {
            *to = from.to_ascii_lowercase();
        }
        at += length + 1;
        if length == 0 {
            return Some(at);
        }
        if at - HEADER >= 255 {
            return None;
        }
    }
}

/// The end of a possibly compressed name that begins at `at`.
#[must_use]
pub fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += usize::from(length) + 1,
            0xc0..=0xff => return message.get(at + 1).map(|_| at + 2),
            _ => return None,
        }
    }
}

/// Walks the records after the question for the OPT record.
fn additional(
    message: &[u8],
    mut at: usize,
    answers: u16,
    authority: u16,
    additional: u16,
) -> Result<Option<Edns>, ()> {
    // A query has no answers; a few other records are tolerated.
    let records = usize::from(answers) + usize::from(authority) + usize::from(additional);
    if records > 16 {
        return Err(());
    }
    let mut edns = None;
    for _ in 0..records {
        let fixed = skip_name(message, at).ok_or(())?;
        let head = message.get(fixed..fixed + 10).ok_or(())?;
        if u16::from_be_bytes([head[0], head[1]]) == rtype::OPT {
            if edns.is_some() || message.get(at) != Some(&0) {
                return Err(());
            }
            edns = Some(Edns {
                udp_size: u16::from_be_bytes([head[2], head[3]]),
                version: head[5],
                dnssec: head[6] & 0x80 != 0,
            });
        }
        at = fixed + 10 + usize::from(u16::from_be_bytes([head[8], head[9]]));
        if at > message.len() {
            return Err(());
        }
    }
    Ok(edns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(questions: u16, additional: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 0x01, 0x00];
        for count in [questions, 0, 0, additional] {
            message.extend(count.to_be_bytes());
        }
        message
    }

    #[test]
    fn query_with_edns_is_parsed() {
        let mut message = header(1, 1);
        message.extend(b"\x03WeB\x07default\x00\x00\x01\x00\x01");
        message.extend(b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00");
        let query = Query::parse(&message).expect("a query");
        assert_eq!(query.name(), b"\x03web\x07default\x00");
        assert_eq!(query.question, b"\x03WeB\x07default\x00\x00\x01\x00\x01");
        assert_eq!((query.rtype, query.class, query.udp_limit()), (rtype::A, CLASS_IN, 1232));
        assert_eq!(query.edns, Some(Edns { udp_size: 1232, version: 0, dnssec: true }));
    }

    #[test]
    fn udp_limit_of_large_buffer_is_1232() {
        for (size, wanted) in [(0_u16, 512), (512, 512), (1000, 1000), (1232, 1232), (4096, 1232)] {
            let mut message = header(1, 1);
            message.extend(b"\x03web\x00\x00\x01\x00\x01\x00\x00\x29");
            message.extend(size.to_be_bytes());
            message.extend(b"\x00\x00\x00\x00\x00\x00");
            assert_eq!(Query::parse(&message).map(|query| query.udp_limit()), Ok(wanted), "{size}");
        }
    }

    #[test]
    fn invalid_bytes_are_no_query() {
        assert_eq!(Query::parse(b"short").expect_err("short"), QueryError::Ignore);
        let mut response = header(1, 0);
        response[2] = 0x80;
        assert_eq!(Query::parse(&response).expect_err("a response"), QueryError::Ignore);
        let malformed = QueryError::Malformed { id: 0x1234, flags: 0x0100 };
        assert_eq!(Query::parse(&header(2, 0)).expect_err("two questions"), malformed);
        assert_eq!(Query::parse(&header(1, 0)).expect_err("no question"), malformed);
        let mut pointer = header(1, 0);
        pointer.extend(b"\xc0\x0c\x00\x01\x00\x01");
        assert_eq!(Query::parse(&pointer).expect_err("a pointer to itself"), malformed);
        let mut long = header(1, 0);
        for _ in 0..5 {
            long.push(63);
            long.extend([b'a'; 63]);
        }
        long.extend(b"\x00\x00\x01\x00\x01");
        assert_eq!(Query::parse(&long).expect_err("a long name"), malformed);
        let mut lying = header(1, 9);
        lying.extend(b"\x00\x00\x01\x00\x01");
        assert_eq!(Query::parse(&lying).expect_err("records that are not there"), malformed);
    }

    #[test]
    fn longest_name_is_decoded() {
        let mut message = header(1, 0);
        for _ in 0..3 {
            message.push(63);
            message.extend([b'a'; 63]);
        }
        message.push(61);
        message.extend([b'b'; 61]);
        message.extend(b"\x00\x00\x01\x00\x01");
        assert_eq!(Query::parse(&message).map(|query| query.name().len()), Ok(255));
    }

    proptest::proptest! {
        #[test]
        fn decoding_a_query_never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = Query::parse(&bytes);
            let mut message = header(1, 1);
            message.extend(bytes);
            let _ = Query::parse(&message);
        }
    }
}
