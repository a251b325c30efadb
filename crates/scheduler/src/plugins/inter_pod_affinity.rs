//! InterPodAffinity: affinity and anti-affinity between pods, of incoming and of running pods.

use std::sync::Arc;

use crate::framework::{Actions, Changed, Cycle, Filter, MAX_NODE_SCORE, Plugin, PreFilter, Rejection};
use crate::state::{
    AffinityTerm, Cluster, Labels, NO_DOMAIN, NodeInfo, PodInfo, PodMatch, PodTerms, TermKind, TermMatch,
    TopologyKey,
};

const REASON_EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
const REASON_AFFINITY: &str = "node(s) didn't match pod affinity rules";
const REASON_ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";

pub struct InterPodAffinity {
    /// Score weight of a running pod's required affinity to an incoming pod.
    pub hard_weight: i64,
    pub ignore_preferences_of_running_pods: bool,
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self { hard_weight: 1, ignore_preferences_of_running_pods: false }
    }
}

/// Counts per domain of one topology label.
#[derive(Clone)]
struct Domains {
    label: Box<str>,
    key: Arc<TopologyKey>,
    counts: Vec<i64>,
    /// Number of domains with a count other than zero.
    used: usize,
}

impl Domains {
    fn change(&mut self, slot: usize, by: i64) {
        let domain = self.key.domain(slot);
        if domain == NO_DOMAIN || by == 0 {
            return;
        }
        let domain = domain as usize;
        if self.counts.len() <= domain {
            self.counts.resize(domain + 1, 0);
        }
        let count = &mut self.counts[domain];
        let before = *count;
        *count += by;
        match (before, *count) {
            (0, _) => self.used += 1,
            (_, 0) => self.used -= 1,
            _ => {}
        }
    }

    /// `None` when the node lacks the label.
    fn at(&self, slot: usize) -> Option<i64> {
        let domain = self.key.domain(slot);
        (domain != NO_DOMAIN).then(|| self.counts.get(domain as usize).copied().unwrap_or(0))
    }
}

/// Counts per domain for several labels.
#[derive(Clone, Default)]
struct Scores(Vec<Domains>);

impl Scores {
    fn of(&mut self, cluster: &Cluster, label: &str) -> &mut Domains {
        let at = match self.0.iter().position(|domains| *domains.label == *label) {
            Some(at) => at,
            None => {
                let key = cluster.topology(label);
                self.0.push(Domains { label: label.into(), counts: vec![0; key.domains()], key, used: 0 });
                self.0.len() - 1
            }
        };
        &mut self.0[at]
    }

    fn find(&self, label: &str) -> Option<&Domains> {
        self.0.iter().find(|domains| *domains.label == *label)
    }

    fn find_mut(&mut self, label: &str) -> Option<&mut Domains> {
        self.0.iter_mut().find(|domains| *domains.label == *label)
    }

    fn is_used(&self) -> bool {
        self.0.iter().any(|domains| domains.used > 0)
    }
}

#[derive(Clone)]
struct InterPodAffinityFilter<'a> {
    cluster: &'a Cluster,
    pod: &'a PodInfo,
    namespace: &'a Labels,
    affinity: &'a [AffinityTerm],
    anti_affinity: &'a [AffinityTerm],
    /// Pods that match all affinity terms.
    near: Scores,
    /// Pods that match an anti-affinity term.
    far: Scores,
    /// Running pods with a term against this one.
    refused: Scores,
    matches_itself: bool,
}

fn all(terms: &[AffinityTerm]) -> PodMatch {
    PodMatch { terms: terms.iter().map(|term| term.pods.clone()).collect(), skip_terminating: false }
}

fn one(term: &TermMatch) -> PodMatch {
    PodMatch { terms: Box::new([term.clone()]), skip_terminating: false }
}

fn no_labels() -> &'static Labels {
    static NONE: std::sync::OnceLock<Labels> = std::sync::OnceLock::new();
    NONE.get_or_init(Labels::default)
}

