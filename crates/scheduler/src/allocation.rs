//! Scoring strategies of NodeResourcesFit and NodeResourcesBalancedAllocation: fit of a pod's requests with the free
//! resources of a node.

use crate::framework::MAX_NODE_SCORE;
use crate::state::{NodeInfo, PodInfo, is_scalar};

/// Highest score of a configured shape.
const MAX_SHAPE_SCORE: i64 = 10;

/// A resource and its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedResource {
    pub name: Box<str>,
    pub weight: i64,
}

impl WeightedResource {
    /// CPU and memory with equal weight.
    #[must_use]
    pub fn defaults() -> Box<[Self]> {
        Box::new([Self { name: "cpu".into(), weight: 1 }, Self { name: "memory".into(), weight: 1 }])
    }
}

/// Points of the shape: utilization in percent and its score, up to 10.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub Box<[(i64, i64)]>);

impl Shape {
    fn at(&self, utilization: i64) -> i64 {
        let scale = MAX_NODE_SCORE / MAX_SHAPE_SCORE;
        let mut before: Option<(i64, i64)> = None;
        for (point, score) in &self.0 {
            let (point, score) = (*point, *score * scale);
            if utilization <= point {
                return match before {
                    Some((from, low)) if point > from => {
                        low + (score - low) * (utilization - from) / (point - from)
                    }
                    _ => score,
                };
            }
            before = Some((point, score));
        }
        before.map_or(0, |(_, score)| score)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Shape),
}

impl Strategy {
    fn score(&self, requested: i64, capacity: i64) -> i64 {
        match self {
            Self::LeastAllocated if requested > capacity => 0,
            Self::LeastAllocated => part(capacity - requested, capacity),
            Self::MostAllocated => part(requested.min(capacity), capacity),
            Self::RequestedToCapacityRatio(shape) if requested > capacity => shape.at(100),
            Self::RequestedToCapacityRatio(shape) => shape.at(part(requested, capacity)),
        }
    }
}

fn part(amount: i64, of: i64) -> i64 {
    match amount.checked_mul(MAX_NODE_SCORE) {
        Some(product) => product / of,
        None => i64::try_from(i128::from(amount) * i128::from(MAX_NODE_SCORE) / i128::from(of)).unwrap_or(0),
    }
}

/// A scored resource with the pod's request and its weight.
struct ScoredResource<'a> {
    resource: Resource<'a>,
    amount: i64,
    weight: i64,
}

/// Parsed resource name: names are compared once per pod, not once per node.
#[derive(Clone, Copy)]
enum Resource<'a> {
    MilliCpu,
    Memory,
    EphemeralStorage,
    Scalar(&'a str),
}

impl ScoredResource<'_> {
    /// Requests with the pod, requests without it, and capacity; `None` if the node lacks the resource.
    fn usage(&self, node: &NodeInfo, exact: bool) -> Option<(i64, i64, i64)> {
        let (has, used) = (&node.allocatable, &node.requested);
        let (capacity, used) = match self.resource {
            Resource::MilliCpu if exact => (has.milli_cpu, used.milli_cpu),
            Resource::MilliCpu => (has.milli_cpu, node.non_zero_milli_cpu),
            Resource::Memory if exact => (has.memory, used.memory),
            Resource::Memory => (has.memory, node.non_zero_memory),
            Resource::EphemeralStorage => (has.ephemeral_storage, used.ephemeral_storage),
            Resource::Scalar(name) => (has.get(name), used.get(name)),
        };
        (capacity != 0).then_some((used + self.amount, used, capacity))
    }
}

/// Skips extended resources that the pod does not request.
fn scored<'a>(resources: &'a [WeightedResource], pod: &PodInfo, exact: bool) -> Vec<ScoredResource<'a>> {
    let requests = if exact { &pod.requests.exact } else { &pod.requests.non_zero };
    let one = |resource: &'a WeightedResource| ScoredResource {
        resource: match &*resource.name {
            "cpu" => Resource::MilliCpu,
            "memory" => Resource::Memory,
            "ephemeral-storage" => Resource::EphemeralStorage,
            other => Resource::Scalar(other),
        },
        amount: requests.get(&resource.name),
        weight: resource.weight,
    };
    let counts = |scored: &ScoredResource<'_>| {
        scored.amount != 0 || !matches!(scored.resource, Resource::Scalar(name) if is_scalar(name))
    };
    resources.iter().map(one).filter(counts).collect()
}

