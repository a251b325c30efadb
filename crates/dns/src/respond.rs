//! Replies to queries for the cluster's own names. Pure.

use std::net::IpAddr;

use crate::names;
use crate::records::Records;
use crate::wire::{Name, Query, Reply, Section, flags, rcode, rtype};
use crate::zone::{Found, Zone};

/// The version of the DNS specification that is implemented.
const VERSION: &[u8] = b"\x051.1.0";
/// Limit of aliases followed inside the cluster.
const MAX_ALIASES: usize = 8;
const REFRESH: u32 = 7200;
const RETRY: u32 = 1800;
const EXPIRE: u32 = 86400;

/// Result of a query.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// The reply is in the buffer.
    Answered,
    /// Not a name of this cluster.
    Elsewhere,
    /// An alias of an external name: the reply should include that name's records. The buffer has a reply without them.
    Alias { target: Name },
}

/// An upstream record, its names uncompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub owner: Vec<u8>,
    pub kind: u16,
    pub ttl: u32,
    pub data: Vec<u8>,
}

/// Responds to `query` from the zone into `buffer`. `resolved` are the records of an external alias, once resolved.
///
/// ```
/// use dns::records::{Service, Target};
/// use dns::respond::{ResponseOutcome, respond};
/// use dns::wire::{CLASS_IN, Name, Query, rtype};
/// use dns::zone::Zone;
///
/// let zone = Zone::new("cluster.local", 30, Vec::new())?;
/// zone.set_namespace("default");
/// let target = Target::ClusterIps { addresses: vec![[10, 96, 0, 9].into()], ports: Vec::new() };
/// zone.set_service(&Service { namespace: "default".to_owned(), name: "web".to_owned(), target })?;
///
/// let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// message.extend(Name::parse("web.default.svc.cluster.local")?.wire());
/// message.extend([rtype::A.to_be_bytes(), CLASS_IN.to_be_bytes()].concat());
/// let query = Query::parse(&message).expect("a query");
/// let mut reply = Vec::new();
/// assert_eq!(respond(&zone, &query, 512, None, &mut reply), ResponseOutcome::Answered);
/// assert!(reply.ends_with(&[10, 96, 0, 9]));
/// # Ok::<(), dns::wire::NameError>(())
/// ```
pub fn respond(
    zone: &Zone,
    query: &Query<'_>,
    limit: usize,
    resolved: Option<&[Foreign]>,
    buffer: &mut Vec<u8>,
) -> ResponseOutcome {
    if query.edns.is_some_and(|edns| edns.version != 0) {
        bad_version(query, buffer);
        return ResponseOutcome::Answered;
    }
    if !query.is_internet() || matches!(query.rtype, rtype::AXFR | rtype::IXFR) {
        refuse(query, buffer, rcode::REFUSED);
        return ResponseOutcome::Answered;
    }
    match zone.find(query.name()) {
        Found::Elsewhere => return ResponseOutcome::Elsewhere,
        Found::Missing => negative(zone, query, rcode::NAME_ERROR, limit, buffer),
        Found::Records(records) => return from_records(zone, query, &records, limit, resolved, buffer),
        Found::Pod(address) => addresses(zone, query, &[address], limit, buffer),
        Found::Server => addresses(zone, query, &zone.own_addresses, limit, buffer),
        Found::Reverse(targets) => {
            one_type(zone, query, rtype::PTR, limit, buffer, |reply| {
                for target in &targets {
                    reply.record(Section::Answer, None, rtype::PTR, zone.ttl, target.wire());
                }
            });
        }
        Found::Version => one_type(zone, query, rtype::TXT, limit, buffer, |reply| {
            reply.record(Section::Answer, None, rtype::TXT, zone.ttl, VERSION);
        }),
        Found::Apex => apex(zone, query, limit, buffer),
    }
    ResponseOutcome::Answered
}

/// A reply without records, with a response code.
pub fn refuse(query: &Query<'_>, buffer: &mut Vec<u8>, code: u8) {
    Reply::begin(buffer, query, code, flags::RECURSION_AVAILABLE, usize::MAX).finish();
}

/// Unsupported EDNS version: reply with the supported one. The upper bits of the code are in the OPT record.
fn bad_version(query: &Query<'_>, buffer: &mut Vec<u8>) {
    refuse(query, buffer, rcode::NO_ERROR);
    let extended = buffer.len() - 6;
    buffer[extended] = 1;
}

