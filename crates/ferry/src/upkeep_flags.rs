//! Flags of a node's housekeeping, under Kubernetes' names.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use cluster::Upkeep;
use cluster::housekeeping::{Signal, parse_amounts};
use machinery::quantity::Quantity;

use crate::flags::parse_duration;

#[derive(Args, Clone, Debug)]
pub struct UpkeepArgs {
    /// Evict pods when less than this is available, such as `memory.available<100Mi,nodefs.available<10%`.
    #[arg(long, value_name = "SIGNAL<AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_hard: Option<String>,

    /// Evict pods when less than this is available for longer than the grace period.
    #[arg(long, value_name = "SIGNAL<AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_soft: Option<String>,

    /// How long soft thresholds may be met, such as `memory.available=1m30s`.
    #[arg(long, value_name = "SIGNAL=TIME[,...]", help_heading = "Housekeeping")]
    pub eviction_soft_grace_period: Option<String>,

    /// How much more than the threshold to win back, such as `nodefs.available=1Gi`.
    #[arg(long, value_name = "SIGNAL=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub eviction_minimum_reclaim: Option<String>,

    /// How long pressure is told after it has gone.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub eviction_pressure_transition_period: Duration,

    /// The longest that pods evicted at a soft threshold may take to end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = "Housekeeping")]
    pub eviction_max_pod_grace_period: i64,

    /// What pods do not get because Kubernetes' own parts need it, such as `cpu=100m,memory=200Mi`.
    #[arg(long, value_name = "NAME=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub kube_reserved: Option<String>,

    /// What pods do not get because the system needs it.
    #[arg(long, value_name = "NAME=AMOUNT[,...]", help_heading = "Housekeeping")]
    pub system_reserved: Option<String>,

    /// Remove unused images when more of the disk is used than this, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 85, help_heading = "Housekeeping")]
    pub image_gc_high_threshold: i64,

    /// Remove unused images until no more of the disk is used than this, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 80, help_heading = "Housekeeping")]
    pub image_gc_low_threshold: i64,

    /// Images younger than this stay.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub minimum_image_ttl_duration: Duration,

    /// Images unused for longer than this go; 0 keeps them while there is room.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub image_maximum_gc_age: Duration,

    /// The size at which a container's log is put aside.
    #[arg(long, value_name = "SIZE", default_value = "10Mi", help_heading = "Housekeeping")]
    pub container_log_max_size: String,

    /// Files of one container's log, the current one included.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Housekeeping")]
    pub container_log_max_files: usize,

    /// Most processes of one pod; -1 is no limit.
    #[arg(long, value_name = "N", default_value_t = -1, allow_hyphen_values = true, help_heading = "Housekeeping")]
    pub pod_max_pids: i64,

    /// How long the machine waits for pods when it goes down, by the login manager's leave; 0 does not.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub node_shutdown_grace_period: Duration,

    /// Of that, how long for critical pods, which end last.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration, help_heading = "Housekeeping")]
    pub node_shutdown_grace_period_critical_pods: Duration,

    /// The same by priority instead: pods from that priority on, up to the next, have this long; the least important end
    /// first.
    #[arg(
        long,
        value_name = "PRIORITY=TIME[,...]",
        conflicts_with = "node_shutdown_grace_period",
        help_heading = "Housekeeping"
    )]
    pub node_shutdown_grace_period_by_pod_priority: Option<String>,

    /// Kernel parameters beyond the safe ones that pods may set, such as `kernel.msg*`.
    #[arg(long, value_name = "NAME[,...]", value_delimiter = ',', help_heading = "Housekeeping")]
    pub allowed_unsafe_sysctls: Vec<String>,

    /// Give pods and classes of pods control groups with limits of their own.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, help_heading = "Housekeeping")]
    pub cgroups_per_qos: bool,
}

impl UpkeepArgs {
    pub fn apply(self, upkeep: &mut Upkeep) -> Result<()> {
        let eviction = &mut upkeep.eviction;
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
                let sum = upkeep.reserved.entry(name).or_default();
                *sum = sum.saturating_add(milli);
            }
        }
        let (begin, until) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        ensure!(
            (0..=100).contains(&until) && until <= begin && begin <= 100,
            "--image-gc-low-threshold must not be above --image-gc-high-threshold, and both be percentages"
        );
        (upkeep.images.begin, upkeep.images.until) = (begin, until);
        upkeep.images.min_age = self.minimum_image_ttl_duration;
        upkeep.images.max_age = Some(self.image_maximum_gc_age).filter(|age| !age.is_zero());
        let size = Quantity::parse(&self.container_log_max_size)
            .ok()
            .and_then(|size| u64::try_from(size.value()).ok())
            .with_context(|| {
                format!("--container-log-max-size: {:?} is no size", self.container_log_max_size)
            })?;
        upkeep.logs.max_size = size;
        ensure!(self.container_log_max_files > 1, "--container-log-max-files must be 2 or more");
        upkeep.logs.max_files = self.container_log_max_files;
        upkeep.pod_pids = Some(self.pod_max_pids).filter(|pids| *pids > 0);
        let (total, critical) =
            (self.node_shutdown_grace_period, self.node_shutdown_grace_period_critical_pods);
        ensure!(
            critical <= total,
            "--node-shutdown-grace-period-critical-pods is a part of --node-shutdown-grace-period"
        );
        upkeep.set_shutdown(total, critical);
        if let Some(text) = self.node_shutdown_grace_period_by_pod_priority {
            let steps = steps(&text).context("--node-shutdown-grace-period-by-pod-priority")?;
            upkeep.set_shutdown_by_priority(steps);
        }
        upkeep.unsafe_sysctls = self.allowed_unsafe_sysctls;
        upkeep.cgroups_per_qos = self.cgroups_per_qos;
        Ok(())
    }
}

/// Times by priority.
fn steps(text: &str) -> Result<Vec<(i32, Duration)>> {
    let parsed = pairs(text).map(|pair| {
        let (priority, time) = pair?;
        let priority = priority.parse().with_context(|| format!("{priority:?} is no priority"))?;
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
            let signal = Signal::parse(name).with_context(|| format!("the signal {name:?} is not known"))?;
            Ok((signal, parse_duration(value).map_err(anyhow::Error::msg)?))
        })
        .collect()
}

/// Amounts in thousandths.
fn amounts(text: &str) -> Result<BTreeMap<String, i64>> {
    pairs(text)
        .map(|pair| {
            let (name, value) = pair?;
            let quantity = Quantity::parse(value).ok().with_context(|| format!("{value:?} is no amount"))?;
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
        upkeep: UpkeepArgs,
    }

    fn parse(flags: &[&str]) -> Result<Upkeep> {
        let line = Line::try_parse_from(["x"].iter().chain(flags))?;
        let mut upkeep = Upkeep::default();
        line.upkeep.apply(&mut upkeep)?;
        Ok(upkeep)
    }

    #[test]
    fn flags_are_understood_as_kubernetes_has_them() {
        let upkeep = parse(&[
            "--eviction-hard=memory.available<200Mi",
            "--eviction-soft=nodefs.available<15%",
            "--eviction-soft-grace-period=nodefs.available=90s",
            "--kube-reserved=cpu=100m,memory=1Mi",
            "--system-reserved=cpu=200m",
            "--container-log-max-size=1Mi",
        ])
        .expect("flags");
        assert_eq!(upkeep.eviction.thresholds.len(), 2);
        assert_eq!(upkeep.reserved["cpu"], 300);
        assert_eq!(upkeep.logs.max_size, 1 << 20);
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
