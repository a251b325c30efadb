//! PodTopologySpread: spreads matching pods over zones, hosts or other domains of a topology label; hard constraints
//! reject nodes that exceed the maximum skew, soft ones lower their score.

use std::sync::Arc;

use objects::core::v1::TopologySpreadConstraint;

use crate::framework::{Actions, Changed, Cycle, Filter, MAX_NODE_SCORE, Plugin, PreFilter, Rejection};
use crate::state::{
    Cluster, Labels, NO_DOMAIN, NodeInfo, PodInfo, PodMatch, Requirement, Selector, SpreadConstraint,
    TermMatch, TopologyKey, forbid,
};

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const REASON_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const HOSTNAME: &str = "kubernetes.io/hostname";

pub struct PodTopologySpread {
    defaults: Vec<SpreadConstraint>,
    /// True for the built-in defaults, for which nodes may lack labels.
    system: bool,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        let soft = |key: &str, max_skew| SpreadConstraint {
            topology_key: key.into(),
            max_skew,
            min_domains: 1,
            hard: false,
            selector: Selector::Nothing,
            honor_affinity: true,
            honor_taints: false,
        };
        Self { defaults: vec![soft(HOSTNAME, 3), soft("topology.kubernetes.io/zone", 5)], system: true }
    }
}

impl PodTopologySpread {
    /// Sets the constraints of pods that have none.
    #[must_use]
    pub fn with_defaults(defaults: &[TopologySpreadConstraint]) -> Self {
        let defaults = defaults.iter().map(|constraint| SpreadConstraint::of(constraint, None)).collect();
        Self { defaults, system: false }
    }

    fn constraints(&self, cluster: &Cluster, pod: &PodInfo, hard: bool) -> Vec<SpreadConstraint> {
        if !pod.spread.is_empty() {
            return pod.spread.iter().filter(|constraint| constraint.hard == hard).cloned().collect();
        }
        if !self.defaults.iter().any(|constraint| constraint.hard == hard) {
            return Vec::new();
        }
        let selector = default_selector(cluster, pod);
        if selector.is_empty() {
            return Vec::new();
        }
        let wanted = self.defaults.iter().filter(|constraint| constraint.hard == hard);
        wanted
            .map(|constraint| SpreadConstraint { selector: selector.clone(), ..constraint.clone() })
            .collect()
    }
}

/// Selector of the services and the owner of a pod; empty if it has none.
fn default_selector(cluster: &Cluster, pod: &PodInfo) -> Selector {
    let objects = &cluster.objects;
    let mut requirements = Vec::new();
    for service in objects.services.list(&pod.namespace) {
        let Some(labels) = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { continue };
        if labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value)) {
            requirements.extend(labels.iter().map(|(key, value)| Requirement::equals(key, value)));
        }
    }
    let owners = pod.pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return Selector::new(requirements);
    };
    let selector = match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("v1", "ReplicationController") => {
            let found = objects.replication_controllers.get(&pod.namespace, &owner.name);
            let labels = found.and_then(|found| found.spec.as_ref()?.selector.as_ref());
            requirements
                .extend(labels.into_iter().flatten().map(|(key, value)| Requirement::equals(key, value)));
            None
        }
        ("apps/v1", "ReplicaSet") => {
            let found = objects.replica_sets.get(&pod.namespace, &owner.name);
            found.and_then(|found| found.spec.as_ref()).map(|spec| Selector::of(Some(&spec.selector)))
        }
        ("apps/v1", "StatefulSet") => {
            let found = objects.stateful_sets.get(&pod.namespace, &owner.name);
            found.and_then(|found| found.spec.as_ref()).map(|spec| Selector::of(Some(&spec.selector)))
        }
        _ => None,
    };
    if let Some(Selector::All(own)) = selector {
        requirements.extend(own);
    }
    Selector::new(requirements)
}

