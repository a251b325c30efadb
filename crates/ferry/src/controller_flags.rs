//! Flags of kube-controller-manager that set how controllers work.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{ArgAction, Args};
use cluster::{Components, NodeMasks};

use crate::flags::{parse_cidrs, parse_duration};

/// Flags for the number of workers, and the controllers whose workers they count.
pub const CONCURRENCY: &[(&str, &str)] = &[
    ("concurrent-cron-job-syncs", "cronjob-controller"),
    ("concurrent-daemonset-syncs", "daemonset-controller"),
    ("concurrent-deployment-syncs", "deployment-controller"),
    ("concurrent-endpoint-syncs", "endpoints-controller"),
    ("concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller"),
    ("concurrent-gc-syncs", "garbage-collector-controller"),
    ("concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller"),
    ("concurrent-job-syncs", "job-controller"),
    ("concurrent-namespace-syncs", "namespace-controller"),
    ("concurrent-rc-syncs", "replicationcontroller-controller"),
    ("concurrent-replicaset-syncs", "replicaset-controller"),
    ("concurrent-resource-quota-syncs", "resourcequota-controller"),
    ("concurrent-service-endpoint-syncs", "endpointslice-controller"),
    ("concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller"),
    ("concurrent-statefulset-syncs", "statefulset-controller"),
    ("concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller"),
    ("concurrent-validating-admission-policy-status-syncs", "validatingadmissionpolicy-status-controller"),
    ("mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller"),
];

#[derive(Args, Debug)]
pub struct ControllerArgs {
    /// Should CIDRs for pods be allocated and set on nodes; true if `--cluster-cidr` is given.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
          require_equals = true)]
    pub allocate_node_cidrs: Option<bool>,

    /// Mask size for node cidr in cluster; not with ranges of both families.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,

    /// Mask size for IPv4 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    pub node_cidr_mask_size_ipv4: u8,

    /// Mask size for IPv6 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 64)]
    pub node_cidr_mask_size_ipv6: u8,

    /// CIDR ranges for services in the cluster; nodes get no part of them.
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = parse_cidrs)]
    pub service_cluster_ip_range: Option<crate::flags::Cidrs>,

    /// Amount of time which we allow running Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = parse_duration)]
    pub node_monitor_grace_period: Duration,

    /// Amount of time which we allow starting Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub node_startup_grace_period: Duration,

    /// Number of terminated pods that can exist before they are deleted; not limited if it is not above 0.
    #[arg(long, value_name = "N", default_value_t = 12_500, allow_hyphen_values = true)]
    pub terminated_pod_gc_threshold: i64,

    /// The max length of duration signed certificates will be given.
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s", value_parser = parse_duration)]
    pub cluster_signing_duration: Duration,

    /// The period for syncing the number of pods in horizontal pod autoscaler.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,

    /// The minimum change (from 1.0) in the desired-to-actual metrics ratio for the horizontal pod autoscaler to
    /// consider scaling.
    #[arg(long, value_name = "RATIO", default_value_t = 0.1)]
    pub horizontal_pod_autoscaler_tolerance: f64,

    /// The period after pod start when CPU samples might be skipped.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,

    /// The period after pod start during which readiness changes will be treated as initial readiness.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,

    /// The period for which autoscaler will look backwards and not scale down below any recommendation it made during
    /// that period.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,

    /// Workers of a controller, such as `deployment-controller=10`; also `--concurrent-deployment-syncs=10`.
    #[arg(long, value_name = "CONTROLLER=N", value_parser = parse_workers)]
    pub concurrency: Vec<(String, usize)>,
}

