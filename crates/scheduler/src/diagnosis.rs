//! Reasons why a pod fits no node, and their message.

use std::collections::HashMap;

use crate::framework::Rejection;
use crate::plugins::{PluginId, PluginSet};

/// Length at which Kubernetes truncates the note of an event.
const NOTE_LIMIT: usize = 1024;

pub const NO_NODES: &str = "no nodes available to schedule pods";

#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Number of nodes in the cluster.
    pub nodes: usize,
    /// Rejected nodes, by slot.
    pub rejections: Vec<(usize, Rejection)>,
    /// Reason for all nodes that were not tried.
    pub others: Option<Rejection>,
    /// Rejection by PreFilter, before any node was tried.
    pub before_filters: Option<String>,
    pub after_filters: String,
    pub rejecting: PluginSet,
    /// Number of rejected nodes by plugin.
    counts: [usize; 32],
}

impl Diagnosis {
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self { nodes, ..Self::default() }
    }

    pub fn reject(&mut self, slot: usize, plugin: PluginId, rejection: Rejection) {
        self.rejecting.insert(plugin);
        self.counts[plugin.index()] += 1;
        self.rejections.push((slot, rejection));
    }

    /// Number of nodes that a plugin rejected.
    #[must_use]
    pub fn rejections_by(&self, plugin: PluginId) -> usize {
        self.counts[plugin.index()]
    }

    /// `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable. preemption: …`
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = format!("0/{} nodes are available:", self.nodes);
        match &self.before_filters {
            Some(reason) => text.push_str(&format!(" {reason}.")),
            None => {
                let reasons = self.counted();
                if !reasons.is_empty() {
                    text.push_str(&format!(" {}.", reasons.join(", ")));
                }
            }
        }
        if !self.after_filters.is_empty() {
            text.push_str(&format!(" {}", self.after_filters));
        }
        text
    }

    /// Each reason with its number of nodes, sorted as text.
    fn counted(&self) -> Vec<String> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (_, rejection) in &self.rejections {
            for reason in rejection.reasons.iter() {
                *counts.entry(reason).or_insert(0) += 1;
            }
        }
        let left = self.nodes.saturating_sub(self.rejections.len());
        if let (Some(others), true) = (&self.others, left > 0) {
            for reason in others.reasons.iter() {
                *counts.entry(reason).or_insert(0) += left;
            }
        }
        let mut lines: Vec<String> =
            counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        lines.sort_unstable();
        lines
    }
}

/// Truncates a message to the size limit of events.
#[must_use]
pub fn truncated(message: &str) -> String {
    if message.len() <= NOTE_LIMIT {
        return message.to_owned();
    }
    let mut end = NOTE_LIMIT - 4;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} ...", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_counts_and_sorts_reasons() {
        let mut diagnosis = Diagnosis::new(13);
        let fit = PluginId::named("NodeResourcesFit").expect("a plugin");
        for slot in 0..10 {
            diagnosis.reject(slot, fit, Rejection::unschedulable("Insufficient cpu"));
        }
        diagnosis.reject(10, fit, Rejection::unresolvable("node(s) were unschedulable"));
        diagnosis.reject(11, fit, Rejection::unresolvable("node(s) were unschedulable"));
        assert_eq!(
            diagnosis.message(),
            "0/13 nodes are available: 10 Insufficient cpu, 2 node(s) were unschedulable."
        );
        diagnosis.others = Some(Rejection::unresolvable("x"));
        diagnosis.after_filters = "preemption: none".to_owned();
        assert_eq!(
            diagnosis.message(),
            "0/13 nodes are available: 1 x, 10 Insufficient cpu, 2 node(s) were unschedulable. preemption: none"
        );
        diagnosis.before_filters = Some("no claim".to_owned());
        assert_eq!(diagnosis.message(), "0/13 nodes are available: no claim. preemption: none");
    }

    #[test]
    fn message_too_long_is_truncated() {
        assert_eq!(truncated("short"), "short");
        let long = truncated(&"é".repeat(1000));
        assert!(long.len() <= NOTE_LIMIT && long.ends_with(" ..."));
    }
}
