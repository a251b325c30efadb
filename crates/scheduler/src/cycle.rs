//! Filtering and scoring for one pod. Pure: reads the cluster and returns a node.

use std::sync::Arc;
use std::time::Instant;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::diagnosis::Diagnosis;
use crate::framework::{Cycle, Filter, Point, PreFilter, Rejection};
use crate::metrics::{ProfileMetrics, SUCCESS, SampledWork};
use crate::plugins::PluginId;
use crate::profile::Profile;
use crate::state::{Cluster, NodeInfo, PodInfo};

/// Clusters with fewer nodes are searched completely.
const FEW_NODES: usize = 100;
const LEAST_PERCENTAGE: i64 = 5;

/// Filter for this pod, and its plugin.
pub struct ActiveFilter<'a> {
    pub id: PluginId,
    pub filter: Box<dyn Filter<'a> + 'a>,
}

impl Clone for ActiveFilter<'_> {
    fn clone(&self) -> Self {
        Self { id: self.id, filter: self.filter.boxed() }
    }
}

/// Result of filtering.
pub struct Search<'a> {
    /// Slots of feasible nodes, in the order they were tried.
    pub feasible: Vec<usize>,
    pub filters: Vec<ActiveFilter<'a>>,
    pub diagnosis: Diagnosis,
    /// Error of a plugin, which ends the attempt.
    pub failure: Option<String>,
}

/// Number of feasible nodes after which the search stops, so that large clusters are not searched completely.
#[must_use]
pub fn enough(nodes: usize, percentage: Option<i64>) -> usize {
    if nodes < FEW_NODES {
        return nodes;
    }
    let all = i64::try_from(nodes).unwrap_or(i64::MAX);
    let percentage = match percentage {
        Some(percentage) if percentage > 0 => percentage,
        _ => (50 - all / 125).max(LEAST_PERCENTAGE),
    };
    usize::try_from(all * percentage / 100).unwrap_or(nodes).max(FEW_NODES)
}

/// Node names that PreFilter restricts the search to, and the plugins that do so.
#[derive(Default)]
struct Restriction<'a> {
    only: Option<Vec<String>>,
    plugins: Vec<&'a str>,
}

impl Restriction<'_> {
    fn intersect(&mut self, names: Vec<String>) {
        self.only = Some(match self.only.take() {
            None => names,
            Some(before) => before.into_iter().filter(|name| names.contains(name)).collect(),
        });
    }

    fn note(&self, diagnosis: &mut Diagnosis) {
        for name in &self.plugins {
            diagnosis.rejecting.extend(PluginId::named(name));
        }
    }
}

/// Searches feasible nodes from `start` on, which advances so that every node is tried in turn.
pub fn search<'a>(
    profile: &'a Profile,
    cluster: &'a Cluster,
    pod: &'a Arc<PodInfo>,
    start: &mut usize,
) -> Search<'a> {
    let order = cluster.order();
    let mut search = Search {
        feasible: Vec::new(),
        filters: Vec::new(),
        diagnosis: Diagnosis::new(order.len()),
        failure: None,
    };
    let sampled = profile.metrics.as_ref().filter(|metrics| metrics.is_sampled(SampledWork::Search));
    let begin = Instant::now();
    let outcome = pre_filter(profile, Cycle { cluster, pod }, &mut search, sampled);
    if let Some(metrics) = &profile.metrics {
        let status = outcome.as_ref().err().map_or(SUCCESS, Rejection::status);
        metrics.point(Point::PreFilter, status, begin.elapsed());
    }
    let restriction = match outcome {
        Ok(restriction) => restriction,
        Err(rejection) => {
            search.diagnosis.before_filters = Some(rejection.message());
            search.diagnosis.others = Some(rejection);
            return search;
        }
    };

    if let Some(node) = pod.nominated_node().and_then(|name| cluster.node(name))
        && passes_with_nominated(cluster, pod, &search.filters, node).is_ok()
    {
        search.feasible.push(node.slot);
        return search;
    }

    let restricted: Option<Vec<usize>> = restriction.only.as_ref().map(|names| {
        restriction.note(&mut search.diagnosis);
        let reason = format!("node(s) didn't satisfy plugin(s) [{}]", restriction.plugins.join(" "));
        search.diagnosis.others = Some(Rejection::unresolvable(reason));
        names.iter().filter_map(|name| cluster.node(name)).map(|node| node.slot).collect()
    });
    let slots: &[usize] = restricted.as_deref().unwrap_or(order);
    let begin = Instant::now();
    filter(profile, cluster, pod, slots, *start, &mut search);
    if let Some(metrics) = &profile.metrics {
        metrics.point(Point::Filter, SUCCESS, begin.elapsed());
        count_evaluations(metrics, &search);
    }
    if let (Some(metrics), Some(slot)) = (sampled, slots.first()) {
        time_filters(metrics, &search.filters, cluster.node_at(*slot));
    }
    let looked_at = search.feasible.len() + search.diagnosis.rejections.len();
    *start = if order.is_empty() { 0 } else { (*start + looked_at) % order.len() };
    search
}

