//! The plugins, one file each, and their table. Its order is the default order of execution.

mod default_binder;
mod default_preemption;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use std::sync::Arc;

use serde_json::Value;

use crate::config::{self, ConfigError};
use crate::framework::{Plugin, Point};

/// A row of the table.
pub struct Row {
    pub name: &'static str,
    /// Extension points of the plugin.
    pub points: &'static [Point],
    pub weight: i64,
    /// Builds the plugin from its arguments; `null` if there are none.
    pub build: fn(&Value) -> Result<Arc<dyn Plugin>, ConfigError>,
}

use Point::{Bind, Filter, PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score};

pub const ALL: &[Row] = &[
    Row {
        name: "SchedulingGates",
        points: &[PreEnqueue],
        weight: 0,
        build: |_| Ok(Arc::new(scheduling_gates::SchedulingGates)),
    },
    Row {
        name: "PrioritySort",
        points: &[QueueSort],
        weight: 0,
        build: |_| Ok(Arc::new(priority_sort::PrioritySort)),
    },
    Row {
        name: "NodeUnschedulable",
        points: &[Filter],
        weight: 0,
        build: |_| Ok(Arc::new(node_unschedulable::NodeUnschedulable)),
    },
    Row { name: "NodeName", points: &[Filter], weight: 0, build: |_| Ok(Arc::new(node_name::NodeName)) },
    Row {
        name: "TaintToleration",
        points: &[Filter, PreScore, Score],
        weight: 3,
        build: |_| Ok(Arc::new(taint_toleration::TaintToleration)),
    },
    Row {
        name: "NodeAffinity",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        build: |args| Ok(Arc::new(config::node_affinity(args)?)),
    },
    Row {
        name: "NodePorts",
        points: &[PreFilter, Filter],
        weight: 0,
        build: |_| Ok(Arc::new(node_ports::NodePorts)),
    },
    Row {
        name: "NodeResourcesFit",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 1,
        build: |args| Ok(Arc::new(config::node_resources_fit(args)?)),
    },
    Row {
        name: "VolumeRestrictions",
        points: &[PreFilter, Filter],
        weight: 0,
        build: |_| Ok(Arc::new(volume_restrictions::VolumeRestrictions)),
    },
    Row {
        name: "NodeVolumeLimits",
        points: &[PreFilter, Filter],
        weight: 0,
        build: |_| Ok(Arc::new(node_volume_limits::NodeVolumeLimits)),
    },
    Row {
        name: "VolumeBinding",
        points: &[PreFilter, Filter, Reserve, PreBind],
        weight: 0,
        build: |args| Ok(Arc::new(config::volume_binding(args)?)),
    },
    Row {
        name: "VolumeZone",
        points: &[PreFilter, Filter],
        weight: 0,
        build: |_| Ok(Arc::new(volume_zone::VolumeZone)),
    },
    Row {
        name: "PodTopologySpread",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        build: |args| Ok(Arc::new(config::pod_topology_spread(args)?)),
    },
    Row {
        name: "InterPodAffinity",
        points: &[PreFilter, Filter, PreScore, Score],
        weight: 2,
        build: |args| Ok(Arc::new(config::inter_pod_affinity(args)?)),
    },
    Row {
        name: "DynamicResources",
        points: &[PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind],
        weight: 2,
        build: |args| Ok(Arc::new(config::dynamic_resources(args)?)),
    },
    Row {
        name: "DefaultPreemption",
        points: &[PostFilter],
        weight: 0,
        build: |args| Ok(Arc::new(config::default_preemption(args)?)),
    },
    Row {
        name: "NodeResourcesBalancedAllocation",
        points: &[PreScore, Score],
        weight: 1,
        build: |args| Ok(Arc::new(config::balanced_allocation(args)?)),
    },
    Row {
        name: "ImageLocality",
        points: &[Score],
        weight: 1,
        build: |_| Ok(Arc::new(image_locality::ImageLocality)),
    },
    Row {
        name: "DefaultBinder",
        points: &[Bind],
        weight: 0,
        build: |_| Ok(Arc::new(default_binder::DefaultBinder)),
    },
];

/// Plugins of Kubernetes v1.36 without counterpart here, whose names configurations may have.
pub const WITHOUT_EFFECT: [&str; 4] =
    ["GangScheduling", "NodeDeclaredFeatures", "PodGroupPodsCount", "TopologyPlacementGenerator"];

