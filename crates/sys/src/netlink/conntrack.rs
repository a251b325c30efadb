//! Conntrack entries of UDP: it has no connection end, so stale entries must be deleted explicitly.

use std::io;
use std::net::IpAddr;

use super::{DUMP, Message, Netlink, address_of, attributes};

const NETFILTER: i32 = 12;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const NEW: u16 = 0x100;
const NFGENMSG: usize = 4;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const UDP: u8 = 17;

/// A flow with its conntrack identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Original destination of the client.
    pub destination: (IpAddr, u16),
    /// Replying endpoint.
    pub answers: (IpAddr, u16),
    key: Vec<u8>,
}

/// A conntrack netlink socket.
#[derive(Debug)]
pub struct Conntrack(Netlink);

impl Conntrack {
    pub fn open() -> io::Result<Self> {
        Netlink::open_family(NETFILTER).map(Self)
    }

    /// Lists all UDP flows of one family.
    pub fn udp_flows(&mut self, ipv4: bool) -> io::Result<Vec<Flow>> {
        let answers = self.0.request(Message::new(GET, DUMP).raw(&head(ipv4)))?;
        let flows = answers.iter().filter(|(kind, _)| *kind == NEW);
        Ok(flows.filter_map(|(_, body)| flow(body)).collect())
    }

    /// Deletes a flow; a missing one is no error.
    pub fn forget(&mut self, flow: &Flow) -> io::Result<()> {
        const NESTED: u16 = 0x8000;
        let message = Message::new(DELETE, 0)
            .raw(&head(flow.destination.0.is_ipv4()))
            .attribute(TUPLE_ORIGINAL | NESTED, &flow.key);
        match self.0.request(message) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }
}

fn head(ipv4: bool) -> [u8; NFGENMSG] {
    [if ipv4 { 2 } else { 10 }, 0, 0, 0]
}

fn flow(body: &[u8]) -> Option<Flow> {
    let (mut original, mut reply) = (None, None);
    for (kind, data) in attributes(body.get(NFGENMSG..)?) {
        match kind {
            TUPLE_ORIGINAL => original = Some(data),
            TUPLE_REPLY => reply = Some(data),
            _ => {}
        }
    }
    let (original, reply) = (original?, reply?);
    let (_, destination) = tuple(original)?;
    let (answers, _) = tuple(reply)?;
    Some(Flow { destination, answers, key: original.to_vec() })
}

type Side = (IpAddr, u16);

/// Source and destination of one direction; `None` if it is not UDP.
fn tuple(data: &[u8]) -> Option<(Side, Side)> {
    const ADDRESSES: u16 = 1;
    const PROTOCOL: u16 = 2;
    let (mut source, mut destination, mut ports) = (None, None, None);
    for (kind, data) in attributes(data) {
        match kind {
            ADDRESSES => {
                for (kind, data) in attributes(data) {
                    match kind {
                        1 | 3 => source = address_of(data),
                        2 | 4 => destination = address_of(data),
                        _ => {}
                    }
                }
            }
            PROTOCOL => {
                let port = |data: &[u8]| data.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
                let (mut number, mut from, mut to) = (0, None, None);
                for (kind, data) in attributes(data) {
                    match kind {
                        1 => number = *data.first()?,
                        2 => from = port(data),
                        3 => to = port(data),
                        _ => {}
                    }
                }
                ports = from.zip(to).filter(|_| number == UDP);
            }
            _ => {}
        }
    }
    let (from, to) = ports?;
    Some(((source?, from), (destination?, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_attributes_parse() {
        let side = |source: [u8; 4], from: u16, destination: [u8; 4], to: u16| {
            move |message: Message| {
                message.nested(1, |message| message.attribute(1, &source).attribute(2, &destination)).nested(
                    2,
                    |message| {
                        message
                            .attribute(1, &[UDP])
                            .attribute(2, &from.to_be_bytes())
                            .attribute(3, &to.to_be_bytes())
                    },
                )
            }
        };
        let message = Message::new(NEW, 0)
            .raw(&head(true))
            .nested(TUPLE_ORIGINAL, side([10, 1, 0, 9], 4000, [10, 96, 0, 10], 53))
            .nested(TUPLE_REPLY, side([10, 1, 0, 2], 5353, [10, 1, 0, 9], 4000));
        let flow = flow(&message.0[super::super::HEADER..]).expect("a flow");
        assert_eq!(flow.destination, ([10, 96, 0, 10].into(), 53));
        assert_eq!(flow.answers, ([10, 1, 0, 2].into(), 5353));
        for broken in [&b""[..], &[2, 0, 0, 0], &[2, 0, 0, 0, 255, 255, 1, 0], &[0; 40]] {
            assert!(super::flow(broken).is_none());
        }
    }
}