/// True if a node's domain is counted.
fn counts(constraint: &SpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> bool {
    !(constraint.honor_affinity
        && !pod.required_nodes.is_empty()
        && !pod.required_nodes.matches(&node.name, &node.labels)
        || constraint.honor_taints && forbid(&node.taints, &pod.tolerations))
}

/// Number of matching pods by slot.
fn with_counts<R>(
    cycle: Cycle<'_>,
    constraint: &SpreadConstraint,
    read: impl FnOnce(&dyn Fn(usize) -> i64) -> R,
) -> R {
    if constraint.selector.is_empty() {
        return read(&|_| 0);
    }
    let pods = TermMatch::within(&cycle.pod.namespace, constraint.selector.clone());
    let question = PodMatch { terms: Box::new([pods]), skip_terminating: true };
    cycle.cluster.count_pods(&question, |per_slot, _| {
        read(&|slot| i64::from(per_slot.get(slot).copied().unwrap_or(0)))
    })
}

const ABSENT: i64 = -1;

/// A constraint with its counts.
#[derive(Clone)]
struct Counted {
    constraint: SpreadConstraint,
    key: Arc<TopologyKey>,
    /// Per domain; `ABSENT` for domains without an eligible node.
    counts: Vec<i64>,
    domains: usize,
    lowest: i64,
    own: i64,
}

impl Counted {
    fn settle(&mut self) {
        self.domains = self.counts.iter().filter(|count| **count != ABSENT).count();
        let lowest = self.counts.iter().copied().filter(|count| *count != ABSENT).min().unwrap_or(0);
        self.lowest = if self.domains < self.constraint.min_domains { 0 } else { lowest };
    }
}

#[derive(Clone)]
struct PodTopologySpreadFilter<'a> {
    pod: &'a PodInfo,
    constraints: Vec<Counted>,
}

impl PodTopologySpreadFilter<'_> {
    fn change(&mut self, pod: &PodInfo, node: &NodeInfo, by: i64) {
        if pod.namespace != self.pod.namespace
            || self.constraints.iter().any(|counted| counted.key.domain(node.slot) == NO_DOMAIN)
        {
            return;
        }
        for counted in &mut self.constraints {
            if !counted.constraint.selector.matches(&pod.labels)
                || !counts(&counted.constraint, self.pod, node)
            {
                continue;
            }
            let domain = counted.key.domain(node.slot) as usize;
            if let Some(count) = counted.counts.get_mut(domain) {
                *count = (*count).max(0) + by;
            }
            counted.settle();
        }
    }
}

