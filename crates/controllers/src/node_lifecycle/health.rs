//! Node health: heartbeats, taints by condition, and eviction rates of zones. Pure.

use std::collections::BTreeMap;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Node, NodeCondition, Taint};
use objects::meta::v1::Time;

use crate::Settings;
use crate::shared::node_facts::{self, condition};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Eviction rate in nodes per second: normal, and in a large disrupted zone.
const RATE: f64 = 0.1;
const REDUCED_RATE: f64 = 0.01;
/// Minimum number of nodes of a large zone.
const LARGE_ZONE: usize = 50;
/// Fraction of unhealthy nodes from which a zone is disrupted.
const TROUBLE: f64 = 0.55;

/// Conditions that become unknown with the node, and conditions that imply a taint.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
const TAINTS_BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Time left until the grace period since the last heartbeat `last_heartbeat` ends.
#[must_use]
pub fn silence_left(
    node: &Node,
    last_heartbeat: Timestamp,
    now: Timestamp,
    settings: &Settings,
) -> SignedDuration {
    let is_known = condition(node, "Ready").is_some();
    let grace = if is_known { settings.node_monitor_grace } else { settings.node_startup_grace };
    time_left(grace, last_heartbeat, now)
}

/// Conditions of a node past its grace period; `None` if they are up to date.
#[must_use]
pub fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions =
        node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in KUBELET_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(known) if known.status == "Unknown" => {}
            Some(known) => {
                known.status = "Unknown".to_owned();
                known.reason = Some("NodeStatusUnknown".to_owned());
                known.message = Some("Kubelet stopped posting node status.".to_owned());
                known.last_transition_time = Some(Time(now));
                changed = true;
            }
            None => {
                conditions.push(NodeCondition {
                    type_: kind.to_owned(),
                    status: "Unknown".to_owned(),
                    reason: Some("NodeStatusNeverUpdated".to_owned()),
                    message: Some("Kubelet never posted node status.".to_owned()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
                changed = true;
            }
        }
    }
    changed.then_some(conditions)
}

/// Taints of the node with the NoSchedule taints of its conditions; `None` if they are up to date.
#[must_use]
pub fn schedule_taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let holds =
        |kind: &str, value: &str| condition(node, kind).is_some_and(|condition| condition.status == value);
    let mut wanted: Vec<&str> = TAINTS_BY_CONDITION
        .iter()
        .filter(|(kind, value, _)| holds(kind, value))
        .map(|(_, _, key)| *key)
        .collect();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        wanted.push(UNSCHEDULABLE);
    }
    let ours =
        |key: &str| key == UNSCHEDULABLE || TAINTS_BY_CONDITION.iter().any(|(_, _, known)| *known == key);
    swap(node, "NoSchedule", &wanted, ours, now)
}

/// NoExecute taint of the node's ready condition.
#[must_use]
pub fn eviction_taint(node: &Node) -> Option<&'static str> {
    match condition(node, "Ready").map(|condition| condition.status.as_str()) {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        _ => None,
    }
}

/// Taints of the node with `wanted` as the only NoExecute health taint.
#[must_use]
pub fn execute_taints(node: &Node, wanted: Option<&str>, now: Timestamp) -> Option<Vec<Taint>> {
    swap(node, "NoExecute", wanted.as_slice(), |key| matches!(key, NOT_READY | UNREACHABLE), now)
}

/// True if the node has a NoExecute health taint.
#[must_use]
pub fn is_evicting(node: &Node) -> bool {
    let ours =
        |taint: &Taint| taint.effect == "NoExecute" && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE);
    node_facts::taints(node).iter().any(ours)
}