pub use default_preemption::{DefaultPreemption, least_harm};
pub use dynamic_resources::{DynamicResources, add_finalizer, remove_finalizer};
pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_resources_balanced_allocation::NodeResourcesBalancedAllocation;
pub use node_resources_fit::NodeResourcesFit;
pub use pod_topology_spread::PodTopologySpread;
pub use volume_binding::{VolumeBinding, is_bound};

/// Plugin by its index in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginId(u8);

impl PluginId {
    /// Pseudo-plugin of extenders, which reject pods as well.
    pub const EXTENDER: Self = Self(31);

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let at = ALL.iter().position(|row| row.name == name)?;
        u8::try_from(at).ok().map(Self)
    }

    /// Index in the table; always below 32.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0) & 31
    }

    #[must_use]
    pub fn row(self) -> Option<&'static Row> {
        ALL.get(usize::from(self.0))
    }

    /// Reports whether the plugin has an extension point.
    #[must_use]
    pub fn takes(self, point: Point) -> bool {
        self.row().is_some_and(|row| row.points.contains(&point))
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("Extender", |row| row.name)
    }
}

/// Set of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginSet(u32);

impl PluginSet {
    pub fn extend(&mut self, ids: impl IntoIterator<Item = PluginId>) {
        ids.into_iter().for_each(|id| self.insert(id));
    }

    pub fn insert(&mut self, id: PluginId) {
        self.0 |= 1 << id.0;
    }

    pub fn remove(&mut self, id: PluginId) {
        self.0 &= !(1 << id.0);
    }

    pub fn iter(self) -> impl Iterator<Item = PluginId> {
        (0..32).map(PluginId).filter(move |id| self.contains(*id))
    }

    #[must_use]
    pub fn contains(self, id: PluginId) -> bool {
        self.0 & (1 << id.0) != 0
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::framework::{Cycle, PreFilter};
    use crate::state::Cluster;
    use crate::testing::PodBuilder;

    /// Verdict of a plugin for each node, with `!` before rejections that preemption cannot resolve.
    pub fn reasons(plugin: &dyn Plugin, cluster: &Cluster, pod: PodBuilder) -> Vec<String> {
        let pod = pod.info();
        let show = |rejection: crate::framework::Rejection| {
            format!("{}{}", if rejection.unresolvable { "!" } else { "" }, rejection.message())
        };
        let filter = match plugin.pre_filter(Cycle { cluster, pod: &pod }) {
            PreFilter::Skip => return cluster.nodes().map(|node| format!("{}: ", node.name)).collect(),
            PreFilter::Reject(rejection) => return vec![show(rejection)],
            PreFilter::Check(filter) | PreFilter::Only(_, filter) => filter,
        };
        let verdict = |node| filter.check(node).err().map(show).unwrap_or_default();
        cluster.nodes().map(|node| format!("{}: {}", node.name, verdict(node))).collect()
    }

    /// Scores of a plugin for all nodes, unless it is skipped.
    pub fn scores(plugin: &dyn Plugin, cluster: &Cluster, pod: PodBuilder) -> Option<Vec<i64>> {
        let pod = pod.info();
        let nodes: Vec<_> = cluster.nodes().collect();
        let mut scores = vec![0; nodes.len()];
        plugin.score(Cycle { cluster, pod: &pod }, &nodes, &mut scores).then_some(scores)
    }

    #[test]
    fn every_file_has_a_row() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plugins");
        let rows: Vec<String> = ALL.iter().map(|row| snake(row.name)).collect();
        for entry in std::fs::read_dir(folder).expect("the plugins") {
            let name = entry.expect("a file").file_name().to_string_lossy().into_owned();
            let stem = name.trim_end_matches(".rs");
            if stem == "mod" || stem.ends_with("_tests") {
                continue;
            }
            assert!(rows.iter().any(|row| row == stem), "{name} has no row");
        }
    }

    fn snake(name: &str) -> String {
        let mut text = String::new();
        for (at, letter) in name.char_indices() {
            if letter.is_uppercase() && at > 0 {
                text.push('_');
            }
            text.extend(letter.to_lowercase());
        }
        text
    }
}
