//! Log records: the encoding of a batch of changes.
//!
//! A frame's payload is the time of the commit followed by records. Numbers are little-endian. Derivable values are
//! not stored: versions and creation revisions follow from replaying.

use std::sync::Arc;

use bytes::Bytes;

use crate::contract::{Event, LeaseId, Revision};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const GRANT: u8 = 3;
const REVOKE: u8 = 4;
const COMPACT: u8 = 5;
const CLOSED: u8 = 6;

/// One record, borrowed from the log where it can be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    Put {
        revision: Revision,
        lease: Option<LeaseId>,
        key: &'a str,
        value: &'a [u8],
    },
    Delete {
        revision: Revision,
        key: &'a str,
    },
    Grant {
        lease: LeaseId,
        ttl_ms: u64,
    },
    Revoke {
        lease: LeaseId,
    },
    Compact {
        revision: Revision,
    },
    /// The store was closed cleanly after the preceding records.
    Closed,
}

impl<'a> Record<'a> {
    /// The record of a change.
    pub fn of(event: &'a Event, lease: Option<LeaseId>) -> Self {
        match event {
            Event::Put { kv, .. } => {
                Self::Put { revision: kv.mod_revision, lease, key: &kv.key, value: &kv.value }
            }
            Event::Delete { key, revision, .. } => Self::Delete { revision: *revision, key },
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Put { revision, lease, key, value } => {
                out.push(PUT);
                put_u64(out, *revision);
                put_u64(out, lease.map_or(0, |id| id.0 as u64));
                put_bytes(out, key.as_bytes());
                put_bytes(out, value);
            }
            Self::Delete { revision, key } => {
                out.push(DELETE);
                put_u64(out, *revision);
                put_bytes(out, key.as_bytes());
            }
            Self::Grant { lease, ttl_ms } => {
                out.push(GRANT);
                put_u64(out, lease.0 as u64);
                put_u64(out, *ttl_ms);
            }
            Self::Revoke { lease } => {
                out.push(REVOKE);
                put_u64(out, lease.0 as u64);
            }
            Self::Compact { revision } => {
                out.push(COMPACT);
                put_u64(out, *revision);
            }
            Self::Closed => out.push(CLOSED),
        }
    }

    /// The next record; `None` when it is malformed.
    pub fn decode(input: &mut Reader<'a>) -> Option<Self> {
        Some(match input.u8()? {
            PUT => Self::Put {
                revision: input.u64()?,
                lease: input.lease()?,
                key: input.str()?,
                value: input.bytes()?,
            },
            DELETE => Self::Delete { revision: input.u64()?, key: input.str()? },
            GRANT => Self::Grant { lease: LeaseId(input.u64()? as i64), ttl_ms: input.u64()? },
            REVOKE => Self::Revoke { lease: LeaseId(input.u64()? as i64) },
            COMPACT => Self::Compact { revision: input.u64()? },
            CLOSED => Self::Closed,
            _ => return None,
        })
    }
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes length and bytes. Sizes are validated before, so a length always fits.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Reads numbers and strings from a slice; every method returns `None` at the end of the input.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub fn str(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub fn lease(&mut self) -> Option<Option<LeaseId>> {
        let id = self.u64()? as i64;
        Some((id != 0).then_some(LeaseId(id)))
    }

    pub fn owned_key(&mut self) -> Option<Arc<str>> {
        self.str().map(Arc::from)
    }

    pub fn owned_value(&mut self) -> Option<Bytes> {
        self.bytes().map(Bytes::copy_from_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_truncation_is_noticed() {
        let records = [
            Record::Put { revision: 7, lease: Some(LeaseId(-3)), key: "/pods/ü", value: b"value" },
            Record::Put { revision: 8, lease: None, key: "", value: b"" },
            Record::Delete { revision: 9, key: "/pods/a" },
            Record::Grant { lease: LeaseId(5), ttl_ms: 1000 },
            Record::Revoke { lease: LeaseId(5) },
            Record::Compact { revision: 4 },
            Record::Closed,
        ];
        for record in &records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let mut reader = Reader(&bytes);
            assert_eq!(Record::decode(&mut reader).as_ref(), Some(record));
            assert!(reader.is_empty());
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode(&mut Reader(&bytes[..cut])), None, "{record:?} cut at {cut}");
            }
        }
        assert_eq!(Record::decode(&mut Reader(&[99])), None);
        assert_eq!(Record::decode(&mut Reader(&[DELETE, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0xff])), None);
    }
}
