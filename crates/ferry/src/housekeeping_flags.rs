//! Housekeeping flags of a node, with Kubernetes' names.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use clap::Args;
use cluster::HousekeepingConfig;
use cluster::cpus::{CpuSet, parse_policy as parse_cpu_policy};
use cluster::housekeeping::{Signal, parse_amounts};
use machinery::quantity::Quantity;

use crate::flags::parse_duration;

#[derive(Args, Clone, Debug)]
pub struct HousekeepingArgs {
    /// A set of eviction thresholds (e.g. `memory.available<100Mi,nodefs.available<10%`) that if met would trigger a
    /// pod eviction.
    #[arg(long, value_name = "SIGNAL<AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_hard: Option<String>,

    /// A set of eviction thresholds that if met over a corresponding grace period would trigger a pod eviction.
    #[arg(long, value_name = "SIGNAL<AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_soft: Option<String>,

    /// A set of eviction grace periods (e.g. `memory.available=1m30s`) that correspond to how long a soft eviction
    /// threshold must hold before triggering a pod eviction.
    #[arg(long, value_name = "SIGNAL=TIME[,...]", help_heading = "Housekeeping")]
    pub eviction_soft_grace_period: Option<String>,

    /// A set of minimum reclaims (e.g. `nodefs.available=1Gi`) that describes the minimum amount of resource the
    /// kubelet will reclaim when performing a pod eviction if that resource is under pressure.
    #[arg(long, value_name = "SIGNAL=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_minimum_reclaim: Option<String>,

    /// Duration for which the kubelet has to wait before transitioning out of an eviction pressure condition.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub eviction_pressure_transition_period: Duration,

    /// Maximum allowed grace period (in seconds) to use when terminating pods in response to a soft eviction
    /// threshold being met.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = "Housekeeping")]
    pub eviction_max_pod_grace_period: i64,

    /// A set of ResourceName=ResourceQuantity (e.g. `cpu=100m,memory=200Mi`) pairs that describe resources reserved
    /// for kubernetes system components.
    #[arg(long, value_name = "NAME=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub kube_reserved: Option<String>,

    /// A set of ResourceName=ResourceQuantity pairs that describe resources reserved for non-kubernetes components.
    #[arg(long, value_name = "NAME=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub system_reserved: Option<String>,

    /// CPU Manager policy to use: `none` or `static`.
    #[arg(long, value_name = "POLICY", default_value = "none", help_heading = "Housekeeping")]
    pub cpu_manager_policy: String,

    /// A set of key=value CPU Manager policy options to use, to fine tune their behaviour.
    #[arg(long, value_name = "NAME=BOOL[,...]", help_heading = "Housekeeping")]
    pub cpu_manager_policy_options: Option<String>,

    /// CPU Manager reconciliation period. Examples: `10s`, or `1m`.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub cpu_manager_reconcile_period: Duration,

    /// A comma-separated list of CPUs or CPU ranges that are reserved for system and kubernetes usage. This specific
    /// list will supersede cpu counts in `--system-reserved` and `--kube-reserved`.
    #[arg(long, value_name = "CPUS", help_heading = "Housekeeping")]
    pub reserved_cpus: Option<String>,

    /// The percent of disk usage after which image garbage collection is always run.
    #[arg(long, value_name = "PERCENT", default_value_t = 85, help_heading = "Housekeeping")]
    pub image_gc_high_threshold: i64,

    /// The percent of disk usage before which image garbage collection is never run. Lowest disk usage to garbage
    /// collect to.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, help_heading = "Housekeeping")]
    pub image_gc_low_threshold: i64,

    /// Minimum age for an unused image before it is garbage collected.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub minimum_image_ttl_duration: Duration,

    /// Maximum age for an unused image before it is garbage collected; 0 disables collection by age.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub image_maximum_gc_age: Duration,

    /// Set the maximum size of container log file before it is rotated.
    #[arg(long, value_name = "SIZE", default_value = "10Mi", help_heading = "Housekeeping")]
    pub container_log_max_size: String,

    /// Set the maximum number of container log files that can be present for a container. The number must be >= 2.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Housekeeping")]
    pub container_log_max_files: usize,

