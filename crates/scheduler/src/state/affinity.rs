//! Pod affinity: terms that select other pods and the topology domain in which they count.

use std::collections::BTreeMap;

use objects::core::v1::{PodAffinityTerm, PodSpec, WeightedPodAffinityTerm};

use super::labels::{Labels, Operator, Requirement, Selector};
use super::pod::PodInfo;

/// Pods that a term selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TermMatch {
    namespaces: Box<[Box<str>]>,
    namespace_selector: Selector,
    selector: Selector,
}

impl TermMatch {
    /// Pods of one namespace.
    #[must_use]
    pub fn within(namespace: &str, selector: Selector) -> Self {
        Self { namespaces: Box::new([namespace.into()]), namespace_selector: Selector::Nothing, selector }
    }

    /// True if labels of namespaces matter.
    #[must_use]
    pub fn selects_namespaces(&self) -> bool {
        self.namespace_selector != Selector::Nothing
    }

    #[must_use]
    pub fn matches(&self, pod: &PodInfo, namespace: &Labels) -> bool {
        (self.namespaces.iter().any(|own| **own == *pod.namespace)
            || self.namespace_selector.matches(namespace))
            && self.selector.matches(&pod.labels)
    }
}

/// Pods that match all of several terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodMatch {
    pub terms: Box<[TermMatch]>,
    /// Skips terminating pods; set for spreading, not for affinity.
    pub skip_terminating: bool,
}

impl PodMatch {
    #[must_use]
    pub fn matches(&self, pod: &PodInfo, namespace: &Labels) -> bool {
        if self.skip_terminating && pod.terminating {
            return false;
        }
        !self.terms.is_empty() && self.terms.iter().all(|term| term.matches(pod, namespace))
    }

    #[must_use]
    pub fn selects_namespaces(&self) -> bool {
        self.terms.iter().any(TermMatch::selects_namespaces)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    pub topology_key: Box<str>,
    pub pods: TermMatch,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedTerm {
    pub term: AffinityTerm,
    pub weight: i64,
}

/// Affinity and anti-affinity of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTerms {
    pub required_affinity: Box<[AffinityTerm]>,
    pub required_anti_affinity: Box<[AffinityTerm]>,
    pub preferred_affinity: Box<[WeightedTerm]>,
    pub preferred_anti_affinity: Box<[WeightedTerm]>,
}

impl PodTerms {
    /// `None` if the pod has neither.
    #[must_use]
    pub fn of(
        spec: &PodSpec,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<Box<Self>> {
        let affinity = spec.affinity.as_ref()?;
        if affinity.pod_affinity.is_none() && affinity.pod_anti_affinity.is_none() {
            return None;
        }
        let required = |terms: Option<&Vec<PodAffinityTerm>>| -> Box<[AffinityTerm]> {
            terms.into_iter().flatten().map(|term| read(term, namespace, labels)).collect()
        };
        let preferred = |terms: Option<&Vec<WeightedPodAffinityTerm>>| -> Box<[WeightedTerm]> {
            let terms = terms.into_iter().flatten();
            let weighed = terms.map(|item| WeightedTerm {
                term: read(&item.pod_affinity_term, namespace, labels),
                weight: i64::from(item.weight),
            });
            weighed.collect()
        };
        let near = affinity.pod_affinity.as_ref();
        let far = affinity.pod_anti_affinity.as_ref();
        let terms = Self {
            required_affinity: required(
                near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            required_anti_affinity: required(
                far.and_then(|far| far.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_affinity: preferred(
                near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred_anti_affinity: preferred(
                far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_ref()),
            ),
        };
        (terms != Self::default()).then(|| Box::new(terms))
    }
}

fn read(term: &PodAffinityTerm, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> AffinityTerm {
    let mut namespaces: Vec<Box<str>> =
        term.namespaces.iter().flatten().map(|name| name.as_str().into()).collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.push(namespace.into());
    }
    namespaces.sort_unstable();
    let mut selector = Selector::of(term.label_selector.as_ref());
    // The API server merges these keys into the selector on creation; added here if it did not.
    let own = |key: &String| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let missing = |selector: &Selector, key: &String| match selector {
        Selector::Nothing => false,
        Selector::All(list) => !list.iter().any(|requirement| *requirement.key == **key),
    };
    for key in term.match_label_keys.iter().flatten() {
        if let (Some(value), true) = (own(key), missing(&selector, key)) {
            selector = selector.and([Requirement::equals(key, value)]);
        }
    }
    for key in term.mismatch_label_keys.iter().flatten() {
        if let (Some(value), true) = (own(key), missing(&selector, key)) {
            let differs = Requirement { operator: Operator::NotIn, ..Requirement::equals(key, value) };
            selector = selector.and([differs]);
        }
    }
    AffinityTerm {
        topology_key: term.topology_key.as_str().into(),
        pods: TermMatch {
            namespaces: namespaces.into(),
            namespace_selector: Selector::of(term.namespace_selector.as_ref()),
            selector,
        },
    }
}