fn begin<'b>(query: &Query<'_>, code: u8, limit: usize, buffer: &'b mut Vec<u8>) -> Reply<'b> {
    Reply::begin(buffer, query, code, flags::AUTHORITATIVE | flags::RECURSION_AVAILABLE, limit)
}

fn negative(zone: &Zone, query: &Query<'_>, code: u8, limit: usize, buffer: &mut Vec<u8>) {
    let mut reply = begin(query, code, limit, buffer);
    soa(zone, &mut reply, Section::Authority, Some(zone.domain().wire()));
    reply.finish();
}

fn soa(zone: &Zone, reply: &mut Reply<'_>, section: Section, owner: Option<&[u8]>) {
    let mut data = Vec::with_capacity(96);
    data.extend(zone.soa_primary.wire());
    data.extend(zone.soa_mailbox.wire());
    for number in [zone.serial(), REFRESH, RETRY, EXPIRE, zone.ttl] {
        data.extend(number.to_be_bytes());
    }
    reply.record(section, owner, rtype::SOA, zone.ttl, &data);
}

fn one_type(
    zone: &Zone,
    query: &Query<'_>,
    kind: u16,
    limit: usize,
    buffer: &mut Vec<u8>,
    write: impl FnOnce(&mut Reply<'_>),
) {
    if query.rtype != kind {
        return negative(zone, query, rcode::NO_ERROR, limit, buffer);
    }
    let mut reply = begin(query, rcode::NO_ERROR, limit, buffer);
    write(&mut reply);
    reply.finish();
}

fn apex(zone: &Zone, query: &Query<'_>, limit: usize, buffer: &mut Vec<u8>) {
    match query.rtype {
        rtype::SOA => {
            one_type(zone, query, rtype::SOA, limit, buffer, |reply| soa(zone, reply, Section::Answer, None))
        }
        rtype::NS => one_type(zone, query, rtype::NS, limit, buffer, |reply| {
            let server = zone.soa_primary.wire();
            reply.record(Section::Answer, None, rtype::NS, zone.ttl, server);
            for &address in &zone.own_addresses {
                glue(reply, Some(server), zone.ttl, address);
            }
        }),
        _ => negative(zone, query, rcode::NO_ERROR, limit, buffer),
    }
}

fn glue(reply: &mut Reply<'_>, owner: Option<&[u8]>, ttl: u32, address: IpAddr) {
    match address {
        IpAddr::V4(address) => reply.ipv4(Section::Additional, owner, ttl, address),
        IpAddr::V6(address) => reply.ipv6(Section::Additional, owner, ttl, address),
    }
}

fn addresses(zone: &Zone, query: &Query<'_>, all: &[IpAddr], limit: usize, buffer: &mut Vec<u8>) {
    if !all.iter().any(|address| names::answers(*address, query.rtype)) {
        return negative(zone, query, rcode::NO_ERROR, limit, buffer);
    }
    let mut reply = begin(query, rcode::NO_ERROR, limit, buffer);
    for address in all.iter().filter(|address| names::answers(**address, query.rtype)) {
        match *address {
            IpAddr::V4(address) => reply.ipv4(Section::Answer, None, zone.ttl, address),
            IpAddr::V6(address) => reply.ipv6(Section::Answer, None, zone.ttl, address),
        }
    }
    reply.finish();
}

fn from_records(
    zone: &Zone,
    query: &Query<'_>,
    records: &Records,
    limit: usize,
    resolved: Option<&[Foreign]>,
    buffer: &mut Vec<u8>,
) -> ResponseOutcome {
    if let Some(alias) = &records.cname {
        return from_alias(zone, query, alias, limit, resolved, buffer);
    }
    let empty = match query.rtype {
        rtype::A => records.ipv4.is_empty(),
        rtype::AAAA => records.ipv6.is_empty(),
        rtype::SRV => records.srv.is_empty(),
        _ => true,
    };
    if empty {
        negative(zone, query, rcode::NO_ERROR, limit, buffer);
        return ResponseOutcome::Answered;
    }
    let mut reply = begin(query, rcode::NO_ERROR, limit, buffer);
    if query.rtype == rtype::SRV {
        services(zone, &mut reply, records);
    } else {
        own_addresses(zone, &mut reply, None, query.rtype, records);
    }
    reply.finish();
    ResponseOutcome::Answered
}

/// Addresses of `records` of type `kind`, rotated with each reply.
fn own_addresses(zone: &Zone, reply: &mut Reply<'_>, owner: Option<&[u8]>, kind: u16, records: &Records) {
    if kind == rtype::A {
        for &address in in_turn(&records.ipv4, zone) {
            reply.ipv4(Section::Answer, owner, zone.ttl, address);
        }
    } else if kind == rtype::AAAA {
        for &address in in_turn(&records.ipv6, zone) {
            reply.ipv6(Section::Answer, owner, zone.ttl, address);
        }
    }
}

fn in_turn<'a, T>(all: &'a [T], zone: &Zone) -> impl Iterator<Item = &'a T> {
    let first = if all.len() > 1 { zone.turn() % all.len() } else { 0 };
    all[first..].iter().chain(&all[..first])
}