/// Scores nodes by a strategy: the weighted mean over the resources.
pub fn score(
    strategy: &Strategy,
    resources: &[WeightedResource],
    pod: &PodInfo,
    nodes: &[&NodeInfo],
    scores: &mut [i64],
) {
    let scored = scored(resources, pod, false);
    for (node, score) in nodes.iter().zip(scores) {
        *score = score_one(strategy, &scored, node);
    }
}

fn score_one(strategy: &Strategy, scored: &[ScoredResource<'_>], node: &NodeInfo) -> i64 {
    let (mut sum, mut weights) = (0, 0);
    for resource in scored {
        let Some((requested, _, capacity)) = resource.usage(node, false) else { continue };
        let score = strategy.score(requested, capacity);
        if score == 0 && matches!(strategy, Strategy::RequestedToCapacityRatio(_)) {
            continue;
        }
        sum += score * resource.weight;
        weights += resource.weight;
    }
    match (weights, strategy) {
        (0, _) => 0,
        (_, Strategy::RequestedToCapacityRatio(_)) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

/// Gain in balanced use of each node's resources with the pod compared to without it.
pub fn balance(resources: &[WeightedResource], pod: &PodInfo, nodes: &[&NodeInfo], scores: &mut [i64]) {
    let scored = scored(resources, pod, true);
    let half = MAX_NODE_SCORE / 2;
    for (node, score) in nodes.iter().zip(scores) {
        let mut with = Deviation::default();
        let mut without = Deviation::default();
        for resource in &scored {
            let Some((requested, used, capacity)) = resource.usage(node, true) else { continue };
            with.add(requested as f64 / capacity as f64);
            without.add(used as f64 / capacity as f64);
        }
        *score = half + (half + with.evenness() - without.evenness()) / 2;
    }
}

/// Standard deviation of a few fractions; keeps the first two for the exact formula for two values.
#[derive(Default)]
struct Deviation {
    fractions: [f64; 8],
    more: Vec<f64>,
    count: usize,
}

impl Deviation {
    fn add(&mut self, fraction: f64) {
        let fraction = fraction.min(1.0);
        match self.fractions.get_mut(self.count) {
            Some(slot) => *slot = fraction,
            None => self.more.push(fraction),
        }
        self.count += 1;
    }

    fn evenness(&self) -> i64 {
        let all = || self.fractions.iter().take(self.count).chain(&self.more);
        let deviation = match self.count {
            0 | 1 => 0.0,
            2 => ((self.fractions[0] - self.fractions[1]) / 2.0).abs(),
            count => {
                let mean = all().sum::<f64>() / count as f64;
                (all().map(|fraction| (fraction - mean) * (fraction - mean)).sum::<f64>() / count as f64)
                    .sqrt()
            }
        };
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_score_interpolates_between_points() {
        let shape = Shape(Box::new([(0, 0), (50, 10), (100, 5)]));
        for (utilization, score) in [(0, 0), (25, 50), (50, 100), (75, 75), (100, 50)] {
            assert_eq!(shape.at(utilization), score, "at {utilization}");
        }
        assert_eq!(Shape(Box::new([(40, 3)])).at(10), 30);
    }

    #[test]
    fn strategy_scores_one_resource() {
        let bin_packing = Strategy::RequestedToCapacityRatio(Shape(Box::new([(0, 0), (100, 10)])));
        for (strategy, requested, capacity, score) in [
            (Strategy::LeastAllocated, 3000, 4000, 25),
            (Strategy::LeastAllocated, 5000, 4000, 0),
            (Strategy::MostAllocated, 3000, 4000, 75),
            (Strategy::MostAllocated, 5000, 4000, 100),
            (bin_packing.clone(), 3000, 4000, 75),
            (bin_packing, 5000, 4000, 100),
            (Strategy::LeastAllocated, 0, i64::MAX, 100),
        ] {
            assert_eq!(strategy.score(requested, capacity), score, "{strategy:?} {requested}/{capacity}");
        }
    }
}
