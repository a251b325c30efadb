//! Number of replicas from measured usage. Pure; amounts are in thousandths, as Kubernetes' `milli`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use machinery::quantity::Quantity;
use objects::core::v1::Pod;

use crate::shared::pod_facts;
use crate::shared::pod_resources::{self, List, Source};

/// Metrics of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub value: i64,
    pub at: Timestamp,
    pub window: SignedDuration,
}

pub type Samples = BTreeMap<String, Sample>;

/// Tolerated deviation of usage from its target.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub down: f64,
    pub up: f64,
    /// Time after the start in which a pod's CPU usage is unreliable.
    pub cpu_initialization: SignedDuration,
    /// Readiness changes within this time after the start are a pod's first.
    pub readiness_delay: SignedDuration,
}

impl Tolerance {
    #[must_use]
    pub fn covers(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// Recommendation of a metric: replicas, and the measured values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// Percentage of requests, for utilization.
    pub utilization: Option<i32>,
    /// Average, in thousandths.
    pub usage: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalculationError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoMetrics,
    #[error("no metrics returned matched known pods")]
    NoMatch,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    NoRequest { resource: String, container: String, pod: String },
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    NoPodRequest { resource: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    NoContainer { container: String, pod: String },
}

/// Target value of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Percentage of the pods' requests.
    Utilization(i32),
    /// Thousandths per pod.
    Average(i64),
}

#[derive(Default, Debug, PartialEq)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn group(pods: &[Arc<Pod>], samples: &Samples, is_cpu: bool, tolerance: Tolerance, now: Timestamp) -> Groups {
    let mut groups = Groups::default();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if pod_facts::is_deleting(pod) || pod_facts::is_failed(pod) {
            groups.ignored.insert(name);
        } else if pod_facts::phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else if let Some(sample) = samples.get(&name) {
            if is_cpu && is_starting(pod, sample, tolerance, now) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

fn is_starting(pod: &Pod, sample: &Sample, tolerance: Tolerance, now: Timestamp) -> bool {
    let ready = pod_facts::condition(pod, "Ready");
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (ready, started) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(started.0, |time| time.0);
    if now.duration_since(started.0) < tolerance.cpu_initialization {
        let covered = since.saturating_add(sample.window).is_ok_and(|first| sample.at >= first);
        ready.status == "False" || !covered
    } else {
        ready.status == "False" && since.duration_since(started.0) < tolerance.readiness_delay
    }
}

/// Replicas by usage of pods.
pub fn by_pods(
    current: i32,
    target: Target,
    mut samples: Samples,
    pods: &[Arc<Pod>],
    resource: Option<(&str, Option<&str>)>,
    tolerance: Tolerance,
    now: Timestamp,
) -> Result<Proposal, CalculationError> {
    if pods.is_empty() {
        return Err(CalculationError::NoPods);
    }
    let groups = group(pods, &samples, resource.is_some_and(|(name, _)| name == "cpu"), tolerance, now);
    samples.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if samples.is_empty() {
        return Err(CalculationError::NoMetrics);
    }
    let requests = match (target, resource) {
        (Target::Utilization(_), Some((name, container))) => requests(pods, name, container)?,
        _ => BTreeMap::new(),
    };
    let (ratio, utilization, usage) = compare(&samples, &requests, target)?;
    let keep = Proposal { replicas: current, utilization, usage };
    let with_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !with_unready && groups.missing.is_empty() {
        if tolerance.covers(ratio) {
            return Ok(keep);
        }
        return Ok(Proposal { replicas: ceil(ratio * groups.ready as f64), ..keep });
    }
    // Pods without metrics count against the direction of the change.
    let blank = Sample { value: 0, at: now, window: SignedDuration::ZERO };
    if ratio < 1.0 {
        for name in &groups.missing {
            let value = match target {
                Target::Utilization(percent) => {
                    let request = requests.get(name).copied().unwrap_or(0);
                    request.saturating_mul(i64::from(percent.max(100))) / 100
                }
                Target::Average(value) => value,
            };
            samples.insert(name.clone(), Sample { value, ..blank });
        }
    } else if ratio > 1.0 {
        samples.extend(groups.missing.iter().map(|name| (name.clone(), blank)));
    }
    if with_unready {
        samples.extend(groups.unready.iter().map(|name| (name.clone(), blank)));
    }
    let (after, ..) = compare(&samples, &requests, target)?;
    let turned = (ratio < 1.0 && after > 1.0) || (ratio > 1.0 && after < 1.0);
    if tolerance.covers(after) || turned {
        return Ok(keep);
    }
    let replicas = ceil(after * samples.len() as f64);
    if (after < 1.0 && replicas > current) || (after > 1.0 && replicas < current) {
        return Ok(keep);
    }
    Ok(Proposal { replicas, ..keep })
}

/// Usage by target, utilization in percent, and average usage.
fn compare(
    samples: &Samples,
    requests: &BTreeMap<String, i64>,
    target: Target,
) -> Result<(f64, Option<i32>, i64), CalculationError> {
    match target {
        Target::Average(wanted) => {
            let total: i64 = samples.values().fold(0, |sum, sample| sum.saturating_add(sample.value));
            let average = total / i64::try_from(samples.len()).unwrap_or(1).max(1);
            Ok((average as f64 / wanted as f64, None, average))
        }
        Target::Utilization(wanted) => {
            let (mut used, mut requested, mut count) = (0_i64, 0_i64, 0_i64);
            for (name, sample) in samples {
                let Some(request) = requests.get(name) else { continue };
                used = used.saturating_add(sample.value);
                requested = requested.saturating_add(*request);
                count += 1;
            }
            if requested == 0 {
                return Err(CalculationError::NoMatch);
            }
            let percent = used.saturating_mul(100) / requested;
            let utilization = i32::try_from(percent).unwrap_or(i32::MAX);
            Ok((percent as f64 / f64::from(wanted), Some(utilization), used / count.max(1)))
        }
    }
}

fn requests(
    pods: &[Arc<Pod>],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<String, i64>, CalculationError> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let Some(spec) = &pod.spec else { continue };
        // A container that the metric names has precedence over the requests of the pod.
        if container.is_none() && pod_resources::has_pod_level_requests(pod) {
            let total = pod_resources::total(pod, List::Requests, Source::Spec);
            let Some(request) = total.get(resource) else {
                return Err(CalculationError::NoPodRequest { resource: resource.to_owned(), pod: name });
            };
            all.insert(name, request.milli_value());
            continue;
        }
        let sidecars = spec.init_containers.iter().flatten().filter(|init| pod_resources::is_sidecar(init));
        let mut sum = 0_i64;
        let mut found = false;
        for each in spec
            .containers
            .iter()
            .chain(sidecars)
            .filter(|each| container.is_none_or(|only| only == each.name))
        {
            let request = each.resources.as_ref().and_then(|all| all.requests.as_ref()?.get(resource));
            let Some(request) = request else {
                return Err(CalculationError::NoRequest {
                    resource: resource.to_owned(),
                    container: each.name.clone(),
                    pod: name,
                });
            };
            sum = sum.saturating_add(Quantity::parse(&request.0).map_or(0, |amount| amount.milli_value()));
            found = true;
        }
        if let (Some(container), false) = (container, found) {
            return Err(CalculationError::NoContainer { container: container.to_owned(), pod: name });
        }
        all.insert(name, sum);
    }
    Ok(all)
}

/// Replicas by the total value of a metric.
pub fn by_total(
    current: i32,
    usage: i64,
    target: i64,
    pods: &[Arc<Pod>],
    tolerance: Tolerance,
) -> Result<Proposal, CalculationError> {
    let ratio = usage as f64 / target as f64;
    let keep = Proposal { replicas: current, utilization: None, usage };
    if current == 0 {
        return Ok(Proposal { replicas: ceil(ratio), ..keep });
    }
    if tolerance.covers(ratio) {
        return Ok(keep);
    }
    if pods.is_empty() {
        return Err(CalculationError::NoPods);
    }
    let ready =
        pods.iter().filter(|pod| pod_facts::phase(pod) == "Running" && pod_facts::is_ready(pod)).count();
    Ok(Proposal { replicas: ceil(ratio * ready as f64), ..keep })
}

/// Replicas by the average value of a metric per pod.
#[must_use]
pub fn by_part(current: i32, usage: i64, target: i64, tolerance: Tolerance) -> Proposal {
    let ratio = usage as f64 / (target as f64 * f64::from(current));
    let replicas = if tolerance.covers(ratio) { current } else { ceil(usage as f64 / target as f64) };
    let part = (usage as f64 / f64::from(current.max(1))).ceil();
    Proposal { replicas, utilization: None, usage: part as i64 }
}

/// Rounds up, saturating.
fn ceil(number: f64) -> i32 {
    let up = number.ceil();
    if up >= f64::from(i32::MAX) { i32::MAX } else { up as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, pod, ready_at, time};
    use serde_json::json;

    const TOLERANCE: Tolerance = Tolerance {
        down: 0.1,
        up: 0.1,
        cpu_initialization: SignedDuration::from_secs(300),
        readiness_delay: SignedDuration::from_secs(30),
    };

    fn fleet(ready: usize, pending: usize) -> Vec<Arc<Pod>> {
        let make = |n: usize| {
            let mut pod = pod(&format!("p{n}"), if n < ready { "Running" } else { "Pending" });
            pod.spec = serde_json::from_value(json!({
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }],
            }))
            .expect("a spec");
            pod.status.get_or_insert_default().start_time = Some(time(0));
            Arc::new(if n < ready { ready_at(pod, 1) } else { pod })
        };
        (0..ready + pending).map(make).collect()
    }

    fn samples(values: &[i64]) -> Samples {
        let sample = |value| Sample { value, at: at(10_000), window: SignedDuration::from_secs(30) };
        values.iter().enumerate().map(|(n, value)| (format!("p{n}"), sample(*value))).collect()
    }

    fn utilization(pods: &[Arc<Pod>], values: &[i64], target: i32) -> Result<i32, CalculationError> {
        let current = i32::try_from(pods.len()).expect("few");
        let target = Target::Utilization(target);
        let resource = Some(("cpu", None));
        by_pods(current, target, samples(values), pods, resource, TOLERANCE, at(10_000))
            .map(|found| found.replicas)
    }

    #[test]
    fn replicas_follow_target_utilization() {
        for (values, target, expected) in [
            (vec![500, 500, 500], 50, 3),
            (vec![900, 900, 900], 50, 6),
            (vec![100, 100, 100], 50, 1),
            // Within the tolerance of 10 % nothing changes.
            (vec![540, 540, 540], 50, 3),
        ] {
            assert_eq!(utilization(&fleet(3, 0), &values, target), Ok(expected), "{values:?}");
        }
    }

    #[test]
    fn pods_without_metrics_dampen_change() {
        // Two of three have metrics, low: the third counts as fully used.
        assert_eq!(utilization(&fleet(3, 0), &[100, 100], 50), Ok(3));
        // High: the third counts as idle.
        assert_eq!(utilization(&fleet(3, 0), &[1000, 1000], 50), Ok(4));
        // Pending pods count as idle when scaling up.
        assert_eq!(utilization(&fleet(2, 2), &[1000, 1000], 50), Ok(4));
        assert_eq!(utilization(&fleet(2, 0), &[], 50), Err(CalculationError::NoMetrics));
        assert_eq!(utilization(&[], &[], 50), Err(CalculationError::NoPods));
    }

    #[test]
    fn utilization_without_requests_fails() {
        let mut pods = fleet(1, 0);
        let mut bare = pods[0].as_ref().clone();
        bare.spec = serde_json::from_value(json!({ "containers": [{ "name": "c" }] })).expect("a spec");
        pods[0] = Arc::new(bare);
        assert!(matches!(utilization(&pods, &[100], 50), Err(CalculationError::NoRequest { .. })));
        let average = by_pods(1, Target::Average(50), samples(&[100]), &pods, None, TOLERANCE, at(10_000));
        assert_eq!(average.map(|found| (found.replicas, found.usage)), Ok((2, 100)));
    }

    #[test]
    fn requests_match_vectors() {
        for vector in vectors::autoscaler_requests() {
            let pod: Pod = serde_json::from_value(vector.pod).expect("a pod");
            let found = requests(&[Arc::new(pod)], "cpu", vector.container.as_deref());
            let found = found.map(|all| all["p"]).map_err(|error| error.to_string());
            assert_eq!(found, vector.milli_cpu, "{}", vector.name);
        }
    }

    #[test]
    fn total_and_average_values_yield_replicas() {
        let pods = fleet(2, 0);
        assert_eq!(by_total(2, 30, 10, &pods, TOLERANCE).map(|found| found.replicas), Ok(6));
        assert_eq!(by_total(0, 30, 10, &pods, TOLERANCE).map(|found| found.replicas), Ok(3));
        assert_eq!(by_part(2, 100, 25, TOLERANCE).replicas, 4);
        assert_eq!(by_part(4, 100, 25, TOLERANCE), Proposal { replicas: 4, utilization: None, usage: 25 });
    }
}
