//! Incremental counts that avoid comparing every pod with every pod: pods on each node that match a recent query, and
//! terms of running pods that apply to incoming ones. Both are updated as pods are added and removed.

use std::collections::HashMap;

use super::affinity::{AffinityTerm, PodMatch};
use super::labels::Labels;
use super::node::NodeInfo;
use super::pod::PodInfo;

#[derive(Debug)]
struct Counter {
    per_slot: Vec<u32>,
    total: u64,
    last_used: u64,
}

/// Matching pods by node, for recent queries.
#[derive(Debug, Default)]
pub struct Counters {
    by_question: HashMap<PodMatch, Counter>,
    uses: u64,
}

/// Labels of namespaces by name.
pub trait NamespaceLabels {
    fn labels_of(&self, namespace: &str) -> Option<&Labels>;
}

impl Counters {
    /// Each counter costs a comparison whenever a pod is added or removed.
    const MOST: usize = 256;

    /// Pods per slot and in total; counted over all `nodes` for a new query.
    pub fn count_matches<'a>(
        &mut self,
        question: &PodMatch,
        nodes: impl Iterator<Item = &'a NodeInfo>,
        namespaces: &impl NamespaceLabels,
    ) -> (&[u32], u64) {
        self.uses += 1;
        if !self.by_question.contains_key(question) {
            if self.by_question.len() >= Self::MOST {
                self.forget_oldest();
            }
            let mut counter = Counter { per_slot: Vec::new(), total: 0, last_used: 0 };
            let none = Labels::default();
            for node in nodes {
                let matching = node.pods.iter().filter(|pod| {
                    question.matches(pod, namespaces.labels_of(&pod.namespace).unwrap_or(&none))
                });
                let count = u32::try_from(matching.count()).unwrap_or(u32::MAX);
                if count > 0 {
                    counter.change(node.slot, i64::from(count));
                }
            }
            self.by_question.insert(question.clone(), counter);
        }
        match self.by_question.get_mut(question) {
            Some(counter) => {
                counter.last_used = self.uses;
                (&counter.per_slot, counter.total)
            }
            None => (&[], 0),
        }
    }

    fn forget_oldest(&mut self) {
        let mut ages: Vec<u64> = self.by_question.values().map(|counter| counter.last_used).collect();
        ages.sort_unstable();
        let limit = ages[ages.len() / 4];
        self.by_question.retain(|_, counter| counter.last_used > limit);
    }

    pub fn change(&mut self, pod: &PodInfo, slot: usize, by: i64, namespace: &Labels) {
        for (question, counter) in &mut self.by_question {
            if question.matches(pod, namespace) {
                counter.change(slot, by);
            }
        }
    }

    /// Drops counts that depend on changed namespace labels; they are recounted on the next query.
    pub fn namespace_changed(&mut self) {
        self.by_question.retain(|question, _| !question.selects_namespaces());
    }
}

impl Counter {
    fn change(&mut self, slot: usize, by: i64) {
        if self.per_slot.len() <= slot {
            self.per_slot.resize(slot + 1, 0);
        }
        let step = u32::try_from(by.unsigned_abs()).unwrap_or(u32::MAX);
        let count = &mut self.per_slot[slot];
        if by >= 0 {
            *count = count.saturating_add(step);
            self.total = self.total.saturating_add(u64::from(step));
        } else {
            *count = count.saturating_sub(step);
            self.total = self.total.saturating_sub(u64::from(step));
        }
    }
}

/// Kind of a running pod's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermKind {
    RequiredAffinity,
    RequiredAntiAffinity,
    PreferredAffinity(i64),
    PreferredAntiAffinity(i64),
}

/// Terms of running pods, deduplicated.
#[derive(Debug, Default)]
pub struct Terms {
    groups: HashMap<(TermKind, AffinityTerm), HashMap<usize, u32>>,
}

impl Terms {
    pub fn change(&mut self, pod: &PodInfo, slot: usize, add: bool) {
        let Some(terms) = &pod.terms else { return };
        let mut one = |kind: TermKind, term: &AffinityTerm| {
            let key = (kind, term.clone());
            let slots = self.groups.entry(key.clone()).or_default();
            let count = slots.entry(slot).or_insert(0);
            *count = if add { count.saturating_add(1) } else { count.saturating_sub(1) };
            if *count == 0 {
                slots.remove(&slot);
                if slots.is_empty() {
                    self.groups.remove(&key);
                }
            }
        };
        for term in &terms.required_affinity {
            one(TermKind::RequiredAffinity, term);
        }
        for term in &terms.required_anti_affinity {
            one(TermKind::RequiredAntiAffinity, term);
        }
        for item in &terms.preferred_affinity {
            one(TermKind::PreferredAffinity(item.weight), &item.term);
        }
        for item in &terms.preferred_anti_affinity {
            one(TermKind::PreferredAntiAffinity(item.weight), &item.term);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Each distinct term, with the number of pods that have it by slot.
    pub fn iter(&self) -> impl Iterator<Item = (TermKind, &AffinityTerm, &HashMap<usize, u32>)> {
        self.groups.iter().map(|((kind, term), slots)| (*kind, term, slots))
    }
}
