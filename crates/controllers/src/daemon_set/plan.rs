//! Eligible nodes of a daemon set, and the changes of its pods. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use objects::apps::v1::{DaemonSet, DaemonSetStatus};
use objects::core::v1::{
    Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use objects::meta::v1::OwnerReference;

use crate::shared::percent::scaled;
use crate::shared::{node_facts, pod_facts};

/// Label of pods and revisions: the hash of their template.
pub const HASH_LABEL: &str = "controller-revision-hash";
const GENERATION_LABEL: &str = "pod-template-generation";
const GENERATION: &str = "deprecated.daemonset.template.generation";

/// Maximum number of pods created or deleted in one reconciliation.
const BURST: usize = 250;

#[derive(Clone, Debug)]
pub struct ObservedDaemonSet {
    pub set: Arc<DaemonSet>,
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    /// Hash of the current template.
    pub hash: String,
    /// Nodes in backoff after a failed pod, and the remaining time.
    pub backing_off: HashMap<String, SignedDuration>,
    pub now: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct DaemonSetPlan {
    pub delete: Vec<Arc<Pod>>,
    /// Nodes that get a pod.
    pub create: Vec<String>,
    /// Nodes whose failed pod is deleted: the next failure there has a longer backoff.
    pub failed_on: Vec<String>,
    /// Warning flag, reason, message.
    pub notices: Vec<(bool, &'static str, String)>,
    pub requeue_after: Option<SignedDuration>,
}

impl DaemonSetPlan {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.create.is_empty()
    }

    fn requeue_within(&mut self, wait: SignedDuration) {
        self.requeue_after = Some(self.requeue_after.map_or(wait, |known| known.min(wait)));
    }
}

/// Eligibility: a pod may start on the node; an existing pod may stay.
#[must_use]
pub fn belongs(set: &DaemonSet, node: &Node) -> (bool, bool) {
    let mut spec = template_spec(set);
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node_facts::name(node)) {
        return (false, false);
    }
    if !node_facts::matches_selection(&spec, node) {
        return (false, false);
    }
    tolerate_node_trouble(&mut spec);
    let tolerations = spec.tolerations.unwrap_or_default();
    let blocked =
        |effects: &[&str]| node_facts::untolerated(node_facts::taints(node), &tolerations, effects).is_some();
    if blocked(&["NoExecute", "NoSchedule"]) { (false, !blocked(&["NoExecute"])) } else { (true, true) }
}

fn template_spec(set: &DaemonSet) -> PodSpec {
    set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default()
}

/// Adds the tolerations of daemon pods: they stay where other pods are evicted.
fn tolerate_node_trouble(spec: &mut PodSpec) {
    let host_network = spec.host_network == Some(true);
    let tolerations = spec.tolerations.get_or_insert_default();
    let network = host_network.then_some(("network-unavailable", "NoSchedule"));
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ]
    .into_iter()
    .chain(network)
    {
        let wanted = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        // An existing toleration of the same taint becomes unlimited.
        let same = |known: &Toleration| {
            let plain = |value: &Option<String>| value.clone().unwrap_or_default();
            known.key == wanted.key
                && known.effect == wanted.effect
                && plain(&known.operator) == plain(&wanted.operator)
                && plain(&known.value).is_empty()
        };
        match tolerations.iter_mut().find(|known| same(known)) {
            Some(known) => *known = wanted,
            None => tolerations.push(wanted),
        }
    }
}

/// Pod for a node. The scheduler binds it, so it requires the node by affinity.
#[must_use]
pub fn make_pod(set: &DaemonSet, node: &str, hash: &str, owner: OwnerReference) -> Pod {
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let mut pod = pod_facts::from_template(&template, namespace, owner);
    pod.metadata.generate_name = set.metadata.name.as_ref().map(|name| format!("{name}-"));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    if let Some(generation) = generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_string());
    }
    let spec = pod.spec.get_or_insert_default();
    tolerate_node_trouble(spec);
    let only = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    let affinity: &mut NodeAffinity =
        spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![only] });
    pod
}

fn generation(set: &DaemonSet) -> Option<i64> {
    set.metadata.annotations.as_ref()?.get(GENERATION)?.parse().ok()
}

/// Node of a pod, assigned or required by affinity.
#[must_use]
pub fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(node);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let mut fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let named = fields.find(|field| field.key == "metadata.name" && field.operator == "In")?;
    match named.values.as_deref()? {
        [only] => Some(only),
        _ => None,
    }
}

fn is_updated(observed: &ObservedDaemonSet, pod: &Pod) -> bool {
    let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let same_generation =
        generation(&observed.set).is_some_and(|now| label(GENERATION_LABEL) == Some(&now.to_string()));
    label(HASH_LABEL) == Some(&observed.hash) || same_generation
}