impl ControllerArgs {
    /// Sets what these flags mean to Ferry.
    pub fn apply(self, components: &mut Components) -> Result<()> {
        let families = |v6: bool| components.cluster_cidrs.iter().any(|cidr| cidr.contains(':') == v6);
        let mut masks = NodeMasks { v4: self.node_cidr_mask_size_ipv4, v6: self.node_cidr_mask_size_ipv6 };
        if let Some(mask) = self.node_cidr_mask_size {
            let dual = families(true) && families(false);
            ensure!(!dual, "usage of --node-cidr-mask-size is not allowed with dual-stack clusters");
            (masks.v4, masks.v6) = (mask, mask);
        }
        for cidr in &components.cluster_cidrs {
            let (address, bits) = cidr.split_once('/').context("--cluster-cidr: not a range")?;
            let is_v6 = address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
            let (mask, most) = if is_v6 { (masks.v6, 128) } else { (masks.v4, 32) };
            let bits: u8 = bits.parse().with_context(|| format!("--cluster-cidr: {cidr} is not a range"))?;
            ensure!(
                (bits..=most).contains(&mask) && mask - bits <= 16,
                "a node mask of /{mask} does not fit into the range {cidr}"
            );
        }
        components.node_masks = masks;
        components.service_cidrs =
            self.service_cluster_ip_range.map(|ranges| ranges.texts()).unwrap_or_default();
        match self.allocate_node_cidrs {
            Some(true) => {
                ensure!(!components.cluster_cidrs.is_empty(), "--allocate-node-cidrs needs --cluster-cidr")
            }
            Some(false) => components.cluster_cidrs.clear(),
            None => {}
        }
        let settings = &mut components.settings;
        let signed = |duration: Duration| duration.try_into().context("a duration is too long");
        settings.node_monitor_grace = signed(self.node_monitor_grace_period)?;
        settings.node_startup_grace = signed(self.node_startup_grace_period)?;
        let threshold = usize::try_from(self.terminated_pod_gc_threshold).ok();
        settings.terminated_pods = threshold.filter(|threshold| *threshold > 0);
        settings.signing_duration = signed(self.cluster_signing_duration)?;
        let autoscaler = &mut settings.autoscaler;
        ensure!(
            !self.horizontal_pod_autoscaler_sync_period.is_zero(),
            "--horizontal-pod-autoscaler-sync-period is zero"
        );
        autoscaler.period = self.horizontal_pod_autoscaler_sync_period;
        ensure!(
            self.horizontal_pod_autoscaler_tolerance >= 0.0,
            "--horizontal-pod-autoscaler-tolerance is negative"
        );
        autoscaler.tolerance = self.horizontal_pod_autoscaler_tolerance;
        autoscaler.cpu_initialization = signed(self.horizontal_pod_autoscaler_cpu_initialization_period)?;
        autoscaler.readiness_delay = signed(self.horizontal_pod_autoscaler_initial_readiness_delay)?;
        autoscaler.downscale_window = signed(self.horizontal_pod_autoscaler_downscale_stabilization)?;
        components.workers.0.extend(self.concurrency);
        Ok(())
    }
}

fn parse_workers(text: &str) -> Result<(String, usize), String> {
    let (name, workers) = text.split_once('=').ok_or("CONTROLLER=N")?;
    if !CONCURRENCY.iter().any(|(_, known)| *known == name) {
        return Err(format!("{name:?} has no number of workers to set"));
    }
    match workers.parse() {
        Ok(workers) if workers > 0 => Ok((name.to_owned(), workers)),
        _ => Err(format!("{workers:?} is not a number above 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ControllerArgs,
    }

    fn configured(cidrs: &[&str], flags: &[&str]) -> Result<Components> {
        let line = Line::try_parse_from(["x"].iter().chain(flags))?;
        let cluster_cidrs = cidrs.iter().map(ToString::to_string).collect();
        let mut components = Components { cluster_cidrs, ..Components::default() };
        line.arguments.apply(&mut components)?;
        Ok(components)
    }

    #[test]
    fn flags_set_how_controllers_work() {
        let components = configured(
            &["10.0.0.0/16"],
            &[
                "--allocate-node-cidrs=true",
                "--node-cidr-mask-size=26",
                "--service-cluster-ip-range=10.0.128.0/20",
                "--node-monitor-grace-period=20s",
                "--terminated-pod-gc-threshold=0",
                "--cluster-signing-duration=1h",
                "--horizontal-pod-autoscaler-sync-period=5s",
                "--horizontal-pod-autoscaler-tolerance=0.2",
                "--concurrency=deployment-controller=10",
            ],
        );
        let components = components.expect("valid");
        assert_eq!(components.node_masks, NodeMasks { v4: 26, v6: 26 });
        assert_eq!(components.service_cidrs, ["10.0.128.0/20"]);
        assert_eq!(components.settings.node_monitor_grace.as_secs(), 20);
        assert_eq!(components.settings.terminated_pods, None);
        assert_eq!(components.settings.signing_duration.as_secs(), 3600);
        assert_eq!(components.settings.autoscaler.period, Duration::from_secs(5));
        assert_eq!(components.workers.0["deployment-controller"], 10);
        let none = configured(&["10.0.0.0/16"], &["--allocate-node-cidrs=false"]).expect("valid");
        assert!(none.cluster_cidrs.is_empty());
    }

    #[test]
    fn impossible_values_are_refused() {
        for (cidrs, flag) in [
            (&["10.0.0.0/16"][..], "--node-cidr-mask-size=8"),
            (&["10.0.0.0/8", "fd00::/48"], "--node-cidr-mask-size=24"),
            (&[], "--allocate-node-cidrs=true"),
            (&[], "--concurrency=deployment-controller=0"),
            (&[], "--concurrency=nonsense=1"),
        ] {
            assert!(configured(cidrs, &[flag]).is_err(), "{flag}");
        }
    }
}