fn labels_of<'a>(cluster: &'a Cluster, namespace: &str) -> &'a Labels {
    use crate::state::NamespaceLabels;
    cluster.objects.labels_of(namespace).unwrap_or_else(|| no_labels())
}

impl InterPodAffinityFilter<'_> {
    fn change(&mut self, pod: &PodInfo, node: &NodeInfo, by: i64) {
        let namespace = labels_of(self.cluster, &pod.namespace);
        if all(self.affinity).matches(pod, namespace) {
            for term in self.affinity {
                if let Some(domains) = self.near.find_mut(&term.topology_key) {
                    domains.change(node.slot, by);
                }
            }
        }
        for term in self.anti_affinity {
            if term.pods.matches(pod, namespace)
                && let Some(domains) = self.far.find_mut(&term.topology_key)
            {
                domains.change(node.slot, by);
            }
        }
        for term in pod.terms.iter().flat_map(|terms| &terms.required_anti_affinity) {
            if term.pods.matches(self.pod, self.namespace) {
                self.refused.of(self.cluster, &term.topology_key).change(node.slot, by);
            }
        }
    }

    fn affinity_is_met(&self, slot: usize) -> bool {
        let mut met = true;
        for term in self.affinity {
            match self.near.find(&term.topology_key).and_then(|domains| domains.at(slot)) {
                None => return false,
                Some(count) => met &= count > 0,
            }
        }
        // The first pod of a group with affinity to itself may go to any node.
        met || !self.near.is_used() && self.matches_itself
    }
}

