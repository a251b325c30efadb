//! Topology hints of endpoints: by the service's traffic distribution, or distributed over zones in proportion to
//! their CPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use machinery::quantity::Quantity;
use objects::core::v1::{Node, Service};
use objects::discovery::v1::{Endpoint, EndpointHints, ForNode, ForZone};

use super::plan::zone;
use crate::shared::node_facts;

const MODE: &str = "service.kubernetes.io/topology-mode";
/// Deprecated name of the annotation.
const OLD_MODE: &str = "service.kubernetes.io/topology-aware-hints";
/// Nodes with one of these labels run no ordinary pods.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Maximum overload of an endpoint relative to the average.
const OVERLOAD: f64 = 0.2;

/// Reason why endpoints cannot be distributed over zones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHints {
    #[error("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes")]
    Nodes,
    #[error("Insufficient number of endpoints ({0} endpoints, {1} zones)")]
    Endpoints(usize, usize),
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold ({0} endpoints, {1} zones)"
    )]
    Overload(usize, usize),
    #[error("One or more endpoints do not have a zone specified")]
    Zone,
}

/// Share of each zone in the CPUs.
pub type Shares = BTreeMap<String, f64>;

/// True if a service enables topology-aware hints.
pub fn wants_zones(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| all.get(OLD_MODE).or_else(|| all.get(MODE)));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// Properties of a node that affect hints.
pub fn capacity(node: &Node) -> Option<(Option<String>, i64)> {
    let labels = node.metadata.labels.as_ref();
    let excluded =
        |labels: &BTreeMap<String, String>| CONTROL_PLANE.iter().any(|key| labels.contains_key(*key));
    if labels.is_some_and(excluded) || !node_facts::is_ready(node) {
        return None;
    }
    let cpu = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get("cpu"));
    let cpu = cpu.and_then(|cpu| Quantity::parse(&cpu.0).ok()).map_or(0, |cpu| cpu.milli_value());
    Some((zone(node).cloned(), cpu))
}

/// Shares of all zones, if every node reports CPU and zone and there are at least two zones.
pub fn shares(nodes: &[Arc<Node>]) -> Result<Shares, NoHints> {
    let mut by_zone: BTreeMap<String, i64> = BTreeMap::new();
    for (zone, cpu) in nodes.iter().filter_map(|node| capacity(node)) {
        let zone = zone.filter(|_| cpu > 0).ok_or(NoHints::Nodes)?;
        *by_zone.entry(zone).or_default() += cpu;
    }
    if by_zone.len() < 2 {
        return Err(NoHints::Nodes);
    }
    let total: i64 = by_zone.values().sum();
    Ok(by_zone.into_iter().map(|(zone, cpu)| (zone, cpu as f64 / total as f64)).collect())
}

struct Allocation {
    desired: f64,
    maximum: usize,
    hinted: usize,
}

pub fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

fn for_zone(zone: &str) -> EndpointHints {
    EndpointHints { for_zones: Some(vec![ForZone { name: zone.to_owned() }]), for_nodes: None }
}

/// Distributes ready endpoints over zones. Existing hints stay as long as their zone is not overloaded; other
/// endpoints serve their own zone, unless another one needs them more.
pub fn share_out(endpoints: &mut [Endpoint], shares: &Result<Shares, NoHints>) -> Result<(), NoHints> {
    let outcome = allocate(endpoints, shares);
    if outcome.is_err() {
        endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    }
    outcome
}