/// Counts the nodes that each filter has checked: all that no filter before it has rejected.
fn count_evaluations(metrics: &ProfileMetrics, search: &Search<'_>) {
    let mut left = search.feasible.len() + search.diagnosis.rejections.len();
    for active in &search.filters {
        metrics.evaluated(active.id, Point::Filter, left);
        left = left.saturating_sub(search.diagnosis.rejections_by(active.id));
    }
}

/// Times each filter on one node of a sampled attempt.
fn time_filters(metrics: &ProfileMetrics, filters: &[ActiveFilter<'_>], node: &NodeInfo) {
    for active in filters {
        let begin = Instant::now();
        let verdict = active.filter.check(node);
        let status = verdict.as_ref().err().map_or(SUCCESS, Rejection::status);
        metrics.executed(active.id, Point::Filter, status, begin);
        if verdict.is_err() {
            break;
        }
    }
}

/// Runs PreFilter of all plugins, which adds the filters for this pod to the search.
fn pre_filter<'a>(
    profile: &'a Profile,
    cycle: Cycle<'a>,
    search: &mut Search<'a>,
    sampled: Option<&ProfileMetrics>,
) -> Result<Restriction<'a>, Rejection> {
    let mut restriction = Restriction::default();
    let mut rejected: Option<Rejection> = None;
    for enabled in &profile.filters {
        let begin = sampled.map(|metrics| (metrics, Instant::now()));
        let verdict = enabled.plugin.pre_filter(cycle);
        if let Some(metrics) = profile.metrics.as_ref().filter(|_| enabled.id.takes(Point::PreFilter)) {
            metrics.evaluated(enabled.id, Point::PreFilter, 1);
            if let Some((metrics, begin)) = begin {
                let status = match &verdict {
                    PreFilter::Skip => "Skip",
                    PreFilter::Check(_) | PreFilter::Only(..) => SUCCESS,
                    PreFilter::Reject(rejection) => rejection.status(),
                };
                metrics.executed(enabled.id, Point::PreFilter, status, begin);
            }
        }
        let filter = match verdict {
            PreFilter::Skip => continue,
            PreFilter::Check(filter) => filter,
            PreFilter::Only(names, filter) => {
                restriction.plugins.push(enabled.id.name());
                restriction.intersect(names);
                filter
            }
            PreFilter::Reject(rejection) => {
                search.diagnosis.rejecting.insert(enabled.id);
                let unresolvable = rejection.unresolvable;
                rejected = Some(rejection);
                if unresolvable {
                    break;
                }
                continue;
            }
        };
        search.filters.push(ActiveFilter { id: enabled.id, filter });
    }
    restriction.plugins.sort_unstable();
    if let Some(rejection) = rejected {
        return Err(rejection);
    }
    if restriction.only.as_ref().is_some_and(Vec::is_empty) {
        restriction.note(&mut search.diagnosis);
        return Err(Rejection::unresolvable(match &restriction.plugins[..] {
            [plugin] => format!("node(s) didn't satisfy plugin {plugin}"),
            plugins => format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", plugins.join(" ")),
        }));
    }
    Ok(restriction)
}

