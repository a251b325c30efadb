//! Plugin arguments.

use objects::core::v1::{NodeAffinity as Affinity, TopologySpreadConstraint};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ConfigError;
use crate::allocation::{Shape, Strategy, WeightedResource};
use crate::plugins::{
    DefaultPreemption, DynamicResources, InterPodAffinity, NodeAffinity, NodeResourcesBalancedAllocation,
    NodeResourcesFit, PodTopologySpread, VolumeBinding,
};

fn arguments<T: DeserializeOwned + Default>(plugin: &'static str, args: &Value) -> Result<T, ConfigError> {
    if args.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(args.clone()).map_err(|source| ConfigError::Arguments { plugin, source })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityArgs {
    added_affinity: Option<Affinity>,
}

pub fn node_affinity(args: &Value) -> Result<NodeAffinity, ConfigError> {
    let args: NodeAffinityArgs = arguments("NodeAffinity", args)?;
    Ok(NodeAffinity::new(args.added_affinity.as_ref()))
}

#[derive(Clone, Deserialize)]
struct ResourceSpec {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScoringStrategy {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    #[serde(default)]
    shape: Vec<ShapePoint>,
}

#[derive(Deserialize)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

fn weighted_resources(
    plugin: &'static str,
    resources: &[ResourceSpec],
) -> Result<Box<[WeightedResource]>, ConfigError> {
    if resources.is_empty() {
        return Ok(WeightedResource::defaults());
    }
    let one = |resource: &ResourceSpec| {
        let weight = if resource.weight == 0 { 1 } else { resource.weight };
        if !(1..=100).contains(&weight) {
            let problem = format!("resource weight of {} not in valid range [1, 100]", resource.name);
            return Err(ConfigError::Invalid { plugin, problem });
        }
        Ok(WeightedResource { name: resource.name.as_str().into(), weight })
    };
    resources.iter().map(one).collect()
}

pub fn node_resources_fit(args: &Value) -> Result<NodeResourcesFit, ConfigError> {
    const PLUGIN: &str = "NodeResourcesFit";
    let args: FitArgs = arguments(PLUGIN, args)?;
    let invalid = |problem: String| ConfigError::Invalid { plugin: PLUGIN, problem };
    let mut fit = NodeResourcesFit {
        ignored: args.ignored_resources.into_iter().collect(),
        ignored_groups: args.ignored_resource_groups.into_iter().collect(),
        ..NodeResourcesFit::default()
    };
    if let Some(strategy) = args.scoring_strategy {
        fit.resources = weighted_resources(PLUGIN, &strategy.resources)?;
        fit.strategy = match strategy.kind.as_str() {
            "" | "LeastAllocated" => Strategy::LeastAllocated,
            "MostAllocated" => Strategy::MostAllocated,
            "RequestedToCapacityRatio" => {
                let points =
                    strategy.requested_to_capacity_ratio.map(|ratio| ratio.shape).unwrap_or_default();
                Strategy::RequestedToCapacityRatio(shape(&points).map_err(invalid)?)
            }
            other => return Err(invalid(format!("scoring strategy {other} is not supported"))),
        };
    }
    Ok(fit)
}

fn shape(points: &[ShapePoint]) -> Result<Shape, String> {
    if points.is_empty() {
        return Err("at least one point must be specified".to_owned());
    }
    let rising = points.windows(2).all(|pair| pair[0].utilization < pair[1].utilization);
    if !rising {
        return Err("utilization values must be sorted in increasing order".to_owned());
    }
    for point in points {
        if !(0..=100).contains(&point.utilization) || !(0..=10).contains(&point.score) {
            return Err(format!("point {}, {} is out of range", point.utilization, point.score));
        }
    }
    Ok(Shape(points.iter().map(|point| (point.utilization, point.score)).collect()))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BalancedArgs {
    resources: Vec<ResourceSpec>,
}

pub fn balanced_allocation(args: &Value) -> Result<NodeResourcesBalancedAllocation, ConfigError> {
    const PLUGIN: &str = "NodeResourcesBalancedAllocation";
    let args: BalancedArgs = arguments(PLUGIN, args)?;
    Ok(NodeResourcesBalancedAllocation { resources: weighted_resources(PLUGIN, &args.resources)? })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpreadArgs {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: String,
}

pub fn pod_topology_spread(args: &Value) -> Result<PodTopologySpread, ConfigError> {
    const PLUGIN: &str = "PodTopologySpread";
    let args: SpreadArgs = arguments(PLUGIN, args)?;
    match args.defaulting_type.as_str() {
        "" | "System" if args.default_constraints.is_empty() => Ok(PodTopologySpread::default()),
        "" | "System" => Err(ConfigError::Invalid {
            plugin: PLUGIN,
            problem: "when .defaultingType is System, .defaultConstraints must be empty".to_owned(),
        }),
        "List" => Ok(PodTopologySpread::with_defaults(&args.default_constraints)),
        other => {
            Err(ConfigError::Invalid { plugin: PLUGIN, problem: format!("unknown .defaultingType {other}") })
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinityArgs {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

pub fn inter_pod_affinity(args: &Value) -> Result<InterPodAffinity, ConfigError> {
    const PLUGIN: &str = "InterPodAffinity";
    let args: InterPodAffinityArgs = arguments(PLUGIN, args)?;
    if !(0..=100).contains(&args.hard_pod_affinity_weight) {
        let problem = "hardPodAffinityWeight not in valid range [0, 100]".to_owned();
        return Err(ConfigError::Invalid { plugin: PLUGIN, problem });
    }
    Ok(InterPodAffinity {
        hard_weight: args.hard_pod_affinity_weight,
        ignore_preferences_of_running_pods: args.ignore_preferred_terms_of_existing_pods,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PreemptionArgs {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for PreemptionArgs {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

pub fn default_preemption(args: &Value) -> Result<DefaultPreemption, ConfigError> {
    const PLUGIN: &str = "DefaultPreemption";
    let args: PreemptionArgs = arguments(PLUGIN, args)?;
    let (percentage, absolute) = (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute);
    if !(0..=100).contains(&percentage) || absolute < 0 || percentage == 0 && absolute == 0 {
        let problem =
            "minCandidateNodesPercentage and minCandidateNodesAbsolute must leave some candidates".to_owned();
        return Err(ConfigError::Invalid { plugin: PLUGIN, problem });
    }
    Ok(DefaultPreemption {
        least_percentage: usize::try_from(percentage).unwrap_or(10),
        least: usize::try_from(absolute).unwrap_or(100),
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DynamicResourcesArgs {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

pub fn dynamic_resources(args: &Value) -> Result<DynamicResources, ConfigError> {
    const PLUGIN: &str = "DynamicResources";
    let args: DynamicResourcesArgs = arguments(PLUGIN, args)?;
    let invalid = |field: &str, text: &str, problem: &str| ConfigError::Invalid {
        plugin: PLUGIN,
        problem: format!("{field}: Invalid value: {text:?}: {problem}"),
    };
    let duration = |field: &str, text: &Option<String>, least: std::time::Duration, problem: &str| {
        let Some(text) = text else { return Ok(None) };
        let parsed: Result<jiff::SignedDuration, _> = text.parse();
        let limit = parsed.map_err(|_| invalid(field, text, "not a duration"))?;
        match std::time::Duration::try_from(limit) {
            Ok(limit) if limit >= least => Ok(Some(limit)),
            _ => Err(invalid(field, text, problem)),
        }
    };
    let zero = std::time::Duration::ZERO;
    let second = std::time::Duration::from_secs(1);
    let mut plugin = DynamicResources::default();
    if let Some(limit) = duration("filterTimeout", &args.filter_timeout, zero, "must be zero or positive")? {
        plugin.filter_timeout = Some(limit).filter(|limit| !limit.is_zero());
    }
    if let Some(limit) =
        duration("bindingTimeout", &args.binding_timeout, second, "must be at least 1 second")?
    {
        plugin.binding_timeout = limit;
    }
    Ok(plugin)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VolumeBindingArgs {
    bind_timeout_seconds: i64,
}

impl Default for VolumeBindingArgs {
    fn default() -> Self {
        Self { bind_timeout_seconds: 600 }
    }
}

pub fn volume_binding(args: &Value) -> Result<VolumeBinding, ConfigError> {
    const PLUGIN: &str = "VolumeBinding";
    let args: VolumeBindingArgs = arguments(PLUGIN, args)?;
    let Ok(seconds) = u64::try_from(args.bind_timeout_seconds) else {
        let problem = "invalid BindTimeoutSeconds, should not be a negative value".to_owned();
        return Err(ConfigError::Invalid { plugin: PLUGIN, problem });
    };
    Ok(VolumeBinding { timeout: std::time::Duration::from_secs(seconds) })
}