fn allocate(endpoints: &mut [Endpoint], shares: &Result<Shares, NoHints>) -> Result<(), NoHints> {
    let shares = shares.as_ref().map_err(Clone::clone)?;
    let ready = endpoints.iter().filter(|endpoint| is_ready(endpoint)).count();
    if shares.len() > ready {
        return Err(NoHints::Endpoints(ready, shares.len()));
    }
    let minimum = |share: f64| (share * ready as f64 / (1.0 + OVERLOAD)).ceil() as usize;
    let least: usize = shares.values().map(|share| minimum(*share)).sum();
    let spare = ready.checked_sub(least).ok_or(NoHints::Overload(ready, shares.len()))?;
    let mut zones: BTreeMap<String, Allocation> = shares
        .iter()
        .map(|(zone, share)| {
            let least = minimum(*share);
            let desired = (share * ready as f64).max(least as f64);
            (zone.clone(), Allocation { desired, maximum: least + spare, hinted: 0 })
        })
        .collect();
    let mut free = Vec::new();
    for (at, endpoint) in endpoints.iter_mut().enumerate() {
        if !is_ready(endpoint) {
            endpoint.hints = None;
            continue;
        }
        if endpoint.zone.as_ref().is_none_or(String::is_empty) {
            return Err(NoHints::Zone);
        }
        let hinted = endpoint.hints.take().and_then(|hints| hints.for_zones?.into_iter().next());
        match hinted.and_then(|hint| zones.get_mut(&hint.name).map(|zone| (hint, zone))) {
            Some((hint, zone)) if zone.hinted < zone.maximum => {
                zone.hinted += 1;
                endpoint.hints = Some(for_zone(&hint.name));
            }
            _ => free.push(at),
        }
    }
    for at in &free {
        let own = endpoints[*at].zone.clone().unwrap_or_default();
        if let Some(zone) = zones.get_mut(&own) {
            zone.hinted += 1;
        }
        endpoints[*at].hints = Some(for_zone(&own));
    }
    let (mut giving, mut receiving) = moves(&zones);
    for at in free {
        let own = endpoints[at].zone.clone().unwrap_or_default();
        let Some(left) = giving.get_mut(&own).filter(|left| **left > 0) else { continue };
        let Some((zone, wanted)) = receiving.iter_mut().find(|(_, wanted)| **wanted > 0) else { break };
        *left -= 1;
        *wanted -= 1;
        endpoints[at].hints = Some(for_zone(zone));
    }
    Ok(())
}

/// Number of endpoints that each zone gives up, and that each receives.
fn moves(zones: &BTreeMap<String, Allocation>) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let difference = |zone: &Allocation| zone.hinted as f64 - zone.desired;
    let mut too_many: BTreeMap<&String, f64> =
        zones.iter().map(|(name, zone)| (name, difference(zone))).filter(|(_, more)| *more > 0.0).collect();
    let mut too_few: BTreeMap<&String, f64> =
        zones.iter().map(|(name, zone)| (name, -difference(zone))).filter(|(_, less)| *less > 0.0).collect();
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    let most = |of: &BTreeMap<&String, f64>| {
        of.iter().max_by(|one, other| one.1.total_cmp(other.1)).map(|(name, count)| ((*name).clone(), *count))
    };
    while let (Some((from, give)), Some((to, need))) = (most(&too_many), most(&too_few)) {
        if (give < 1.0 && need < 1.0) || give < 0.5 || need < 0.5 {
            break;
        }
        for (left, name) in [(&mut too_many, &from), (&mut too_few, &to)] {
            if let Some(left) = left.get_mut::<String>(name) {
                *left -= 1.0;
            }
        }
        *giving.entry(from).or_default() += 1;
        *receiving.entry(to).or_default() += 1;
    }
    (giving, receiving)
}