fn services(zone: &Zone, reply: &mut Reply<'_>, records: &Records) {
    let weight = (100 / records.srv.len().max(1)).max(1) as u16;
    // Offset of each target's name in the message, for compression in the additional records.
    let mut written: Vec<(&Name, usize)> = Vec::new();
    let mut data = Vec::with_capacity(64);
    for srv in in_turn(&records.srv, zone) {
        data.clear();
        data.extend(0_u16.to_be_bytes());
        data.extend(weight.to_be_bytes());
        data.extend(srv.port.to_be_bytes());
        data.extend(srv.target.wire());
        let at = reply.record(Section::Answer, None, rtype::SRV, zone.ttl, &data);
        if let Some(at) = at
            && !written.iter().any(|(name, _)| *name == &srv.target)
        {
            written.push((&srv.target, at + 6));
        }
    }
    for (target, at) in written {
        // A pointer reaches the first 16 kB of a message.
        let pointer = u16::try_from(at).ok().filter(|at| *at < 0x4000).map(|at| (at | 0xc000).to_be_bytes());
        let owner = pointer.as_ref().map_or(target.wire(), |pointer| &pointer[..]);
        if let Some(records) = zone.records(target.wire()) {
            for &address in &records.ipv4 {
                reply.ipv4(Section::Additional, Some(owner), zone.ttl, address);
            }
            for &address in &records.ipv6 {
                reply.ipv6(Section::Additional, Some(owner), zone.ttl, address);
            }
        }
    }
}

/// An external name: the alias, and the records of its target if that is in this cluster too.
fn from_alias(
    zone: &Zone,
    query: &Query<'_>,
    alias: &Name,
    limit: usize,
    resolved: Option<&[Foreign]>,
    buffer: &mut Vec<u8>,
) -> ResponseOutcome {
    if query.rtype != rtype::CNAME && !matches!(query.rtype, rtype::A | rtype::AAAA) {
        negative(zone, query, rcode::NO_ERROR, limit, buffer);
        return ResponseOutcome::Answered;
    }
    let mut reply = begin(query, rcode::NO_ERROR, limit, buffer);
    reply.record(Section::Answer, None, rtype::CNAME, zone.ttl, alias.wire());
    let mut at = alias.clone();
    let mut outcome = ResponseOutcome::Answered;
    for _ in 0..MAX_ALIASES {
        if query.rtype == rtype::CNAME {
            break;
        }
        match zone.find(at.wire()) {
            Found::Elsewhere => {
                match resolved {
                    Some(records) => {
                        for record in records {
                            let Foreign { owner, kind, ttl, data } = record;
                            reply.record(Section::Answer, Some(owner), *kind, *ttl, data);
                        }
                    }
                    None => outcome = ResponseOutcome::Alias { target: at },
                }
                break;
            }
            Found::Records(records) => match &records.cname {
                Some(next) => {
                    reply.record(Section::Answer, Some(at.wire()), rtype::CNAME, zone.ttl, next.wire());
                    at = next.clone();
                }
                None => {
                    own_addresses(zone, &mut reply, Some(at.wire()), query.rtype, &records);
                    break;
                }
            },
            _ => break,
        }
    }
    reply.finish();
    outcome
}

#[cfg(test)]
mod tests;
