//! Netlink socket that sends batches and reads the replies to each step.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};

use super::message::Writer;
use super::{Batch, TableFamily};

/// Rejection of a batch. None of it was applied.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("failed to open netlink socket")]
    Open(#[source] io::Error),
    #[error("failed to send batch of {bytes} bytes")]
    Send { bytes: usize, source: io::Error },
    #[error("failed to read kernel reply")]
    Receive(#[source] io::Error),
    #[error("failed to {step}")]
    Refused { step: String, source: io::Error },
}

impl NftError {
    /// Returns true if an object to be removed or referenced does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// nftables socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// Digest of the rules and elements of a table, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub rules: usize,
    digest: u64,
}

impl Content {
    fn add(&mut self, bytes: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        self.digest = self.digest.wrapping_add(hasher.finish());
    }
}

const REQUEST: u16 = 1;
const GET_TABLE: u16 = 10 << 8 | 1;
const GET_RULE: u16 = 10 << 8 | 7;
const GET_SET: u16 = 10 << 8 | 10;
const GET_ELEMENT: u16 = 10 << 8 | 13;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_HAS_TIMEOUT: u32 = 0x10;
const SET_IS_DYNAMIC: u32 = 0x20;
const ELEMENTS: u16 = 3;
const ERROR: u16 = 2;
/// Length of the netlink and netfilter headers.
const HEADERS: usize = 20;

impl Socket {
    pub fn open() -> Result<Self, NftError> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::NETFILTER),
        )
        .map_err(|error| NftError::Open(error.into()))?;
        bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(|error| NftError::Open(error.into()))?;
        Ok(Self { fd })
    }

    /// Applies the batch atomically.
    pub fn apply(&self, batch: Batch) -> Result<(), NftError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (writer, steps) = batch.finish();
        let bytes = writer.bytes();
        // The whole batch is one datagram, and each step gets a reply: both buffers must hold that.
        let _ = sockopt::set_socket_send_buffer_size_force(&self.fd, bytes.len() + 4096);
        let _ = sockopt::set_socket_recv_buffer_size_force(&self.fd, (steps.len() * 1024).max(212_992));
        sendto(&self.fd, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
            .map_err(|error| NftError::Send { bytes: bytes.len(), source: error.into() })?;
        self.answers(&steps)
    }

    /// Mark of a table; `None` if there is no table, or it has none.
    pub fn mark(&self, family: impl Into<TableFamily>, table: &str) -> Result<Option<Vec<u8>>, NftError> {
        const USER_DATA: u16 = 6;
        let mut writer = Writer::default();
        writer.message(GET_TABLE, REQUEST, 1, family.into().code(), 0, |out| out.text(1, table));
        let bytes = writer.bytes();
        sendto(&self.fd, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
            .map_err(|error| NftError::Send { bytes: bytes.len(), source: error.into() })?;
        let mut buffer = vec![0; 16 << 10];
        let (_, received) = recv(&self.fd, &mut buffer[..], RecvFlags::empty())
            .map_err(|error| NftError::Receive(error.into()))?;
        let answer = buffer.get(..received).unwrap_or_default();
        let Some((length, kind, _, code)) = header(answer) else { return Ok(None) };
        match kind {
            ERROR if code == 0 || io::Error::from_raw_os_error(-code).kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            ERROR => Err(NftError::Refused {
                step: format!("read table {table}"),
                source: io::Error::from_raw_os_error(-code),
            }),
            _ => Ok(attribute(answer.get(HEADERS..length).unwrap_or_default(), USER_DATA)),
        }
    }

    /// Number of the last change of any table in this network namespace.
    pub fn generation(&self) -> Result<u32, NftError> {
        const GET_GENERATION: u16 = 10 << 8 | 16;
        const NUMBER: u16 = 1;
        let mut writer = Writer::default();
        writer.message(GET_GENERATION, REQUEST, 1, 0, 0, |_| {});
        let answer = self.request(&writer)?;
        let body = header(&answer).and_then(|(length, ..)| answer.get(HEADERS..length)).unwrap_or_default();
        let number = attribute(body, NUMBER).and_then(|value| value.try_into().ok()).map(u32::from_be_bytes);
        number.ok_or_else(|| NftError::Receive(io::ErrorKind::InvalidData.into()))
    }

    /// Rules and elements of a table; `None` if there is no table.
    pub fn content(&self, family: impl Into<TableFamily>, table: &str) -> Result<Option<Content>, NftError> {
        let family = family.into().code();
        let mut writer = Writer::default();
        writer.message(GET_TABLE, REQUEST, 1, family, 0, |out| out.text(1, table));
        let answer = self.request(&writer)?;
        if header(&answer).is_none_or(|(_, kind, ..)| kind == ERROR) {
            return Ok(None);
        }
        let mut content = Content::default();
        self.dump(
            GET_RULE,
            family,
            |out| out.text(1, table),
            |body| {
                content.rules += 1;
                content.add(body);
            },
        )?;
        let mut sets = Vec::new();
        self.dump(
            GET_SET,
            family,
            |out| out.text(1, table),
            |body| {
                let name = attribute(body, SET_NAME).unwrap_or_default();
                let flags = attribute(body, SET_FLAGS)
                    .and_then(|value| value.try_into().ok())
                    .map(u32::from_be_bytes);
                // Packets add elements to these, which expire.
                if flags.unwrap_or_default() & (SET_HAS_TIMEOUT | SET_IS_DYNAMIC) == 0 {
                    sets.push(String::from_utf8_lossy(name.strip_suffix(&[0]).unwrap_or(&name)).into_owned());
                }
            },
        )?;
        for set in sets {
            content.add(set.as_bytes());
            let of_set = |out: &mut Writer| {
                out.text(1, table);
                out.text(2, &set);
            };
            self.dump(GET_ELEMENT, family, of_set, |body| {
                let list = attribute(body, ELEMENTS).unwrap_or_default();
                each_attribute(&list, |_, element| content.add(element));
            })?;
        }
        Ok(Some(content))
    }

    /// Sends a request and returns the reply.
    fn request(&self, writer: &Writer) -> Result<Vec<u8>, NftError> {
        let bytes = writer.bytes();
        sendto(&self.fd, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
            .map_err(|error| NftError::Send { bytes: bytes.len(), source: error.into() })?;
        self.receive()
    }

    fn receive(&self) -> Result<Vec<u8>, NftError> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => {
                    buffer.truncate(length);
                    return Ok(buffer);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(NftError::Receive(error.into())),
            }
        }
    }

    /// Calls `each` with the body of every object of a kind.
    fn dump(
        &self,
        kind: u16,
        family: u8,
        fill: impl FnOnce(&mut Writer),
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NftError> {
        const DUMP: u16 = 0x300;
        const DONE: u16 = 3;
        let mut writer = Writer::default();
        writer.message(kind, REQUEST | DUMP, 1, family, 0, fill);
        let mut answer = self.request(&writer)?;
        loop {
            let mut rest = &answer[..];
            while let Some((length, kind, _, code)) = header(rest) {
                match kind {
                    DONE => return Ok(()),
                    // The table or set was removed meanwhile.
                    ERROR if io::Error::from_raw_os_error(-code).kind() == io::ErrorKind::NotFound => {
                        return Ok(());
                    }
                    ERROR => {
                        let source = io::Error::from_raw_os_error(-code);
                        return Err(NftError::Refused { step: "read tables".to_owned(), source });
                    }
                    _ => each(rest.get(HEADERS..length).unwrap_or_default()),
                }
                rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            }
            answer = self.receive()?;
        }
    }

    fn answers(&self, steps: &[String]) -> Result<(), NftError> {
        let mut buffer = vec![0; 65536];
        let mut outcome = Ok(());
        let mut answered = 0;
        while answered < steps.len() {
            let received = match recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return outcome.and(Err(NftError::Receive(error.into()))),
            };
            let mut rest = &buffer[..received.min(buffer.len())];
            while let Some((length, kind, sequence, code)) = header(rest) {
                if kind == ERROR {
                    answered += 1;
                    if code != 0 && outcome.is_ok() {
                        let step = steps.get(sequence.wrapping_sub(1) as usize);
                        let step = step.map_or("commit batch", String::as_str).to_owned();
                        outcome =
                            Err(NftError::Refused { step, source: io::Error::from_raw_os_error(-code) });
                    }
                    // A batch rejected as a whole gets one reply.
                    if sequence == 0 || sequence as usize > steps.len() {
                        return outcome;
                    }
                }
                rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            }
        }
        outcome
    }
}

/// Finds the value of an attribute.
fn attribute(bytes: &[u8], wanted: u16) -> Option<Vec<u8>> {
    let mut found = None;
    each_attribute(bytes, |kind, value| {
        if kind == wanted && found.is_none() {
            found = Some(value.to_vec());
        }
    });
    found
}

/// Calls `each` with the type and value of every attribute; ends at malformed data.
fn each_attribute(mut bytes: &[u8], mut each: impl FnMut(u16, &[u8])) {
    while let Some(head) = bytes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(value) = bytes.get(4..length) else { return };
        each(u16::from_ne_bytes([head[2], head[3]]) & 0x3fff, value);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Parses length, type, sequence and error code of the first message in `bytes`.
fn header(bytes: &[u8]) -> Option<(usize, u16, u32, i32)> {
    let field = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let length = field(0)? as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let code = field(16).unwrap_or_default() as i32;
    (length >= 16 && length <= bytes.len()).then_some((length, kind, field(8)?, code))
}
