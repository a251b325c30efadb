//! The node IPAM loop. Watches nodes; gives each its part of the cluster's pod addresses.
//!
//! Invariant: no two nodes have overlapping ranges, whatever the cache shows.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use async_trait::async_trait;
use client::Patch;
use objects::core::v1::Node;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::node_facts;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-ipam-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 1,
};

/// Setting: the ranges that nodes get their parts of, one per family; without it the loop does nothing.
#[derive(Clone, Debug, Default)]
pub struct ClusterCidrs {
    /// Ranges and the prefix length of a node's part.
    pub ranges: Vec<(Cidr, u8)>,
    /// Addresses of services, which no node may have.
    pub reserved: Vec<Cidr>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no range of addresses")]
pub struct InvalidCidr(String);

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    base: u128,
    length: u8,
    v6: bool,
}

impl Cidr {
    pub fn parse(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = || InvalidCidr(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(invalid)?;
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let length: u8 = length.parse().map_err(|_| invalid())?;
        let (bits, v6) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), false),
            IpAddr::V6(address) => (address.to_bits(), true),
        };
        let range = Self { base: bits, length, v6 };
        if length > range.width() {
            return Err(invalid());
        }
        Ok(Self { base: bits & !range.host_mask(), ..range })
    }

    fn width(self) -> u8 {
        if self.v6 { 128 } else { 32 }
    }

    fn host_mask(self) -> u128 {
        let host = u32::from(self.width() - self.length);
        if host == 128 { u128::MAX } else { (1_u128 << host) - 1 }
    }

    #[must_use]
    pub fn is_v6(self) -> bool {
        self.v6
    }

    /// The range of one address.
    #[must_use]
    pub fn of_address(text: &str) -> Option<Self> {
        let length = if text.contains(':') { 128 } else { 32 };
        Self::parse(&format!("{text}/{length}")).ok()
    }

    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let (first, last) =
            (self.base.max(other.base), (self.base | self.host_mask()).min(other.base | other.host_mask()));
        self.v6 == other.v6 && first <= last
    }

    /// The n-th part of this length.
    fn part(self, length: u8, index: u128) -> Option<Self> {
        let parts = u32::from(length.checked_sub(self.length)?);
        if length > self.width() || (parts < 128 && index >= (1_u128 << parts)) {
            return None;
        }
        let shift = u32::from(self.width() - length);
        Some(Self { base: self.base | index.checked_shl(shift).unwrap_or(0), length, v6: self.v6 })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.v6 {
            return write!(f, "{}/{}", std::net::Ipv6Addr::from_bits(self.base), self.length);
        }
        let base = u32::try_from(self.base).unwrap_or(0);
        write!(f, "{}/{}", std::net::Ipv4Addr::from_bits(base), self.length)
    }
}

struct NodeIpam {
    nodes: Cache<Node>,
    /// Given to nodes whose new spec the cache may not show yet.
    given: Mutex<HashMap<String, Vec<Cidr>>>,
    /// Where the next search begins, per range: parts are reused as late as possible.
    next: Mutex<Vec<u128>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let nodes = ctx.watch::<Node>(|change| match change {
        Change::Updated { new, .. } if !cidrs(new).is_empty() => Vec::new(),
        _ => vec![Key::of(&**change.object())],
    });
    Box::new(NodeIpam { nodes, given: Mutex::default(), next: Mutex::default() })
}

fn cidrs(node: &Node) -> Vec<Cidr> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let mut parsed: Vec<_> = all.filter_map(|text| Cidr::parse(text).ok()).collect();
    parsed.dedup();
    parsed
}