/// Assigned pods first, then older ones.
fn seniority(pod: &Pod) -> impl Ord + use<> {
    let assigned =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    (!assigned, pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone())
}

fn by_node(observed: &ObservedDaemonSet) -> BTreeMap<&str, Vec<&Arc<Pod>>> {
    let mut map: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in &observed.pods {
        if pod_facts::is_finished(pod) && pod_facts::is_deleting(pod) {
            continue;
        }
        if let Some(node) = node_of(pod) {
            map.entry(node).or_default().push(pod);
        }
    }
    for pods in map.values_mut() {
        pods.sort_by_cached_key(|pod| seniority(pod));
    }
    map
}

fn min_ready(set: &DaemonSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// Maximum unavailable and maximum surge during a rolling update of `desired` pods.
fn limits(set: &DaemonSet, desired: usize) -> (usize, usize) {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.filter(|strategy| strategy.type_.as_deref() != Some("OnDelete"));
    let rolling = rolling.and_then(|strategy| strategy.rolling_update.as_ref());
    let of = |value| scaled(value, desired, true);
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref()).map_or(0, of);
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()).map_or(0, of);
    if desired > 0 && unavailable == 0 && surge == 0 { (1, 0) } else { (unavailable, surge) }
}

fn surges(set: &DaemonSet) -> bool {
    limits(set, 1).1 > 0
}

/// Creates missing pods on eligible nodes and deletes surplus ones.
#[must_use]
pub fn manage(observed: &ObservedDaemonSet) -> DaemonSetPlan {
    let mut plan = DaemonSetPlan::default();
    let on_nodes = by_node(observed);
    for node in &observed.nodes {
        let pods = on_nodes.get(node_facts::name(node)).map(Vec::as_slice).unwrap_or_default();
        let (may_start, may_stay) = belongs(&observed.set, node);
        if may_start && pods.is_empty() {
            plan.create.push(node_facts::name(node).to_owned());
        } else if may_stay {
            tend_node(observed, node_facts::name(node), pods, may_start, &mut plan);
        } else {
            plan.delete.extend(pods.iter().filter(|pod| !pod_facts::is_deleting(pod)).copied().cloned());
        }
    }
    // Pending pods of a deleted node: no other component deletes them.
    for (node, pods) in &on_nodes {
        if observed.nodes.iter().any(|known| node_facts::name(known) == *node) {
            continue;
        }
        let unassigned = |pod: &Pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default().is_empty()
        };
        plan.delete.extend(pods.iter().filter(|pod| unassigned(pod)).copied().cloned());
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan
}

fn tend_node(
    observed: &ObservedDaemonSet,
    node: &str,
    pods: &[&Arc<Pod>],
    may_start: bool,
    plan: &mut DaemonSetPlan,
) {
    let mut running = Vec::new();
    for pod in pods.iter().filter(|pod| !pod_facts::is_deleting(pod)) {
        let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
        let full = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
        if pod_facts::is_failed(pod) {
            if let Some(wait) = observed.backing_off.get(node) {
                plan.requeue_within(*wait);
                continue;
            }
            let message = format!("Found failed daemon pod {full} on node {node}, will try to kill it");
            plan.notices.push((true, "FailedDaemonPod", message));
            plan.failed_on.push(node.to_owned());
            plan.delete.push(Arc::clone(pod));
        } else if pod_facts::is_succeeded(pod) {
            let message = format!("Found succeeded daemon pod {full} on node {node}, will try to delete it");
            plan.notices.push((false, "SucceededDaemonPod", message));
            plan.delete.push(Arc::clone(pod));
        } else {
            running.push(*pod);
        }
    }
    if !surges(&observed.set) {
        plan.delete.extend(running.into_iter().skip(1).cloned());
        return;
    }
    if running.len() <= 1 {
        if running.is_empty() && may_start {
            plan.create.push(node.to_owned());
        }
        return;
    }
    // One new and one old pod may run side by side, until the new one is available.
    let (new, old): (Vec<&Arc<Pod>>, Vec<_>) = running.into_iter().partition(|pod| is_updated(observed, pod));
    plan.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).copied().cloned());
    let replaced = |new: &Pod, old: &Pod| {
        !pod_facts::is_ready(old) || pod_facts::is_available(new, min_ready(&observed.set), observed.now)
    };
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && replaced(new, old)
    {
        plan.delete.push(Arc::clone(old));
    }
}

