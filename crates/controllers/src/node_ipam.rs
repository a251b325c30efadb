//! The node IPAM loop. Watches nodes; allocates each its part of the cluster's pod CIDRs.
//!
//! Invariant: no two nodes have overlapping CIDRs, even if the cache is stale.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use async_trait::async_trait;
use client::Patch;
use ipnet::IpNet;
use objects::core::v1::Node;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::shared::metrics::{self, NodeMetrics};
use crate::shared::node_facts;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-ipam-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:node-controller",
    workers: 1,
};

/// Setting: the CIDRs from which nodes are served, one per IP family; without it the loop does nothing.
#[derive(Clone, Debug, Default)]
pub struct ClusterCidrs {
    /// CIDRs and the mask size of a node's part.
    pub ranges: Vec<(IpNet, u8)>,
    /// Service CIDRs, which are excluded.
    pub reserved: Vec<IpNet>,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid CIDR {0:?}")]
pub struct InvalidCidr(String);

/// Parses a CIDR; host bits are cleared.
pub fn parse_cidr(text: &str) -> Result<IpNet, InvalidCidr> {
    text.parse::<IpNet>().map(|cidr| cidr.trunc()).map_err(|_| InvalidCidr(text.to_owned()))
}

fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// The n-th subnet of a CIDR with this mask size.
fn subnet(cidr: IpNet, length: u8, index: u128) -> Option<IpNet> {
    let parts = u32::from(length.checked_sub(cidr.prefix_len())?);
    let shift = u32::from(cidr.max_prefix_len().checked_sub(length)?);
    if parts < 128 && index >= (1_u128 << parts) {
        return None;
    }
    let offset = index.checked_shl(shift).unwrap_or(0);
    let address: IpAddr = match cidr.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() | u32::try_from(offset).ok()?).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() | offset).into(),
    };
    IpNet::new(address, length).ok()
}

struct NodeIpam {
    nodes: Cache<Node>,
    /// Allocations to nodes whose new spec the cache may not show yet.
    given: Mutex<HashMap<String, Vec<IpNet>>>,
    /// Start of the next search by CIDR: subnets are reused as late as possible.
    next: Mutex<Vec<u128>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let metrics = metrics::of(ctx).map(|metrics| metrics.nodes.clone());
    let ranges = ctx.setting::<ClusterCidrs>().map(|settings| settings.ranges.clone()).unwrap_or_default();
    let (released, known) = (metrics.clone(), ranges.clone());
    let nodes = ctx.watch::<Node>(move |change| match change {
        Change::Updated { new, .. } if !cidrs(new).is_empty() => Vec::new(),
        _ => {
            if let (Change::Deleted(node), Some(metrics)) = (change, &released) {
                for range in cidrs(node).into_iter().filter_map(|cidr| range_of(&known, cidr)) {
                    metrics.cidr_releases.with_label_values(&[range]).inc();
                }
            }
            vec![Key::of(&**change.object())]
        }
    });
    if let Some(metrics) = metrics.filter(|_| !ranges.is_empty()) {
        show(ctx, &metrics, &nodes, ranges);
    }
    Box::new(NodeIpam { nodes, given: Mutex::default(), next: Mutex::default() })
}

/// Cluster CIDR that contains a node's, as a label.
fn range_of(ranges: &[(IpNet, u8)], cidr: IpNet) -> Option<String> {
    ranges.iter().find(|(range, _)| range.contains(&cidr)).map(|(range, _)| range.to_string())
}

/// Number of subnets of a cluster CIDR.
fn capacity(range: IpNet, length: u8) -> f64 {
    f64::from(length.saturating_sub(range.prefix_len())).exp2()
}

/// Shows the use of the cluster CIDRs.
fn show(ctx: &Context, metrics: &NodeMetrics, nodes: &Cache<Node>, ranges: Vec<(IpNet, u8)>) {
    metrics.running.compute(&ctx.tasks, |rows| {
        rows.with_label_values(&["nodeipam", "kube-controller-manager"]).set(1.0);
    });
    let all = ranges.clone();
    metrics.max_cidrs.compute(&ctx.tasks, move |rows| {
        for (range, length) in &all {
            rows.with_label_values(&[range.to_string()]).set(capacity(*range, *length));
        }
    });
    let nodes = nodes.clone();
    metrics.cidr_usage.compute(&ctx.tasks, move |rows| {
        let taken: Vec<IpNet> = nodes.all().iter().flat_map(|node| cidrs(node)).collect();
        for (range, length) in &ranges {
            let used = taken.iter().filter(|cidr| range.contains(*cidr)).count();
            rows.with_label_values(&[range.to_string()]).set(used as f64 / capacity(*range, *length));
        }
    });
}