#[async_trait]
impl Loop for NodeIpam {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(node) = self.nodes.get_key(key) else {
            self.given.lock().remove(&*key.name);
            return Ok(Action::Done);
        };
        if !cidrs(&node).is_empty() {
            return Ok(Action::Done);
        }
        let Some(settings) = ctx.setting::<ClusterCidrs>().filter(|settings| !settings.ranges.is_empty())
        else {
            return Ok(Action::Done);
        };
        let Some(parts) = self.allocate(&key.name, settings) else {
            ctx.recorder.normal(
                &*node,
                "CIDRNotAvailable",
                format!("Node {} status is now: CIDRNotAvailable", key.name),
            );
            return Err(Exhausted.into());
        };
        let texts: Vec<_> = parts.iter().map(ToString::to_string).collect();
        let patch = Patch::Strategic(json!({ "spec": { "podCIDR": texts[0], "podCIDRs": texts } }));
        if let Err(error) = ctx.client.patch::<Node>("", &key.name, None, &patch).await {
            if error.is_not_found() || error.is_invalid() {
                self.given.lock().remove(&*key.name);
            }
            if error.is_not_found() {
                return Ok(Action::Done);
            }
            let note = format!("Node {} status is now: CIDRAssignmentFailed", key.name);
            ctx.recorder.normal(&*node, "CIDRAssignmentFailed", note);
            return Err(error.into());
        }
        tracing::debug!(node = node_facts::name(&node), cidrs = ?texts, "addresses for the pods of a node");
        Ok(Action::Done)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no range of pod addresses is left")]
struct Exhausted;

impl NodeIpam {
    fn allocate(&self, name: &str, settings: &ClusterCidrs) -> Option<Vec<Cidr>> {
        let mut given = self.given.lock();
        if let Some(known) = given.get(name) {
            return Some(known.clone());
        }
        let nodes = self.nodes.all();
        let mut taken: HashSet<Cidr> = nodes.iter().flat_map(|node| cidrs(node)).collect();
        taken.extend(given.values().flatten().copied());
        let mut next = self.next.lock();
        next.resize(settings.ranges.len(), 0);
        let mut parts = Vec::new();
        for ((range, length), next) in settings.ranges.iter().zip(next.iter_mut()) {
            let (part, after) = find(*range, *length, *next, &taken, &settings.reserved)?;
            *next = after;
            parts.push(part);
        }
        given.insert(name.to_owned(), parts.clone());
        Some(parts)
    }
}

/// The first free part at or after `from`, around the end if need be, and where to look next.
fn find(
    range: Cidr,
    length: u8,
    from: u128,
    taken: &HashSet<Cidr>,
    reserved: &[Cidr],
) -> Option<(Cidr, u128)> {
    // Parts of one length that are taken are equal; anything else is compared.
    let odd: Vec<Cidr> =
        taken.iter().filter(|cidr| cidr.length != length && cidr.v6 == range.v6).copied().collect();
    let free =
        |part: Cidr| !taken.contains(&part) && !odd.iter().chain(reserved).any(|other| part.overlaps(*other));
    let mut tried = 0_u64;
    for index in (from..).chain(0..from) {
        let Some(part) = range.part(length, index) else {
            if index >= from && from > 0 {
                return (0..from).find_map(|index| {
                    let part = range.part(length, index)?;
                    free(part).then_some((part, index + 1))
                });
            }
            return None;
        };
        if free(part) {
            return Some((part, index + 1));
        }
        tried += 1;
        if tried > 1 << 20 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).expect("a range")
    }

    #[test]
    fn ranges_are_read_and_written() {
        for (text, expected) in [
            ("10.0.0.9/8", "10.0.0.0/8"),
            ("fd00::1/64", "fd00::/64"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(cidr(text).to_string(), expected);
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", ""] {
            assert!(Cidr::parse(text).is_err(), "{text}");
        }
        assert!(cidr("10.0.0.0/8").overlaps(cidr("10.1.0.0/16")));
        assert!(!cidr("10.0.0.0/16").overlaps(cidr("10.1.0.0/16")));
        assert_eq!(
            cidr("10.0.0.0/8").part(24, 257).map(|part| part.to_string()).as_deref(),
            Some("10.1.1.0/24")
        );
        assert_eq!(cidr("10.0.0.0/24").part(25, 2), None);
        assert_eq!(
            cidr("fd00::/48").part(64, 3).map(|part| part.to_string()).as_deref(),
            Some("fd00:0:0:3::/64")
        );
    }

    #[test]
    fn parts_are_given_once_and_around_the_end() {
        let range = cidr("10.0.0.0/22");
        let mut taken = HashSet::from([cidr("10.0.1.0/24")]);
        let (first, next) = find(range, 24, 0, &taken, &[]).expect("a part");
        assert_eq!((first.to_string().as_str(), next), ("10.0.0.0/24", 1));
        taken.insert(first);
        let (second, next) = find(range, 24, next, &taken, &[cidr("10.0.2.0/25")]).expect("a part");
        assert_eq!((second.to_string().as_str(), next), ("10.0.3.0/24", 4));
        taken.remove(&first);
        let (again, _) = find(range, 24, next, &taken, &[]).expect("a part");
        assert_eq!(again, first);
        taken.extend(["10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/24"].map(cidr));
        assert_eq!(find(range, 24, 2, &taken, &[]), None);
    }
}
