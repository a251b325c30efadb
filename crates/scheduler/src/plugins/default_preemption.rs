//! DefaultPreemption: an unschedulable pod may evict less important ones. Pods are reprieved in order of importance,
//! those first whose disruption budget would be violated; the node with the least damage is chosen.

use std::sync::Arc;

use jiff::Timestamp;
use objects::policy::v1::PodDisruptionBudget;

use crate::cycle::{ActiveFilter, passes_with_nominated};
use crate::diagnosis::Diagnosis;
use crate::framework::{Candidate, Failed, NoCandidates, Plugin, Rejection};
use crate::plugins::PluginId;
use crate::state::{Cluster, NodeInfo, PodInfo, Selector};

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NO_HELP: &str = "Preemption is not helpful for scheduling";

pub struct DefaultPreemption {
    /// Minimum share of nodes to consider, and
    pub least_percentage: usize,
    /// minimum number.
    pub least: usize,
}

impl Default for DefaultPreemption {
    fn default() -> Self {
        Self { least_percentage: 10, least: 100 }
    }
}

impl Plugin for DefaultPreemption {
    fn post_filter(&self, failed: &Failed<'_, '_>) -> Result<Vec<Candidate>, NoCandidates> {
        let refuse = |message: &str, keep_nomination| {
            NoCandidates::new(format!("preemption: {message}"), keep_nomination)
        };
        may_preempt(failed).map_err(|message| refuse(message, true))?;
        let potential: Vec<&NodeInfo> = failed
            .cluster
            .order()
            .iter()
            .filter(|slot| can_help(failed.diagnosis, **slot))
            .map(|slot| failed.cluster.node_at(*slot))
            .collect();
        let wanted = (potential.len() * self.least_percentage / 100).max(self.least).min(potential.len());
        let budgets: Vec<Budget<'_>> =
            failed.cluster.objects.budgets.all().map(|budget| Budget::of(budget)).collect();
        let mut clean = Vec::new();
        let mut violating = Vec::new();
        let mut diagnosis = Diagnosis::new(failed.cluster.order().len());
        diagnosis.others = Some(Rejection::unresolvable(NO_HELP));
        let first = if potential.is_empty() { 0 } else { failed.offset % potential.len() };
        for node in potential[first..].iter().chain(&potential[..first]) {
            match victims(failed, node, &budgets) {
                Ok(candidate) if candidate.violations == 0 => clean.push(candidate),
                Ok(candidate) => violating.push(candidate),
                Err((plugin, rejection)) => {
                    diagnosis.rejections.push((node.slot, rejection));
                    diagnosis.rejecting.extend(plugin);
                }
            }
            if !clean.is_empty() && clean.len() + violating.len() >= wanted {
                break;
            }
        }
        clean.append(&mut violating);
        if clean.is_empty() {
            return Err(refuse(&diagnosis.message(), false));
        }
        Ok(clean)
    }
}

/// True if preemption on this node could change the verdict.
fn can_help(diagnosis: &Diagnosis, slot: usize) -> bool {
    let own = diagnosis.rejections.iter().find(|(own, _)| *own == slot).map(|(_, rejection)| rejection);
    own.or(diagnosis.others.as_ref()).is_some_and(|rejection| !rejection.unresolvable)
}

fn may_preempt(failed: &Failed<'_, '_>) -> Result<(), &'static str> {
    if failed.pod.spec().and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.");
    }
    let Some(nominated) = failed.pod.nominated_node().and_then(|name| failed.cluster.node(name)) else {
        return Ok(());
    };
    if !can_help(failed.diagnosis, nominated.slot) {
        return Ok(());
    }
    let leaving = |other: &Arc<PodInfo>| other.priority < failed.pod.priority && is_being_preempted(other);
    if nominated.pods.iter().any(leaving) {
        return Err("not eligible due to a terminating pod on the nominated node.");
    }
    Ok(())
}

fn is_being_preempted(pod: &PodInfo) -> bool {
    let conditions =
        pod.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.terminating
        && conditions.iter().any(|condition| {
            condition.type_ == "DisruptionTarget"
                && condition.status == "True"
                && condition.reason.as_deref() == Some("PreemptionByScheduler")
        })
}

struct Budget<'a> {
    namespace: &'a str,
    selector: Selector,
    allowed: i32,
    budget: &'a PodDisruptionBudget,
}

