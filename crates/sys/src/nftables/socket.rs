//! Netlink socket that sends batches and reads the replies to each step.

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
        const GET_TABLE: u16 = 10 << 8 | 1;
        const REQUEST: u16 = 1;
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
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<Vec<u8>> {
    loop {
        let head = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = bytes.get(4..length)?;
        if u16::from_ne_bytes([head[2], head[3]]) & 0x3fff == wanted {
            return Some(value.to_vec());
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
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