fn cidrs(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    let mut parsed: Vec<_> = all.filter_map(|text| parse_cidr(text).ok()).collect();
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
        let metrics = metrics::of(ctx).map(|metrics| &metrics.nodes);
        let Some(parts) = self.allocate(&key.name, settings, metrics) else {
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
        tracing::debug!(node = node_facts::name(&node), cidrs = ?texts, "allocated pod CIDRs");
        Ok(Action::Done)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no remaining pod CIDRs to allocate")]
struct Exhausted;

impl NodeIpam {
    fn allocate(
        &self,
        name: &str,
        settings: &ClusterCidrs,
        metrics: Option<&NodeMetrics>,
    ) -> Option<Vec<IpNet>> {
        let mut given = self.given.lock();
        if let Some(known) = given.get(name) {
            return Some(known.clone());
        }
        let nodes = self.nodes.all();
        let mut taken: HashSet<IpNet> = nodes.iter().flat_map(|node| cidrs(node)).collect();
        taken.extend(given.values().flatten().copied());
        let mut next = self.next.lock();
        next.resize(settings.ranges.len(), 0);
        let mut parts = Vec::new();
        for ((range, length), next) in settings.ranges.iter().zip(next.iter_mut()) {
            let from = *next;
            let (part, after) = find(*range, *length, from, &taken, &settings.reserved)?;
            *next = after;
            if let Some(metrics) = metrics {
                // A search that wraps around has tried all subnets after its start, too.
                let rest = if after > from { 0.0 } else { capacity(*range, *length) };
                let label = range.to_string();
                metrics.cidr_allocations.with_label_values(&[&label]).inc();
                let tries = after as f64 - from as f64 - 1.0 + rest;
                metrics.cidr_tries.with_label_values(&[&label]).observe(tries);
            }
            parts.push(part);
        }
        given.insert(name.to_owned(), parts.clone());
        Some(parts)
    }
}

/// First free subnet at or after `from`, wrapping around, and the start of the next search.
fn find(
    range: IpNet,
    length: u8,
    from: u128,
    taken: &HashSet<IpNet>,
    reserved: &[IpNet],
) -> Option<(IpNet, u128)> {
    // Allocated subnets of the same size are equal; others are compared for overlap.
    let odd: Vec<IpNet> = taken
        .iter()
        .filter(|cidr| cidr.prefix_len() != length && cidr.addr().is_ipv6() == range.addr().is_ipv6())
        .copied()
        .collect();
    let free = |part: IpNet| {
        !taken.contains(&part) && !odd.iter().chain(reserved).any(|other| overlap(part, *other))
    };
    let mut tried = 0_u64;
    for index in (from..).chain(0..from) {
        let Some(part) = subnet(range, length, index) else {
            if index >= from && from > 0 {
                return (0..from).find_map(|index| {
                    let part = subnet(range, length, index)?;
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

    fn cidr(text: &str) -> IpNet {
        parse_cidr(text).expect("a range")
    }

    #[test]
    fn cidr_parse_and_display_round_trip() {
        for (text, expected) in [
            ("10.0.0.9/8", "10.0.0.0/8"),
            ("fd00::1/64", "fd00::/64"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(cidr(text).to_string(), expected);
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", ""] {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
        assert!(overlap(cidr("10.0.0.0/8"), cidr("10.1.0.0/16")));
        assert!(!overlap(cidr("10.0.0.0/16"), cidr("10.1.0.0/16")));
        assert_eq!(
            subnet(cidr("10.0.0.0/8"), 24, 257).map(|part| part.to_string()).as_deref(),
            Some("10.1.1.0/24")
        );
        assert_eq!(subnet(cidr("10.0.0.0/24"), 25, 2), None);
        assert_eq!(
            subnet(cidr("fd00::/48"), 64, 3).map(|part| part.to_string()).as_deref(),
            Some("fd00:0:0:3::/64")
        );
    }

    #[test]
    fn subnets_are_allocated_once_and_wrap_around() {
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