    /// Set the maximum number of processes per pod; -1 means no limit.
    #[arg(long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, help_heading = "Housekeeping")]
    pub pod_max_pids: i64,

    /// Total duration that the node delays its shutdown for pod termination, by an inhibitor lock of systemd-logind;
    /// 0 disables it.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub node_shutdown_grace_period: Duration,

    /// Part of `--node-shutdown-grace-period` reserved for critical pods, which are terminated last.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub node_shutdown_grace_period_critical_pods: Duration,

    /// Shutdown grace periods by pod priority, instead of `--node-shutdown-grace-period`: each applies to pods from that
    /// priority up to the next; lower priorities are terminated first.
    #[arg(
        long,
        value_name = "PRIORITY=TIME[,...]",
        conflicts_with = "node_shutdown_grace_period",
        help_heading = "Housekeeping"
    )]
    pub node_shutdown_grace_period_by_pod_priority: Option<String>,

    /// Comma-separated allowlist of unsafe sysctls or unsafe sysctl patterns (ending in `*`), such as `kernel.msg*`.
    #[arg(long, value_name = "NAME[,...]", value_delimiter = ',', help_heading = "Housekeeping")]
    pub allowed_unsafe_sysctls: Vec<String>,

    /// Enable creation of QoS cgroup hierarchy, if true top level QoS and pod cgroups are created.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, help_heading = "Housekeeping")]
    pub cgroups_per_qos: bool,
}

impl HousekeepingArgs {
    pub fn apply(self, housekeeping: &mut HousekeepingConfig) -> Result<()> {
        let eviction = &mut housekeeping.eviction;
        if let Some(text) = self.eviction_hard {
            eviction.set_hard(&parse_amounts(&text, '<').context("--eviction-hard")?);
        }
        let graces = durations(self.eviction_soft_grace_period.as_deref().unwrap_or_default())
            .context("--eviction-soft-grace-period")?;
        if let Some(text) = self.eviction_soft {
            let amounts = parse_amounts(&text, '<').context("--eviction-soft")?;
            eviction.set_soft(&amounts, &graces).context("--eviction-soft")?;
        }
        if let Some(text) = self.eviction_minimum_reclaim {
            eviction.reclaim = parse_amounts(&text, '=').context("--eviction-minimum-reclaim")?;
        }
        eviction.transition = self.eviction_pressure_transition_period;
        eviction.max_pod_grace = self.eviction_max_pod_grace_period;
        for (flag, text) in
            [("--kube-reserved", self.kube_reserved), ("--system-reserved", self.system_reserved)]
        {
            for (name, milli) in amounts(text.as_deref().unwrap_or_default()).context(flag)? {
                let sum = housekeeping.reserved.entry(name).or_default();
                *sum = sum.saturating_add(milli);
            }
        }
        let mut options = BTreeMap::new();
        for pair in pairs(self.cpu_manager_policy_options.as_deref().unwrap_or_default()) {
            let (name, value) = pair.context("--cpu-manager-policy-options")?;
            options.insert(name.to_owned(), value.to_owned());
        }
        let policy = parse_cpu_policy(&self.cpu_manager_policy, &options).map_err(Error::msg);
        housekeeping.cpu_manager.static_policy = policy.context("--cpu-manager-policy")?;
        ensure!(
            self.cpu_manager_reconcile_period > Duration::ZERO,
            "--cpu-manager-reconcile-period must be greater than 0"
        );
        housekeeping.cpu_manager.reconcile_period = self.cpu_manager_reconcile_period;
        if let Some(text) = self.reserved_cpus.filter(|text| !text.is_empty()) {
            let cpus = CpuSet::parse(&text).context("--reserved-cpus")?;
            let milli = i64::try_from(cpus.len()).unwrap_or(i64::MAX).saturating_mul(1000);
            housekeeping.reserved.insert("cpu".to_owned(), milli);
            housekeeping.cpu_manager.reserved = Some(cpus);
        }
        let (begin, until) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        ensure!(
            (0..=100).contains(&until) && until <= begin && begin <= 100,
            "--image-gc-low-threshold must not exceed --image-gc-high-threshold, and both must be percentages"
        );
        (housekeeping.images.begin, housekeeping.images.until) = (begin, until);
        housekeeping.images.min_age = self.minimum_image_ttl_duration;
        housekeeping.images.max_age = Some(self.image_maximum_gc_age).filter(|age| !age.is_zero());
        let size = Quantity::parse(&self.container_log_max_size)
            .ok()
            .and_then(|size| u64::try_from(size.value()).ok())
            .with_context(|| {
                format!("--container-log-max-size: {:?} is not a quantity", self.container_log_max_size)
            })?;
        housekeeping.logs.max_size = size;
        ensure!(self.container_log_max_files > 1, "--container-log-max-files must be 2 or more");
        housekeeping.logs.max_files = self.container_log_max_files;
        housekeeping.pod_pids = Some(self.pod_max_pids).filter(|pids| *pids > 0);
        let (total, critical) =
            (self.node_shutdown_grace_period, self.node_shutdown_grace_period_critical_pods);
        ensure!(
            critical <= total,
            "--node-shutdown-grace-period-critical-pods must not exceed --node-shutdown-grace-period"
        );
        housekeeping.set_shutdown(total, critical);
        if let Some(text) = self.node_shutdown_grace_period_by_pod_priority {
            let steps = steps(&text).context("--node-shutdown-grace-period-by-pod-priority")?;
            housekeeping.set_shutdown_by_priority(steps);
        }
        housekeeping.unsafe_sysctls = self.allowed_unsafe_sysctls;
        housekeeping.cgroups_per_qos = self.cgroups_per_qos;
        Ok(())
    }
}