impl<'a> Filter<'a> for InterPodAffinityFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let occupied = |domains: &Domains| domains.at(node.slot).is_some_and(|count| count > 0);
        if !self.affinity_is_met(node.slot) {
            return Err(Rejection::unresolvable(REASON_AFFINITY));
        }
        if self.far.0.iter().any(occupied) {
            return Err(Rejection::unschedulable(REASON_ANTI_AFFINITY));
        }
        if self.refused.0.iter().any(occupied) {
            return Err(Rejection::unschedulable(REASON_EXISTING));
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

/// Adds the matches of a query on each slot, times `weight`, to the domains of a label.
fn tally(cluster: &Cluster, question: &PodMatch, domains: &mut Domains, weight: i64) {
    cluster.count_pods(question, |per_slot, total| {
        if total == 0 {
            return;
        }
        for (slot, count) in per_slot.iter().enumerate() {
            domains.change(slot, i64::from(*count) * weight);
        }
    });
}

impl Plugin for InterPodAffinity {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let Cycle { cluster, pod } = cycle;
        let (affinity, anti_affinity): (&[AffinityTerm], &[AffinityTerm]) = match &pod.terms {
            Some(terms) => (&terms.required_affinity, &terms.required_anti_affinity),
            None => (&[], &[]),
        };
        let namespace = labels_of(cluster, &pod.namespace);
        let mut refused = Scores::default();
        for (kind, term, slots) in cluster.terms().iter() {
            if kind == TermKind::RequiredAntiAffinity && term.pods.matches(pod, namespace) {
                let domains = refused.of(cluster, &term.topology_key);
                for (slot, count) in slots {
                    domains.change(*slot, i64::from(*count));
                }
            }
        }
        if affinity.is_empty() && anti_affinity.is_empty() && !refused.is_used() {
            return PreFilter::Skip;
        }
        let mut near = Scores::default();
        for term in affinity {
            tally(cluster, &all(affinity), near.of(cluster, &term.topology_key), 1);
        }
        let mut far = Scores::default();
        for term in anti_affinity {
            tally(cluster, &one(&term.pods), far.of(cluster, &term.topology_key), 1);
        }
        let matches_itself = all(affinity).matches(pod, namespace);
        PreFilter::Check(Box::new(InterPodAffinityFilter {
            cluster,
            pod,
            namespace,
            affinity,
            anti_affinity,
            near,
            far,
            refused,
            matches_itself,
        }))
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let Cycle { cluster, pod } = cycle;
        let none = PodTerms::default();
        let own = pod.terms.as_deref().unwrap_or(&none);
        let prefers = !own.preferred_affinity.is_empty() || !own.preferred_anti_affinity.is_empty();
        if !prefers && (self.ignore_preferences_of_running_pods || cluster.terms().is_empty()) {
            return false;
        }
        let mut sums = Scores::default();
        for item in &own.preferred_affinity {
            tally(cluster, &one(&item.term.pods), sums.of(cluster, &item.term.topology_key), item.weight);
        }
        for item in &own.preferred_anti_affinity {
            tally(cluster, &one(&item.term.pods), sums.of(cluster, &item.term.topology_key), -item.weight);
        }
        let namespace = labels_of(cluster, &pod.namespace);
        for (kind, term, slots) in cluster.terms().iter() {
            let weight = match kind {
                TermKind::RequiredAffinity => self.hard_weight,
                TermKind::PreferredAffinity(weight) => weight,
                TermKind::PreferredAntiAffinity(weight) => -weight,
                TermKind::RequiredAntiAffinity => 0,
            };
            if weight != 0 && term.pods.matches(pod, namespace) {
                let domains = sums.of(cluster, &term.topology_key);
                for (slot, count) in slots {
                    domains.change(*slot, i64::from(*count) * weight);
                }
            }
        }
        if !sums.is_used() {
            return false;
        }
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            *score = sums.0.iter().filter_map(|domains| domains.at(node.slot)).sum();
        }
        let lowest = scores.iter().copied().min().unwrap_or(0);
        let range = scores.iter().copied().max().unwrap_or(0) - lowest;
        for score in scores {
            let share = if range > 0 { (*score - lowest) as f64 / range as f64 } else { 0.0 };
            *score = (MAX_NODE_SCORE as f64 * share) as i64;
        }
        true
    }

    fn interests(&self) -> Actions {
        Actions::POD_ADD
            .or(Actions::POD_LABEL)
            .or(Actions::POD_DELETE)
            .or(Actions::NODE_ADD)
            .or(Actions::NODE_LABEL)
    }

    fn helps(&self, cluster: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        let none = PodTerms::default();
        let own = pod.terms.as_deref().unwrap_or(&none);
        match changed {
            Changed::Pod { old, new } => {
                if let (Some(_), Some(new)) = (old, new)
                    && new.uid == pod.uid
                {
                    return true;
                }
                let placed =
                    |other: &PodInfo| other.node_name().is_some() || other.nominated_node().is_some();
                if !old.into_iter().chain(new).all(placed) {
                    return false;
                }
                let near = |other: &PodInfo| {
                    all(&own.required_affinity).matches(other, labels_of(cluster, &other.namespace))
                };
                let far = |other: &PodInfo| {
                    all(&own.required_anti_affinity).matches(other, labels_of(cluster, &other.namespace))
                };
                match (old, new) {
                    (Some(old), Some(new)) => !near(old) && near(new) || far(old) && !far(new),
                    (None, Some(new)) => near(new),
                    (Some(gone), None) => {
                        let refused = gone.terms.as_ref().is_some_and(|terms| {
                            all(&terms.required_anti_affinity)
                                .matches(pod, labels_of(cluster, &pod.namespace))
                        });
                        far(gone) || refused
                    }
                    (None, None) => true,
                }
            }
            Changed::Node { old, new: Some(new) } => {
                let moved = |term: &AffinityTerm, gained: bool| {
                    let before = old.and_then(|old| old.labels.get(&term.topology_key));
                    let after = new.labels.get(&term.topology_key);
                    match (before, after) {
                        (Some(before), Some(after)) => before != after,
                        (None, Some(_)) => gained,
                        (Some(_), None) => !gained,
                        (None, None) => false,
                    }
                };
                own.required_affinity.iter().any(|term| moved(term, true))
                    || own.required_anti_affinity.iter().any(|term| old.is_none() || moved(term, false))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
#[path = "inter_pod_affinity_tests.rs"]
mod tests;