/// Hints of an endpoint by the service's traffic distribution.
pub fn near(service: &Service, endpoint: &Endpoint) -> Option<EndpointHints> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    if !matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode") || !is_ready(endpoint) {
        return None;
    }
    let for_zones = endpoint.zone.clone().map(|name| vec![ForZone { name }]);
    let node = endpoint.node_name.clone().filter(|_| distribution == "PreferSameNode");
    let for_nodes = node.map(|name| vec![ForNode { name }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;
    use objects::discovery::v1::EndpointConditions;
    use serde_json::json;

    fn endpoint(zone: &str, hint: &str) -> Endpoint {
        Endpoint {
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            zone: Some(zone.to_owned()).filter(|zone| !zone.is_empty()),
            hints: Some(hint).filter(|hint| !hint.is_empty()).map(for_zone),
            ..Endpoint::default()
        }
    }

    fn hinted(endpoints: &[Endpoint]) -> String {
        let zone = |endpoint: &Endpoint| {
            let hints = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_ref());
            hints.and_then(|zones| zones.first()).map_or("-".to_owned(), |zone| zone.name.clone())
        };
        endpoints.iter().map(zone).collect()
    }

    #[test]
    fn hints_distribute_endpoints_by_cpu() {
        let even: Shares = [("a".to_owned(), 0.5), ("b".to_owned(), 0.5)].into();
        let uneven: Shares = [("a".to_owned(), 0.75), ("b".to_owned(), 0.25)].into();
        // Zones of the endpoints, existing hints, shares, and expected hints.
        for (zones, before, shares, expected) in [
            ("ab", "  ", &even, Ok("ab")),
            ("aaaa", "    ", &even, Ok("bbaa")),
            ("aaaa", "bbaa", &even, Ok("bbaa")),
            ("aabb", "    ", &uneven, Ok("aaab")),
            ("aaaabbbb", "        ", &uneven, Ok("aaaaaabb")),
            ("a", " ", &even, Err(NoHints::Endpoints(1, 2))),
            ("aab.", "    ", &even, Err(NoHints::Zone)),
            // A removed zone: its endpoints serve another one.
            ("aabb", "ccbb", &even, Ok("aabb")),
        ] {
            let mut endpoints: Vec<Endpoint> = zones
                .chars()
                .zip(before.chars())
                .map(|(zone, hint)| {
                    let zone = if zone == '.' { String::new() } else { zone.to_string() };
                    endpoint(&zone, hint.to_string().trim())
                })
                .collect();
            let outcome = share_out(&mut endpoints, &Ok(shares.clone()));
            match expected {
                Ok(hints) => assert_eq!((outcome, hinted(&endpoints).as_str()), (Ok(()), hints), "{zones}"),
                Err(error) => {
                    assert_eq!(outcome, Err(error));
                    assert!(endpoints.iter().all(|endpoint| endpoint.hints.is_none()));
                }
            }
        }
    }

    #[test]
    fn hints_require_cpu_and_zone_of_every_node() {
        let node = |zone: &str, cpu: &str, ready: &str, role: &str| {
            let mut metadata = meta("n");
            metadata.labels = Some([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())].into());
            if !role.is_empty() {
                metadata.labels.get_or_insert_default().insert(role.to_owned(), String::new());
            }
            let status =
                json!({"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]});
            Arc::new(Node { metadata, status: serde_json::from_value(status).expect("a status"), spec: None })
        };
        let two = [node("a", "1", "True", ""), node("b", "3", "True", "")];
        assert_eq!(shares(&two), Ok([("a".to_owned(), 0.25), ("b".to_owned(), 0.75)].into()));
        for (more, expected) in [
            (node("", "1", "True", ""), Err(NoHints::Nodes)),
            (node("c", "0", "True", ""), Err(NoHints::Nodes)),
            (node("", "1", "False", ""), shares(&two)),
            (node("c", "9", "True", CONTROL_PLANE[0]), shares(&two)),
        ] {
            let all = [Arc::clone(&two[0]), Arc::clone(&two[1]), more];
            assert_eq!(shares(&all), expected);
        }
        assert_eq!(shares(&two[..1]), Err(NoHints::Nodes));
    }

    #[test]
    fn traffic_distribution_sets_zone_and_node_hints() {
        for (distribution, zone, node, expected) in [
            ("PreferSameZone", "z", "n", Some((true, false))),
            ("PreferClose", "z", "n", Some((true, false))),
            ("PreferSameNode", "z", "n", Some((true, true))),
            ("PreferSameNode", "", "n", Some((false, true))),
            ("PreferSameZone", "", "n", None),
            ("Elsewhere", "z", "n", None),
        ] {
            let mut service = Service { metadata: meta("s"), ..Service::default() };
            service.spec.get_or_insert_default().traffic_distribution = Some(distribution.to_owned());
            let mut one = endpoint(zone, "");
            one.node_name = Some(node.to_owned());
            let hints = near(&service, &one);
            let present = hints.map(|hints| (hints.for_zones.is_some(), hints.for_nodes.is_some()));
            assert_eq!(present, expected, "{distribution} in {zone:?}");
        }
    }
}
