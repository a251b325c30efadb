//! Cgroups above containers: one per pod, one per QoS class, one for all pods.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use base::metrics::HistogramVec;
use objects::core::v1::Pod;
use parking_lot::Mutex;
use sys::cgroups::{Hierarchy, Resources};

use crate::configure::resources::{of_pod, shares};
use crate::configure::sandbox::cgroup;
use crate::lifecycle::qos::{self, Qos};

/// Cgroups of a node's pods.
pub struct Cgroups {
    hierarchy: Option<Hierarchy>,
    root: String,
    pods: Mutex<Pods>,
    pod_pids: Option<i64>,
    durations: Option<HistogramVec>,
}

#[derive(Default)]
struct Pods {
    /// CPU requests of burstable pods, in thousandths.
    burstable: HashMap<String, i64>,
    /// Current CPU weight of the burstable class.
    weight: Option<i64>,
}

/// Default process limit of a pod: a share of the machine's limit, so that one pod cannot exhaust the node.
fn default_pod_pids() -> i64 {
    let setting = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    share_of_pids(setting("pid_max"), setting("threads-max"))
}

fn share_of_pids(pid_max: Option<i64>, threads_max: Option<i64>) -> i64 {
    let most = pid_max.into_iter().chain(threads_max).min().unwrap_or(32_768);
    (most / 4).max(1024)
}

impl Cgroups {
    /// Does nothing without a cgroup hierarchy or if cgroups are disabled.
    #[must_use]
    pub fn open(root: &str, wanted: bool, pod_pids: Option<i64>) -> Self {
        let hierarchy = Hierarchy::detect().ok().filter(|_| wanted);
        let pod_pids = Some(pod_pids.unwrap_or_else(default_pod_pids));
        Self { hierarchy, root: root.to_owned(), pods: Mutex::default(), pod_pids, durations: None }
    }

    /// Records durations of operations.
    #[must_use]
    pub fn timed_by(self, durations: HistogramVec) -> Self {
        Self { durations: Some(durations), ..self }
    }

    fn record(&self, operation: &str, begun: Instant) {
        if let Some(durations) = &self.durations {
            durations.with_label_values(&[operation]).observe(begun.elapsed().as_secs_f64());
        }
    }

    fn set(&self, path: &str, resources: &Resources) -> io::Result<()> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let group =
            hierarchy.group(path).ok_or_else(|| io::Error::other(format!("{path} is not a cgroup")))?;
        let begun = Instant::now();
        let operation = if group.exists() { "update" } else { "create" };
        let outcome = group.create().and_then(|()| group.limit(resources));
        self.record(operation, begun);
        outcome
    }

    /// Creates the parent cgroups. `memory` and `milli_cpu` are the capacity minus reservations.
    pub fn begin(&self, memory: i64, milli_cpu: i64) -> io::Result<()> {
        let all = Resources {
            cpu_shares: u64::try_from(shares(milli_cpu)).ok(),
            memory_limit: Some(memory).filter(|memory| *memory > 0),
            ..Resources::default()
        };
        self.set(&self.root, &all)?;
        let least = Resources { cpu_shares: u64::try_from(shares(0)).ok(), ..Resources::default() };
        self.set(&format!("{}/burstable", self.root), &least)?;
        self.set(&format!("{}/besteffort", self.root), &least)
    }

    /// Creates a pod's cgroup or updates its limits.
    pub fn put(&self, pod: &Pod, disables_quota: bool) -> io::Result<()> {
        let mut limits = limits(pod, self.pod_pids);
        if disables_quota {
            limits.cpu_quota = Some(-1);
        }
        self.set(&cgroup(&self.root, pod), &limits)?;
        if qos::class(pod) == Qos::Burstable {
            let request = pod.spec.as_ref().map_or(0, |spec| qos::pod_requests(spec, "cpu"));
            self.weigh(|burstable| {
                burstable.insert(pod.metadata.uid.clone().unwrap_or_default(), request);
            })?;
        }
        Ok(())
    }

    /// Removes a pod's cgroup; its containers must be gone.
    pub fn remove(&self, pod: &Pod) -> io::Result<()> {
        self.weigh(|burstable| {
            burstable.remove(pod.metadata.uid.as_deref().unwrap_or(""));
        })?;
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let (uid, begun) = (pod.metadata.uid.as_deref().unwrap_or(""), Instant::now());
        // The class of a pod known only to the runtime is unknown.
        for class in ["", "/burstable", "/besteffort"] {
            if let Some(group) =
                hierarchy.group(&format!("{}{class}/pod{uid}", self.root)).filter(|_| !uid.is_empty())
            {
                group.remove()?;
            }
        }
        self.record("destroy", begun);
        Ok(())
    }

    /// Sets the CPU weight of the burstable class to the sum of its requests.
    fn weigh(&self, change: impl FnOnce(&mut HashMap<String, i64>)) -> io::Result<()> {
        let mut pods = self.pods.lock();
        change(&mut pods.burstable);
        let weight = shares(pods.burstable.values().fold(0, |sum, one| sum.saturating_add(*one)));
        if pods.weight == Some(weight) {
            return Ok(());
        }
        pods.weight = Some(weight);
        let resources = Resources { cpu_shares: u64::try_from(weight).ok(), ..Resources::default() };
        self.set(&format!("{}/burstable", self.root), &resources)
    }
}

fn limits(pod: &Pod, pids: Option<i64>) -> Resources {
    let wanted = of_pod(pod);
    let some = |number: i64| Some(number).filter(|number| *number > 0);
    Resources {
        cpu_shares: u64::try_from(wanted.cpu_shares).ok(),
        // Resets limits that may have been set before.
        cpu_quota: some(wanted.cpu_quota).or(Some(-1)),
        cpu_period: u64::try_from(wanted.cpu_period).ok(),
        memory_limit: some(wanted.memory_limit_in_bytes).or(Some(-1)),
        pids_limit: pids.filter(|pids| *pids > 0),
        hugepages: wanted.hugepage_limits.into_iter().map(|limit| (limit.page_size, limit.limit)).collect(),
        ..Resources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_cgroup_limits_sum_containers() {
        let pod: Pod = serde_json::from_str(
            r#"{"spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Mi", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "100m"}}},
                {"name": "b", "resources": {"limits": {"cpu": "1", "memory": "2Mi"}, "requests": {"cpu": "100m"}}}]}}"#,
        )
        .expect("a pod");
        let got = limits(&pod, Some(100));
        assert_eq!(
            (got.cpu_quota, got.memory_limit, got.pids_limit),
            (Some(150_000), Some(3 << 20), Some(100))
        );
        assert_eq!(got.cpu_shares, Some(204));
        assert_eq!(got.hugepages, [("2MB".to_owned(), 4 << 20)]);
        let free = limits(&Pod::default(), None);
        assert_eq!((free.cpu_quota, free.memory_limit), (Some(-1), Some(-1)));
    }

    #[test]
    fn pod_without_configured_limit_has_share_of_pids() {
        for (pid_max, threads_max, wanted) in [
            (Some(32_768), Some(100_000), 8192),
            (Some(4_194_304), Some(95_000), 23_750),
            (Some(1000), None, 1024),
            (None, None, 8192),
        ] {
            assert_eq!(share_of_pids(pid_max, threads_max), wanted);
        }
        let limit = |pids| Cgroups::open("/none", false, pids).pod_pids;
        assert_eq!(limit(Some(77)), Some(77));
        assert!(limit(None).is_some_and(|pids| pids >= 1024));
    }
}