impl<'a> Filter<'a> for PodTopologySpreadFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        for counted in &self.constraints {
            let domain = counted.key.domain(node.slot);
            if domain == NO_DOMAIN {
                return Err(Rejection::unresolvable(REASON_LABEL));
            }
            let count = counted.counts.get(domain as usize).copied().unwrap_or(0).max(0);
            if count + counted.own - counted.lowest > counted.constraint.max_skew {
                return Err(Rejection::unschedulable(REASON));
            }
        }
        Ok(())
    }

    fn add(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.change(pod, node, 1);
    }

    fn remove(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.change(pod, node, -1);
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for PodTopologySpread {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let constraints = self.constraints(cycle.cluster, cycle.pod, true);
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        let keys: Vec<_> =
            constraints.iter().map(|constraint| cycle.cluster.topology(&constraint.topology_key)).collect();
        let complete = |slot: &&usize| keys.iter().all(|key| key.domain(**slot) != NO_DOMAIN);
        let slots: Vec<usize> = cycle.cluster.order().iter().filter(complete).copied().collect();
        let counted = constraints.into_iter().zip(&keys).map(|(constraint, key)| {
            let mut counted = vec![ABSENT; key.domains()];
            with_counts(cycle, &constraint, |on| {
                for slot in &slots {
                    if counts(&constraint, cycle.pod, cycle.cluster.node_at(*slot)) {
                        let count = &mut counted[key.domain(*slot) as usize];
                        *count = (*count).max(0) + on(*slot);
                    }
                }
            });
            let own = i64::from(constraint.selector.matches(&cycle.pod.labels));
            let mut counted =
                Counted { constraint, key: Arc::clone(key), counts: counted, domains: 0, lowest: 0, own };
            counted.settle();
            counted
        });
        PreFilter::Check(Box::new(PodTopologySpreadFilter { pod: cycle.pod, constraints: counted.collect() }))
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let constraints = self.constraints(cycle.cluster, cycle.pod, false);
        if constraints.is_empty() {
            return false;
        }
        let need_all = !cycle.pod.spread.is_empty() || !self.system;
        let keys: Vec<_> =
            constraints.iter().map(|constraint| cycle.cluster.topology(&constraint.topology_key)).collect();
        let complete = |slot: usize| !need_all || keys.iter().all(|key| key.domain(slot) != NO_DOMAIN);
        let ignored: Vec<bool> = nodes.iter().map(|node| !complete(node.slot)).collect();
        let mut raw = vec![0.0; nodes.len()];
        for (constraint, key) in constraints.iter().zip(&keys) {
            let by_host = &*constraint.topology_key == HOSTNAME;
            // Only domains of feasible nodes are counted; a missing label is a domain of its own.
            let mut sums = vec![ABSENT; key.domains()];
            let mut missing = false;
            for (node, ignored) in nodes.iter().zip(&ignored) {
                match key.domain(node.slot) {
                    _ if *ignored => {}
                    NO_DOMAIN => missing = true,
                    domain => sums[domain as usize] = 0,
                }
            }
            let size = if by_host {
                ignored.iter().filter(|ignored| !**ignored).count()
            } else {
                sums.iter().filter(|sum| **sum != ABSENT).count() + usize::from(missing)
            };
            let weight = ((size + 2) as f64).ln();
            with_counts(cycle, constraint, |on| {
                if !by_host {
                    for slot in cycle.cluster.order() {
                        let domain = key.domain(*slot);
                        if domain == NO_DOMAIN
                            || sums[domain as usize] == ABSENT
                            || !complete(*slot)
                            || !counts(constraint, cycle.pod, cycle.cluster.node_at(*slot))
                        {
                            continue;
                        }
                        sums[domain as usize] += on(*slot);
                    }
                }
                for ((node, raw), ignored) in nodes.iter().zip(&mut raw).zip(&ignored) {
                    let domain = key.domain(node.slot);
                    if *ignored || domain == NO_DOMAIN {
                        continue;
                    }
                    let count = if by_host { on(node.slot) } else { sums[domain as usize] };
                    *raw += count as f64 * weight + (constraint.max_skew - 1) as f64;
                }
            });
        }
        for (score, raw) in scores.iter_mut().zip(raw) {
            *score = raw.round() as i64;
        }
        flip(scores, &ignored);
        true
    }

    fn interests(&self) -> Actions {
        Actions::POD_ADD
            .or(Actions::POD_LABEL)
            .or(Actions::POD_TOLERATION)
            .or(Actions::POD_DELETE)
            .or(Actions::NODE_ADD)
            .or(Actions::NODE_DELETE)
            .or(Actions::NODE_LABEL)
            .or(Actions::NODE_TAINT)
    }

    fn helps(&self, cluster: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        let constraints = self.constraints(cluster, pod, true);
        let concerns =
            |labels: &Labels| constraints.iter().any(|constraint| constraint.selector.matches(labels));
        match changed {
            Changed::Pod { old, new } => {
                let involved = |other: &PodInfo| {
                    other.uid == pod.uid
                        || (other.node_name().is_some() || other.nominated_node().is_some())
                            && other.namespace == pod.namespace
                };
                if !old.into_iter().chain(new).all(involved) {
                    return false;
                }
                match (old, new) {
                    (Some(old), Some(new)) => {
                        let tolerates = new.uid == pod.uid
                            && new.tolerations != old.tolerations
                            && constraints.iter().any(|constraint| constraint.honor_taints);
                        let differs = |constraint: &SpreadConstraint| {
                            constraint.selector.matches(&old.labels)
                                != constraint.selector.matches(&new.labels)
                        };
                        tolerates || constraints.iter().any(differs)
                    }
                    (Some(only), None) | (None, Some(only)) => concerns(&only.labels),
                    (None, None) => true,
                }
            }
            Changed::Node { old, new } => {
                let complete = |node: &NodeInfo| {
                    constraints.iter().all(|constraint| node.labels.get(&constraint.topology_key).is_some())
                };
                match (old, new) {
                    (Some(old), Some(new)) => {
                        let moved = || {
                            constraints.iter().any(|constraint| {
                                old.labels.get(&constraint.topology_key)
                                    != new.labels.get(&constraint.topology_key)
                            }) || old.taints != new.taints
                        };
                        complete(old) != complete(new) || complete(new) && moved()
                    }
                    (Some(only), None) | (None, Some(only)) => complete(only),
                    (None, None) => true,
                }
            }
            _ => true,
        }
    }
}

/// Fewer matching pods score higher; ignored nodes score 0.
fn flip(scores: &mut [i64], ignored: &[bool]) {
    let valid = || scores.iter().zip(ignored).filter(|(_, ignored)| !**ignored).map(|(score, _)| *score);
    let lowest = valid().min().unwrap_or(i64::MAX);
    let highest = valid().max().unwrap_or(0).max(0);
    for (score, ignored) in scores.iter_mut().zip(ignored) {
        *score = match (ignored, highest) {
            (true, _) => 0,
            (false, 0) => MAX_NODE_SCORE,
            (false, highest) => MAX_NODE_SCORE * (highest + lowest - *score) / highest,
        };
    }
}

#[cfg(test)]
#[path = "pod_topology_spread_tests.rs"]
mod tests;