/// Replaces pods of older templates, within the limits of the strategy. Called only if there was nothing to
/// [`manage`].
#[must_use]
pub fn roll(observed: &ObservedDaemonSet) -> DaemonSetPlan {
    let mut plan = DaemonSetPlan::default();
    let set = observed.set.as_ref();
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return plan;
    }
    let mut on_nodes = by_node(observed);
    let mut wanted: HashMap<&str, bool> = HashMap::new();
    for node in &observed.nodes {
        let (may_start, _) = belongs(set, node);
        wanted.insert(node_facts::name(node), may_start);
        if may_start {
            on_nodes.entry(node_facts::name(node)).or_default();
        }
    }
    let desired = wanted.values().filter(|wanted| **wanted).count();
    let (max_unavailable, max_surge) = limits(set, desired);
    let available = |pod: &Pod| pod_facts::is_available(pod, min_ready(set), observed.now);
    let (mut unavailable, mut surging, mut available_count) = (0_usize, 0_usize, 0_usize);
    let (mut candidates, mut candidate_nodes, mut unwanted) = (Vec::new(), Vec::new(), Vec::new());
    for (node, pods) in on_nodes {
        let alive = pods.iter().filter(|pod| !pod_facts::is_deleting(pod)).copied();
        let (new, old): (Vec<_>, Vec<_>) = alive.partition(|pod| is_updated(observed, pod));
        if new.len() > 1 || old.len() > 1 {
            unavailable += 1;
            surging += 1;
            continue;
        }
        let (new, old) = (new.first().copied(), old.first().copied());
        available_count += usize::from(old.or(new).is_some_and(|pod| available(pod)));
        if max_surge == 0 {
            match (new, old) {
                (Some(new), None) => unavailable += usize::from(!available(new)),
                (None, Some(old)) if !available(old) => {
                    plan.delete.push(Arc::clone(old));
                    unavailable += 1;
                }
                (None, Some(old)) => candidates.push(Arc::clone(old)),
                (None, None) | (Some(_), Some(_)) => unavailable += 1,
            }
            continue;
        }
        let may_start = wanted.get(node).copied().unwrap_or(false);
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) if !available(old) && !may_start => plan.delete.push(Arc::clone(old)),
            (None, Some(old)) if !available(old) => plan.create.push(node.to_owned()),
            (None, Some(old)) if !may_start => unwanted.push(Arc::clone(old)),
            (None, Some(_)) => candidate_nodes.push(node.to_owned()),
            (Some(new), Some(_)) if !available(new) => surging += 1,
            (Some(_), Some(old)) => plan.delete.push(Arc::clone(old)),
        }
    }
    plan.delete.extend(candidates.into_iter().take(max_unavailable.saturating_sub(unavailable)));
    plan.delete.extend(unwanted.into_iter().take(available_count.saturating_sub(desired)));
    plan.create.extend(candidate_nodes.into_iter().take(max_surge.saturating_sub(surging)));
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan
}

/// Counts for the status.
#[must_use]
pub fn status(observed: &ObservedDaemonSet) -> DaemonSetStatus {
    let on_nodes = by_node(observed);
    let mut counts = [0; 6];
    let [desired, current, misscheduled, ready, updated, available] = &mut counts;
    for node in &observed.nodes {
        let oldest = on_nodes.get(node_facts::name(node)).and_then(|pods| pods.first());
        if !belongs(&observed.set, node).0 {
            *misscheduled += i32::from(oldest.is_some());
            continue;
        }
        *desired += 1;
        let Some(pod) = oldest else { continue };
        *current += 1;
        *ready += i32::from(pod_facts::is_ready(pod));
        *available += i32::from(pod_facts::is_available(pod, min_ready(&observed.set), observed.now));
        *updated += i32::from(is_updated(observed, pod));
    }
    let [desired, current, misscheduled, ready, updated, available] = counts;
    let before = observed.set.status.clone().unwrap_or_default();
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: current,
        number_misscheduled: misscheduled,
        number_ready: ready,
        updated_number_scheduled: Some(updated),
        number_available: Some(available),
        number_unavailable: Some(desired - available),
        observed_generation: observed.set.metadata.generation,
        ..before
    }
}

/// True if the statuses differ; zero and absent are equal.
#[must_use]
pub fn status_differs(old: Option<&DaemonSetStatus>, new: &DaemonSetStatus) -> bool {
    let key = |status: &DaemonSetStatus| {
        (
            [
                status.desired_number_scheduled,
                status.current_number_scheduled,
                status.number_misscheduled,
                status.number_ready,
                status.updated_number_scheduled.unwrap_or(0),
                status.number_available.unwrap_or(0),
                status.number_unavailable.unwrap_or(0),
                status.collision_count.unwrap_or(0),
            ],
            status.observed_generation.unwrap_or(0),
        )
    };
    old.map(key) != Some(key(new))
}
