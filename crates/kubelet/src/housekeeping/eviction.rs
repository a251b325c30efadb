//! Evicting pods before the node itself suffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use machinery::quantity::Quantity;
use parking_lot::Mutex;

use crate::configure::labels;
use crate::events::Kind;
use crate::lifecycle::qos::pod_requests;
use crate::node::{Pressure, file_system, memory_available, memory_capacity};
use crate::pods::Workers;
use crate::shared::Shared;

/// Pressure is told for a while after it has gone, so that it does not flap.
const PRESSURE_STAYS: SignedDuration = SignedDuration::from_mins(5);

/// When to evict: bytes that must stay available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub memory: Amount,
    pub disk: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(i64),
    Percent(i64),
}

impl Default for Thresholds {
    /// Memory as Kubernetes has it. Of the disk an absolute amount: a tenth of a large disk is far from nothing.
    fn default() -> Self {
        Self { memory: Amount::Bytes(100 << 20), disk: Amount::Bytes(1 << 30) }
    }
}

impl Amount {
    fn bytes(self, total: i64) -> i64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (total / 100).saturating_mul(percent),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            return percent.parse().ok().map(Self::Percent);
        }
        Quantity::parse(text).ok().map(|quantity| Self::Bytes(quantity.value()))
    }
}

impl std::str::FromStr for Thresholds {
    type Err = String;

    /// `memory.available<100Mi,nodefs.available<10%`, as Kubernetes' `--eviction-hard` has it.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut thresholds = Self { memory: Amount::Bytes(0), disk: Amount::Bytes(0) };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (signal, amount) =
                part.split_once('<').ok_or_else(|| format!("{part:?} is not SIGNAL<AMOUNT"))?;
            let amount = Amount::parse(amount).ok_or_else(|| format!("{part:?} has no amount"))?;
            match signal {
                "memory.available" => thresholds.memory = amount,
                "nodefs.available" => thresholds.disk = amount,
                "imagefs.available" | "nodefs.inodesFree" | "imagefs.inodesFree" | "pid.available" => {}
                _ => return Err(format!("{signal:?} is not known")),
            }
        }
        Ok(thresholds)
    }
}

/// What was seen of pressure.
#[derive(Default)]
pub struct Eviction {
    memory_at: Option<Timestamp>,
    disk_at: Option<Timestamp>,
}

/// A pod, what it uses and what it asked for.
#[derive(Clone, Debug)]
struct Candidate {
    uid: String,
    priority: i32,
    used: i64,
    requested: i64,
}

impl Eviction {
    pub async fn look(&mut self, shared: &Shared, workers: &Arc<Workers>, pressure: &Mutex<Pressure>) {
        let now = shared.clock.now();
        let thresholds = shared.config.eviction;
        let memory = memory_available();
        let memory_limit = thresholds.memory.bytes(memory_capacity());
        let (total, disk) = file_system(&shared.config.directory);
        let disk_limit = thresholds.disk.bytes(total);
        if memory < memory_limit {
            self.memory_at = Some(now);
        }
        if disk < disk_limit {
            self.disk_at = Some(now);
        }
        let still = |at: Option<Timestamp>| at.is_some_and(|at| now.duration_since(at) < PRESSURE_STAYS);
        *pressure.lock() = Pressure { memory: still(self.memory_at), disk: still(self.disk_at), pid: false };
        let (resource, limit, available) = if memory < memory_limit {
            ("memory", memory_limit, memory)
        } else if disk < disk_limit {
            ("ephemeral-storage", disk_limit, disk)
        } else {
            return;
        };
        let name = &shared.config.node_name;
        let text = format!("Attempting to reclaim {resource}");
        shared.recorder.node(name, name, Kind::Warning, "EvictionThresholdMet", text);
        let candidates = candidates(shared, &workers.pods(), resource).await;
        if let Some(first) = ranked(candidates).first() {
            let message = format!(
                "The node was low on resource: {resource}. Threshold quantity: {limit}, available: {available}. "
            );
            tracing::warn!(pod = first.uid, resource, available, limit, "evicting");
            workers.evict(&first.uid, "Evicted", message, Some(1));
        }
    }
}

async fn candidates(shared: &Shared, pods: &[Arc<Pod>], resource: &str) -> Vec<Candidate> {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for one in shared.engine.container_stats().await.unwrap_or_default() {
        let uid =
            one.attributes.as_ref().and_then(|attributes| attributes.labels.get(labels::POD_UID)).cloned();
        let amount = if resource == "memory" {
            one.memory.as_ref().and_then(|memory| memory.working_set_bytes.as_ref()).map(|value| value.value)
        } else {
            one.writable_layer.as_ref().and_then(|layer| layer.used_bytes.as_ref()).map(|value| value.value)
        };
        if let (Some(uid), Some(amount)) = (uid, amount) {
            let sum = used.entry(uid).or_default();
            *sum = sum.saturating_add(i64::try_from(amount).unwrap_or(i64::MAX));
        }
    }
    pods.iter()
        .filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let spec = pod.spec.as_ref();
            let critical =
                spec.and_then(|spec| spec.priority).is_some_and(|priority| priority >= 2_000_000_000);
            !matches!(phase, Some("Succeeded" | "Failed")) && !critical && !crate::static_pods::is_static(pod)
        })
        .map(|pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            Candidate {
                used: used.get(&uid).copied().unwrap_or(0),
                requested: pod.spec.as_ref().map_or(0, |spec| pod_requests(spec, resource) / 1000),
                priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
                uid,
            }
        })
        .collect()
}

/// Those first that use more than they asked for, then the less important, then the greediest.
fn ranked(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|one| {
        let over = one.used.saturating_sub(one.requested);
        (over <= 0, one.priority, std::cmp::Reverse(over))
    });
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greediest_of_the_least_important_goes_first() {
        let pod = |uid: &str, priority, used, requested| Candidate {
            uid: uid.to_owned(),
            priority,
            used,
            requested,
        };
        let order = ranked(vec![
            pod("modest", 0, 10, 20),
            pod("important", 100, 500, 10),
            pod("greedy", 0, 300, 10),
            pod("over", 0, 50, 10),
        ]);
        let order: Vec<_> = order.iter().map(|one| one.uid.as_str()).collect();
        assert_eq!(order, ["greedy", "over", "important", "modest"]);
    }

    #[test]
    fn thresholds() {
        let parsed: Thresholds = "memory.available<1Gi,nodefs.available<10%".parse().expect("thresholds");
        assert_eq!(parsed, Thresholds { memory: Amount::Bytes(1 << 30), disk: Amount::Percent(10) });
        assert_eq!(parsed.disk.bytes(1000), 100);
        assert!("nonsense".parse::<Thresholds>().is_err());
        assert!("x.available<1".parse::<Thresholds>().is_err());
    }
}