/// Parses grace periods by priority.
fn steps(text: &str) -> Result<Vec<(i32, Duration)>> {
    let parsed = pairs(text).map(|pair| {
        let (priority, time) = pair?;
        let priority = priority.parse().with_context(|| format!("{priority:?} is not a priority"))?;
        Ok((priority, parse_duration(time).map_err(|error| anyhow::anyhow!("{error}"))?))
    });
    parsed.collect()
}

fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').with_context(|| format!("{part:?} is not NAME=VALUE")))
}

fn durations(text: &str) -> Result<BTreeMap<Signal, Duration>> {
    pairs(text)
        .map(|pair| {
            let (name, value) = pair?;
            let signal = Signal::parse(name).with_context(|| format!("unknown eviction signal {name:?}"))?;
            Ok((signal, parse_duration(value).map_err(anyhow::Error::msg)?))
        })
        .collect()
}

/// Parses quantities to thousandths.
fn amounts(text: &str) -> Result<BTreeMap<String, i64>> {
    pairs(text)
        .map(|pair| {
            let (name, value) = pair?;
            let quantity =
                Quantity::parse(value).ok().with_context(|| format!("{value:?} is not a quantity"))?;
            Ok((name.to_owned(), quantity.milli_value()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        housekeeping: HousekeepingArgs,
    }

    fn parse(flags: &[&str]) -> Result<HousekeepingConfig> {
        let line = Line::try_parse_from(["x"].iter().chain(flags))?;
        let mut housekeeping = HousekeepingConfig::default();
        line.housekeeping.apply(&mut housekeeping)?;
        Ok(housekeeping)
    }

    #[test]
    fn housekeeping_flags_match_kubernetes() {
        let housekeeping = parse(&[
            "--eviction-hard=memory.available<200Mi",
            "--eviction-soft=nodefs.available<15%",
            "--eviction-soft-grace-period=nodefs.available=90s",
            "--kube-reserved=cpu=100m,memory=1Mi",
            "--system-reserved=cpu=200m",
            "--container-log-max-size=1Mi",
        ])
        .expect("flags");
        assert_eq!(housekeeping.eviction.thresholds.len(), 2);
        assert_eq!(housekeeping.reserved["cpu"], 300);
        assert_eq!(housekeeping.logs.max_size, 1 << 20);
        for wrong in [
            "--eviction-hard=memory.available",
            "--eviction-soft=memory.available<1Gi",
            "--kube-reserved=cpu",
            "--image-gc-low-threshold=90",
            "--container-log-max-files=1",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }
}
