//! Translates requests and limits to kernel settings.

use std::collections::BTreeSet;

use cri::v1::{HugepageLimit, LinuxContainerResources};
use objects::core::v1::{Container, Pod};

use crate::lifecycle::qos;

const PERIOD_MICROSECONDS: i64 = 100_000;
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;

/// Converts milli-CPU to CPU shares.
#[must_use]
pub fn shares(milli_cpu: i64) -> i64 {
    if milli_cpu <= 0 {
        return MIN_SHARES;
    }
    milli_cpu.saturating_mul(1024).checked_div(1000).unwrap_or(MAX_SHARES).clamp(MIN_SHARES, MAX_SHARES)
}

/// Converts milli-CPU to CFS quota in microseconds per period; 0 is no limit.
#[must_use]
pub fn quota(milli_cpu: i64) -> i64 {
    if milli_cpu <= 0 {
        return 0;
    }
    milli_cpu.saturating_mul(PERIOD_MICROSECONDS).checked_div(1000).unwrap_or(i64::MAX).max(MIN_QUOTA)
}

/// Resource settings of one container.
#[must_use]
pub fn of_container(pod: &Pod, container: &Container, memory_capacity: i64) -> LinuxContainerResources {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|own| own.requests.as_ref());
    let limits = resources.and_then(|own| own.limits.as_ref());
    let limit = qos::amount(limits, "cpu").unwrap_or(0);
    let request = qos::amount(requests, "cpu").unwrap_or(limit);
    let pages = limits.into_iter().flatten().filter_map(|(name, _)| {
        Some(huge_pages(name.strip_prefix("hugepages-")?, qos::whole(limits, name)?))
    });
    LinuxContainerResources {
        cpu_period: PERIOD_MICROSECONDS,
        cpu_quota: quota(limit),
        cpu_shares: shares(request),
        memory_limit_in_bytes: qos::whole(limits, "memory").unwrap_or(0),
        oom_score_adj: qos::oom_score_adjustment(pod, container, memory_capacity),
        hugepage_limits: pages.collect(),
        ..LinuxContainerResources::default()
    }
}

/// Huge page limit, with the page size in the kernel's notation.
fn huge_pages(size: &str, bytes: i64) -> HugepageLimit {
    let page_size = size.replace("Mi", "MB").replace("Gi", "GB").replace("Ki", "KB");
    HugepageLimit { page_size, limit: u64::try_from(bytes).unwrap_or(0) }
}

/// Resource settings of a whole pod.
#[must_use]
pub fn of_pod(pod: &Pod) -> LinuxContainerResources {
    let Some(spec) = &pod.spec else { return LinuxContainerResources::default() };
    let memory = qos::pod_limits(spec, "memory").map_or(0, |milli| milli / 1000);
    let names: BTreeSet<&str> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref())
        .flat_map(|limits| limits.keys())
        .filter_map(|name| name.strip_prefix("hugepages-"))
        .collect();
    let pages = names
        .into_iter()
        .map(|size| huge_pages(size, qos::total_limits(spec, &format!("hugepages-{size}")) / 1000));
    LinuxContainerResources {
        hugepage_limits: pages.collect(),
        cpu_period: PERIOD_MICROSECONDS,
        cpu_quota: quota(qos::pod_limits(spec, "cpu").unwrap_or(0)),
        cpu_shares: shares(qos::pod_requests(spec, "cpu")),
        memory_limit_in_bytes: memory,
        ..LinuxContainerResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milli_cpu_converts_to_shares_and_quota() {
        assert_eq!([shares(0), shares(1), shares(100), shares(1000)], [2, 2, 102, 1024]);
        assert_eq!([quota(0), quota(5), quota(100), quota(2500)], [0, 1000, 10_000, 250_000]);
    }
}