/// Tries the nodes at `slots` from position `start` on, until enough are feasible.
fn filter<'a>(
    profile: &Profile,
    cluster: &'a Cluster,
    pod: &PodInfo,
    slots: &[usize],
    start: usize,
    search: &mut Search<'a>,
) {
    let wanted = enough(slots.len(), profile.percentage_of_nodes_to_score);
    search.feasible.reserve(wanted);
    let first = if slots.is_empty() { 0 } else { start % slots.len() };
    for slot in slots[first..].iter().chain(&slots[..first]) {
        let node = cluster.node_at(*slot);
        match passes_with_nominated(cluster, pod, &search.filters, node) {
            Ok(()) => {
                search.feasible.push(*slot);
                if search.feasible.len() >= wanted {
                    break;
                }
            }
            Err((plugin, rejection)) if rejection.is_error() => {
                let (name, error) = (plugin.name(), rejection.message());
                search.failure = Some(format!("running {name:?} filter plugin: {error}"));
                break;
            }
            Err((plugin, rejection)) => search.diagnosis.reject(*slot, plugin, rejection),
        }
    }
}

/// First plugin that rejects the node, and its reason.
pub fn passes(filters: &[ActiveFilter<'_>], node: &NodeInfo) -> Result<(), (PluginId, Rejection)> {
    for active in filters {
        if let Err(rejection) = active.filter.check(node) {
            return Err((active.id, rejection));
        }
    }
    Ok(())
}

/// As [`passes`], both with and without the nominated pods of equal or higher priority on the node.
pub fn passes_with_nominated(
    cluster: &Cluster,
    pod: &PodInfo,
    filters: &[ActiveFilter<'_>],
    node: &NodeInfo,
) -> Result<(), (PluginId, Rejection)> {
    if cluster.has_nominations() {
        let others: Vec<&Arc<PodInfo>> = cluster
            .nominated_to(&node.name)
            .filter(|other| other.priority >= pod.priority && other.uid != pod.uid)
            .collect();
        if !others.is_empty() {
            let mut filters = filters.to_vec();
            let mut node = node.clone();
            for other in others {
                for active in &mut filters {
                    active.filter.add(other, &node);
                }
                node.add(Arc::clone(other));
            }
            passes(&filters, &node)?;
        }
    }
    passes(filters, node)
}

/// Best of `feasible`; ties are broken at random. `extra` holds the extenders' scores by node.
pub fn choose(
    profile: &Profile,
    cluster: &Cluster,
    pod: &Arc<PodInfo>,
    feasible: &[usize],
    extra: Option<&[i64]>,
    rng: &mut SmallRng,
) -> Option<usize> {
    if feasible.len() < 2 {
        return feasible.first().copied();
    }
    let totals = totals(profile, cluster, pod, feasible, extra);
    let mut best = 0;
    let mut equals = 1u32;
    for (at, total) in totals.iter().enumerate().skip(1) {
        if *total > totals[best] {
            (best, equals) = (at, 1);
        } else if *total == totals[best] {
            equals += 1;
            if rng.random_range(0..equals) == 0 {
                best = at;
            }
        }
    }
    feasible.get(best).copied()
}

/// Weighted sums of all plugins' scores.
#[must_use]
pub fn totals(
    profile: &Profile,
    cluster: &Cluster,
    pod: &Arc<PodInfo>,
    feasible: &[usize],
    extra: Option<&[i64]>,
) -> Vec<i64> {
    let nodes: Vec<&NodeInfo> = feasible.iter().map(|slot| cluster.node_at(*slot)).collect();
    let mut totals = extra.map_or_else(|| vec![0; nodes.len()], <[i64]>::to_vec);
    let mut scores = vec![0; nodes.len()];
    let sampled = profile.metrics.as_ref().filter(|metrics| metrics.is_sampled(SampledWork::Scores));
    for (enabled, weight) in &profile.scores {
        scores.fill(0);
        let begin = sampled.map(|metrics| (metrics, Instant::now()));
        let applies = enabled.plugin.score(Cycle { cluster, pod }, &nodes, &mut scores);
        if let Some(metrics) = profile.metrics.as_ref().filter(|_| applies) {
            metrics.evaluated(enabled.id, Point::Score, nodes.len());
        }
        if let Some((metrics, begin)) = begin.filter(|_| applies) {
            metrics.executed(enabled.id, Point::Score, SUCCESS, begin);
        }
        if applies {
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total = total.saturating_add(score.saturating_mul(*weight));
            }
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, node, pod};
    use rand::SeedableRng;
    use serde_json::json;

    fn profile() -> Profile {
        Profile::default_named("default-scheduler").expect("the default profile")
    }

    #[test]
    fn search_large_cluster_is_sampled() {
        for (nodes, percentage, expected) in [
            (10, None, 10),
            (99, None, 99),
            (100, None, 100),
            (500, None, 230),
            (1000, None, 420),
            (5000, None, 500),
            (6000, None, 300),
            (10_000, None, 500),
            (1000, Some(50), 500),
            (1000, Some(1), 100),
            (1000, Some(0), 420),
        ] {
            assert_eq!(enough(nodes, percentage), expected, "{nodes} nodes, {percentage:?} %");
        }
    }

    #[test]
    fn search_start_rotates_over_nodes() {
        let cluster = cluster((0..300).map(|at| node(&format!("n{at}"))), []);
        let (profile, pod) = (profile(), pod("p").cpu("1").info());
        let mut start = 0;
        let first = search(&profile, &cluster, &pod, &mut start);
        assert_eq!(first.feasible.len(), 144);
        assert_eq!(start, 144);
        let second = search(&profile, &cluster, &pod, &mut start);
        assert_eq!(second.feasible[0], cluster.order()[144]);
        assert_eq!(start, 288);
        search(&profile, &cluster, &pod, &mut start);
        assert_eq!(start, 132);
    }

    #[test]
    fn search_failure_message_lists_reasons() {
        let cluster = cluster(
            [
                node("a").taint("x", "NoSchedule"),
                node("b").spec(json!({"unschedulable": true})),
                node("c").allocatable(json!({"cpu": "1", "memory": "1Gi", "pods": "110"})),
                node("d").allocatable(json!({"cpu": "1", "memory": "1Gi", "pods": "110"})),
            ],
            [],
        );
        let (profile, pod) = (profile(), pod("p").cpu("2").info());
        let found = search(&profile, &cluster, &pod, &mut 0);
        assert!(found.feasible.is_empty());
        assert_eq!(
            found.diagnosis.message(),
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, \
             2 Insufficient cpu."
        );
    }

    #[test]
    fn search_with_prefilter_nodes_tries_no_others() {
        let cluster = cluster((0..3).map(|at| node(&format!("n{at}"))), []);
        let named = |name: &str| {
            pod("p").spec(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}}))
        };
        let profile = profile();
        let there = named("n1").info();
        assert_eq!(search(&profile, &cluster, &there, &mut 0).feasible, [1]);
        let absent = named("gone").info();
        assert_eq!(
            search(&profile, &cluster, &absent, &mut 0).diagnosis.message(),
            "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        );
    }

    #[test]
    fn search_reserves_resources_of_nominated_pods() {
        let mut cluster = cluster([node("a"), node("b")], []);
        cluster.nominate(pod("vip").cpu("8").priority(10).info(), "a");
        let profile = profile();
        let low = pod("low").cpu("4").info();
        assert_eq!(search(&profile, &cluster, &low, &mut 0).feasible, [1]);
        let higher = pod("higher").cpu("4").priority(20).info();
        assert_eq!(search(&profile, &cluster, &higher, &mut 0).feasible, [0, 1]);
        let itself = pod("vip").cpu("8").priority(10).status(json!({"nominatedNodeName": "a"})).info();
        assert_eq!(search(&profile, &cluster, &itself, &mut 0).feasible, [0]);
    }

    #[test]
    fn choose_picks_best_and_breaks_ties_randomly() {
        let cluster = cluster(
            [node("a"), node("b"), node("busy")],
            [pod("x").cpu("9").request("memory", "60Gi").on("busy")],
        );
        let (profile, pod) = (profile(), pod("p").cpu("1").request("memory", "1Gi").info());
        let mut rng = SmallRng::seed_from_u64(7);
        let mut seen = [0; 3];
        for _ in 0..200 {
            let slot = choose(&profile, &cluster, &pod, &[0, 1, 2], None, &mut rng).expect("a node");
            seen[slot] += 1;
        }
        assert!(seen[0] > 50 && seen[1] > 50 && seen[2] == 0, "{seen:?}");
        assert_eq!(choose(&profile, &cluster, &pod, &[0, 1, 2], Some(&[0, 0, 10_000]), &mut rng), Some(2));
    }
}