impl<'a> Budget<'a> {
    fn of(budget: &'a PodDisruptionBudget) -> Self {
        Self {
            namespace: budget.metadata.namespace.as_deref().unwrap_or_default(),
            selector: Selector::of(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref())),
            allowed: budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or(0),
            budget,
        }
    }

    fn covers(&self, pod: &PodInfo) -> bool {
        let disrupted = self.budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
        !pod.labels.is_empty()
            && *self.namespace == *pod.namespace
            && !self.selector.is_empty()
            && self.selector.matches(&pod.labels)
            && !disrupted.is_some_and(|pods| pods.contains_key(&*pod.name))
    }
}

/// Splits pods into those whose budgets are exhausted and the rest, keeping the order.
fn split_by_budget(
    pods: Vec<Arc<PodInfo>>,
    budgets: &[Budget<'_>],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|pod| {
        let mut violates = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            if budget.covers(pod) {
                *allowed -= 1;
                violates |= *allowed < 0;
            }
        }
        violates
    })
}

/// Start time of a pod; one that has not started counts as youngest.
fn started(pod: &PodInfo) -> Timestamp {
    let start = pod.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    start.map_or(Timestamp::MAX, |start| start.0)
}

/// Most important first: by priority, then by running time.
fn by_importance(pods: &mut [Arc<PodInfo>]) {
    pods.sort_by_key(|pod| (std::cmp::Reverse(pod.priority), started(pod)));
}

/// Smallest set of least important victims on `node`.
fn victims(
    failed: &Failed<'_, '_>,
    node: &NodeInfo,
    budgets: &[Budget<'_>],
) -> Result<Candidate, (Option<PluginId>, Rejection)> {
    let mut dry = DryRun {
        cluster: failed.cluster,
        pod: failed.pod,
        filters: failed.filters.to_vec(),
        node: node.clone(),
    };
    let mut lesser: Vec<Arc<PodInfo>> =
        node.pods.iter().filter(|other| other.priority < failed.pod.priority).cloned().collect();
    if lesser.is_empty() {
        return Err((None, Rejection::unresolvable(NO_VICTIMS)));
    }
    for other in &lesser {
        dry.remove(other);
    }
    dry.fits().map_err(|(plugin, rejection)| (Some(plugin), rejection))?;
    by_importance(&mut lesser);
    let (protected, others) = split_by_budget(lesser, budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    for other in protected {
        if !dry.spare(&other) {
            violations += 1;
            victims.push(other);
        }
    }
    for other in others {
        if !dry.spare(&other) {
            victims.push(other);
        }
    }
    if victims.is_empty() {
        return Err((None, Rejection::unresolvable(NO_VICTIMS)));
    }
    by_importance(&mut victims);
    Ok(Candidate { node: Arc::clone(&node.name), victims, violations })
}

/// Simulated state of a node.
struct DryRun<'a> {
    cluster: &'a Cluster,
    pod: &'a PodInfo,
    filters: Vec<ActiveFilter<'a>>,
    node: NodeInfo,
}

impl DryRun<'_> {
    fn fits(&self) -> Result<(), (PluginId, Rejection)> {
        passes_with_nominated(self.cluster, self.pod, &self.filters, &self.node)
    }

    fn remove(&mut self, other: &PodInfo) {
        self.node.remove(&other.uid);
        for active in &mut self.filters {
            active.filter.remove(other, &self.node);
        }
    }

    fn add(&mut self, other: &Arc<PodInfo>) {
        self.node.add(Arc::clone(other));
        for active in &mut self.filters {
            active.filter.add(other, &self.node);
        }
    }

    /// Reprieves a pod if the preemptor still fits.
    fn spare(&mut self, other: &Arc<PodInfo>) -> bool {
        self.add(other);
        let fits = self.fits().is_ok();
        if !fits {
            self.remove(other);
        }
        fits
    }
}

/// Candidate with the least damage: fewest budget violations, lowest priority of the highest victim, lowest sum of
/// priorities, fewest victims, and last the shortest running victims.
#[must_use]
pub fn least_harm(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().reduce(|best, next| if harm(&next) < harm(&best) { next } else { best })
}

fn harm(candidate: &Candidate) -> (usize, i32, i64, usize, std::cmp::Reverse<Timestamp>) {
    let highest = candidate.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
    // Offset so that more victims always weigh more, whatever the sign of their priorities.
    let sum =
        candidate.victims.iter().map(|victim| i64::from(victim.priority) + i64::from(i32::MAX) + 1).sum();
    let important = candidate.victims.iter().filter(|victim| victim.priority == highest);
    let earliest = important.map(|victim| started(victim)).min().unwrap_or(Timestamp::MAX);
    (candidate.violations, highest, sum, candidate.victims.len(), std::cmp::Reverse(earliest))
}

#[cfg(test)]
#[path = "default_preemption_tests.rs"]
mod tests;
