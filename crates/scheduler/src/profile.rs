//! A profile: the plugins that pods of one `schedulerName` go through.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use crate::config::ConfigError;
use crate::framework::{Actions, Changed, Reason};
use crate::framework::{Plugin, Point};
use crate::metrics::{ProfileMetrics, SampledWork};
use crate::plugins::{self, PluginId, PluginSet};
use crate::state::{Cluster, PodInfo};

/// An enabled plugin of a profile.
#[derive(Clone)]
pub struct Enabled {
    pub id: PluginId,
    pub plugin: Arc<dyn Plugin>,
}

/// A plugin with its configuration and extension points.
#[derive(Clone, Debug)]
pub struct Selection {
    pub id: PluginId,
    pub points: Vec<Point>,
    pub weight: i64,
    pub args: Value,
}

#[derive(Clone)]
pub struct Profile {
    pub name: String,
    /// `None` derives it from the number of nodes.
    pub percentage_of_nodes_to_score: Option<i64>,
    pub gates: Vec<Enabled>,
    pub filters: Vec<Enabled>,
    pub post_filters: Vec<Enabled>,
    pub scores: Vec<(Enabled, i64)>,
    pub reserves: Vec<Enabled>,
    interests: Vec<(Enabled, Actions)>,
    pub metrics: Option<ProfileMetrics>,
}

impl Profile {
    /// The default plugins with their default weights.
    pub fn default_named(name: &str) -> Result<Self, ConfigError> {
        let selections = plugins::ALL.iter().filter_map(|row| {
            Some(Selection {
                id: PluginId::named(row.name)?,
                points: row.points.to_vec(),
                weight: row.weight,
                args: Value::Null,
            })
        });
        Self::new(name, selections.collect(), None)
    }

    /// Plugins run in the order of `selections`.
    pub fn new(
        name: &str,
        selections: Vec<Selection>,
        percentage_of_nodes_to_score: Option<i64>,
    ) -> Result<Self, ConfigError> {
        let mut profile = Self {
            name: name.to_owned(),
            percentage_of_nodes_to_score,
            gates: Vec::new(),
            filters: Vec::new(),
            post_filters: Vec::new(),
            scores: Vec::new(),
            reserves: Vec::new(),
            interests: Vec::new(),
            metrics: None,
        };
        let mut made: HashMap<PluginId, Arc<dyn Plugin>> = HashMap::new();
        for selection in selections {
            let Some(row) = selection.id.row() else { continue };
            let plugin = match made.get(&selection.id) {
                Some(plugin) => Arc::clone(plugin),
                None => (row.build)(&selection.args)?,
            };
            made.insert(selection.id, Arc::clone(&plugin));
            let enabled = Enabled { id: selection.id, plugin };
            let takes = |point| selection.points.contains(&point);
            if takes(Point::PreEnqueue) {
                profile.gates.push(enabled.clone());
            }
            if takes(Point::Filter) {
                profile.filters.push(enabled.clone());
            }
            if takes(Point::PostFilter) {
                profile.post_filters.push(enabled.clone());
            }
            if takes(Point::Score) && selection.weight > 0 {
                profile.scores.push((enabled.clone(), selection.weight));
            }
            if takes(Point::Reserve) {
                profile.reserves.push(enabled.clone());
            }
            let interests = enabled.plugin.interests();
            if interests != Actions::default() {
                profile.interests.push((enabled, interests));
            }
        }
        Ok(profile)
    }

    /// First plugin that gates the pod, and its reason.
    pub fn gated(&self, cluster: &Cluster, pod: &PodInfo) -> Option<(PluginId, Reason)> {
        let gates = self.gates.iter();
        let mut refusals =
            gates.filter_map(|gate| Some((gate.id, gate.plugin.pre_enqueue(cluster, pod).err()?)));
        refusals.next()
    }

    /// Plugins whose verdict a kind of event can change.
    #[must_use]
    pub fn interested(&self, action: Actions) -> PluginSet {
        let mut set = PluginSet::default();
        for (enabled, interests) in &self.interests {
            if interests.meets(action) {
                set.insert(enabled.id);
            }
        }
        set
    }

    /// True if a change can help a pod that `rejecting` rejected.
    #[must_use]
    pub fn helps(
        &self,
        rejecting: PluginSet,
        cluster: &Cluster,
        pod: &PodInfo,
        action: Actions,
        changed: Changed<'_>,
    ) -> bool {
        let sampled = self.metrics.as_ref().filter(|metrics| metrics.is_sampled(SampledWork::Hints));
        self.interests.iter().any(|(enabled, interests)| {
            if !rejecting.contains(enabled.id) || !interests.meets(action) {
                return false;
            }
            let Some(metrics) = sampled else { return enabled.plugin.helps(cluster, pod, action, changed) };
            let begin = Instant::now();
            let helps = enabled.plugin.helps(cluster, pod, action, changed);
            metrics.hinted(enabled.id, action.name(), helps, begin);
            helps
        })
    }
}