fn swap(
    node: &Node,
    effect: &str,
    wanted: &[&str],
    ours: impl Fn(&str) -> bool,
    now: Timestamp,
) -> Option<Vec<Taint>> {
    let before = node_facts::taints(node);
    let managed = |taint: &Taint| taint.effect == effect && ours(&taint.key);
    let mut after: Vec<Taint> = before
        .iter()
        .filter(|taint| !managed(taint) || wanted.contains(&taint.key.as_str()))
        .cloned()
        .collect();
    for key in wanted {
        if !after.iter().any(|taint| taint.key == *key && taint.effect == effect) {
            after.push(Taint {
                key: (*key).to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    (after != before).then_some(after)
}

/// Zone key of a node: region and zone.
#[must_use]
pub fn zone(node: &Node) -> String {
    let label = |keys: [&str; 2]| {
        let labels = node.metadata.labels.as_ref();
        keys.iter().find_map(|key| labels.and_then(|labels| labels.get(*key)).cloned()).unwrap_or_default()
    };
    let region = label(["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"]);
    let zone = label(["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]);
    format!("{region}:{zone}")
}

/// Eviction rate of zones.
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionRate {
    /// No node of any zone is ready: the fault is probably in the control plane, and nothing is evicted.
    Halted,
    /// Nodes per second in this zone.
    Rate(f64),
}

/// Eviction rate of a zone, given all nodes.
#[must_use]
pub fn eviction_rate<'a>(zone_of: &str, nodes: impl Iterator<Item = &'a Node>) -> EvictionRate {
    let zones = zones(nodes);
    if zones.values().all(|zone| zone.ready == 0) {
        return EvictionRate::Halted;
    }
    let zone = zones.get(zone_of).copied().unwrap_or_default();
    let (ready, sick, all) = (zone.ready, zone.unhealthy, zone.size());
    let in_trouble = ready > 0 && sick > 2 && sick as f64 / all as f64 >= TROUBLE;
    EvictionRate::Rate(match in_trouble {
        false => RATE,
        true if all > LARGE_ZONE => REDUCED_RATE,
        true => 0.0,
    })
}

/// Nodes of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneNodes {
    pub ready: usize,
    pub unhealthy: usize,
}

impl ZoneNodes {
    #[must_use]
    pub fn size(self) -> usize {
        self.ready + self.unhealthy
    }

    /// Percentage of ready nodes.
    #[must_use]
    pub fn health(self) -> f64 {
        if self.size() == 0 { 100.0 } else { 100.0 * self.ready as f64 / self.size() as f64 }
    }
}

/// Numbers of nodes by zone, without those that are excluded from disruption.
#[must_use]
pub fn zones<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeMap<String, ZoneNodes> {
    let mut zones: BTreeMap<String, ZoneNodes> = BTreeMap::new();
    let excluded = |node: &Node| {
        node.metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key("node.kubernetes.io/exclude-disruption"))
    };
    for node in nodes.filter(|node| !excluded(node)) {
        let zone = zones.entry(zone(node)).or_default();
        let count = if node_facts::is_ready(node) { &mut zone.ready } else { &mut zone.unhealthy };
        *count += 1;
    }
    zones
}

/// Rate limiter of a zone: time of the next permitted eviction.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvictionLimiter {
    next: Option<Timestamp>,
}

impl EvictionLimiter {
    /// Takes a permit for one node, or returns the time to wait at this rate.
    pub fn take(&mut self, rate: f64, now: Timestamp) -> Result<(), SignedDuration> {
        if rate <= 0.0 {
            return Err(SignedDuration::from_secs(30));
        }
        let period = SignedDuration::try_from_secs_f64(1.0 / rate).unwrap_or(SignedDuration::from_secs(100));
        match self.next.filter(|next| *next > now) {
            Some(next) => Err(next.duration_since(now).min(period)),
            None => {
                self.next = now.checked_add(period).ok();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, time};
    use objects::core::v1::{NodeSpec, NodeStatus};
    use objects::meta::v1::ObjectMeta;

    fn node(ready: Option<&str>, zone: &str) -> Node {
        let condition = |status: &str| NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            last_heartbeat_time: Some(time(5)),
            ..NodeCondition::default()
        };
        Node {
            metadata: ObjectMeta {
                name: Some("n".into()),
                labels: Some([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec::default()),
            status: Some(NodeStatus {
                conditions: ready.map(|ready| vec![condition(ready)]),
                ..Default::default()
            }),
        }
    }

    #[test]
    fn missing_heartbeat_sets_conditions_unknown_once() {
        let mut silent = node(Some("True"), "a");
        assert_eq!(silence_left(&silent, at(100), at(130), &Settings::default()).as_secs(), 20);
        assert_eq!(silence_left(&node(None, "a"), at(100), at(130), &Settings::default()).as_secs(), 30);
        let conditions = silenced(&silent, at(200)).expect("conditions");
        assert_eq!(conditions.len(), 4);
        assert!(conditions.iter().all(|condition| condition.status == "Unknown"));
        assert_eq!(conditions[0].reason.as_deref(), Some("NodeStatusUnknown"));
        assert_eq!(conditions[1].reason.as_deref(), Some("NodeStatusNeverUpdated"));
        silent.status.get_or_insert_default().conditions = Some(conditions);
        assert_eq!(silenced(&silent, at(300)), None);
    }

    #[test]
    fn taints_follow_conditions_and_leave_others_alone() {
        let mut sick = node(Some("False"), "a");
        let other = Taint { key: "gpu".into(), effect: "NoSchedule".into(), ..Taint::default() };
        sick.spec.get_or_insert_default().taints = Some(vec![other.clone()]);
        let taints = schedule_taints(&sick, at(10)).expect("taints");
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["gpu", NOT_READY]);
        sick.spec.get_or_insert_default().taints = Some(taints);
        assert_eq!(schedule_taints(&sick, at(20)), None);
        assert_eq!(eviction_taint(&sick), Some(NOT_READY));
        let taints = execute_taints(&sick, Some(NOT_READY), at(20)).expect("taints");
        assert_eq!(taints.len(), 3);
        sick.spec.get_or_insert_default().taints = Some(taints);
        assert!(is_evicting(&sick));
        // From not ready to unreachable.
        let taints = execute_taints(&sick, Some(UNREACHABLE), at(30)).expect("taints");
        assert_eq!(taints.iter().filter(|taint| taint.effect == "NoExecute").count(), 1);
        let mut cordoned = node(Some("True"), "a");
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        assert_eq!(schedule_taints(&cordoned, at(1)).expect("taints")[0].key, UNSCHEDULABLE);
    }

    #[test]
    fn disrupted_zone_lowers_eviction_rate() {
        let fleet = |ready: usize, sick: usize, zone: &str| {
            let ready = (0..ready).map(|_| node(Some("True"), zone));
            ready.chain((0..sick).map(|_| node(Some("Unknown"), zone))).collect::<Vec<_>>()
        };
        assert_eq!(eviction_rate(":a", fleet(9, 1, "a").iter()), EvictionRate::Rate(RATE));
        assert_eq!(eviction_rate(":a", fleet(2, 3, "a").iter()), EvictionRate::Rate(0.0));
        assert_eq!(eviction_rate(":a", fleet(20, 40, "a").iter()), EvictionRate::Rate(REDUCED_RATE));
        assert_eq!(eviction_rate(":a", fleet(0, 3, "a").iter()), EvictionRate::Halted);
        let two: Vec<_> = fleet(0, 3, "a").into_iter().chain(fleet(3, 0, "b")).collect();
        assert_eq!(eviction_rate(":a", two.iter()), EvictionRate::Rate(RATE));
    }

    #[test]
    fn eviction_permits_are_rate_limited() {
        let mut budget = EvictionLimiter::default();
        assert_eq!(budget.take(0.1, at(100)), Ok(()));
        assert_eq!(budget.take(0.1, at(104)), Err(SignedDuration::from_secs(6)));
        assert_eq!(budget.take(0.1, at(110)), Ok(()));
        assert!(budget.take(0.0, at(200)).is_err());
    }
}
