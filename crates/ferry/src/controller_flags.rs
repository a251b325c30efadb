//! Flags of kube-controller-manager that configure controllers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{ArgAction, Args};
use cluster::{Components, NodeMasks};
use ipnet::IpNet;

use crate::autoscaler_flags::AutoscalerArgs;
use crate::flags::{parse_cidrs, parse_duration};

/// Concurrency flags and the controllers that they apply to.
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
    /// Should CIDRs for Pods be allocated and set on nodes [default: true if `--cluster-cidr` is given].
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
          require_equals = true)]
    pub allocate_node_cidrs: Option<bool>,

    /// Mask size for node cidr in cluster; not allowed in dual-stack clusters.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,

    /// Mask size for IPv4 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 24)]
    pub node_cidr_mask_size_ipv4: u8,

    /// Mask size for IPv6 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 64)]
    pub node_cidr_mask_size_ipv6: u8,

    /// CIDR Range for Services in cluster; excluded from node CIDR allocation.
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = parse_cidrs)]
    pub service_cluster_ip_range: Option<crate::flags::Cidrs>,

    /// Amount of time which we allow running Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = parse_duration)]
    pub node_monitor_grace_period: Duration,

    /// Amount of time which we allow starting Node to be unresponsive before marking it unhealthy.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub node_startup_grace_period: Duration,

    /// Number of terminated pods that can exist before the terminated pod garbage collector starts deleting
    /// terminated pods. If not positive, the terminated pod garbage collector is disabled.
    #[arg(long, value_name = "N", default_value_t = 12_500, allow_hyphen_values = true)]
    pub terminated_pod_gc_threshold: i64,

    /// The max length of duration signed certificates will be given.
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s", value_parser = parse_duration)]
    pub cluster_signing_duration: Duration,

    #[command(flatten)]
    pub autoscaler: AutoscalerArgs,

    /// Number of workers of a controller, such as `deployment-controller=10`; also
    /// `--concurrent-deployment-syncs=10`.
    #[arg(long, value_name = "CONTROLLER=N", value_parser = parse_workers)]
    pub concurrency: Vec<(String, usize)>,
}

impl ControllerArgs {
    /// Applies the flags to the configuration.
    pub fn apply(self, components: &mut Components) -> Result<()> {
        let families = |v6: bool| components.cluster_cidrs.iter().any(|cidr| cidr.contains(':') == v6);
        let mut masks = NodeMasks { v4: self.node_cidr_mask_size_ipv4, v6: self.node_cidr_mask_size_ipv6 };
        if let Some(mask) = self.node_cidr_mask_size {
            let dual = families(true) && families(false);
            ensure!(!dual, "usage of --node-cidr-mask-size is not allowed with dual-stack clusters");
            (masks.v4, masks.v6) = (mask, mask);
        }
        for cidr in &components.cluster_cidrs {
            let range: IpNet =
                cidr.parse().with_context(|| format!("--cluster-cidr: {cidr} is not a CIDR"))?;
            let mask = if range.addr().is_ipv6() { masks.v6 } else { masks.v4 };
            let (bits, most) = (range.prefix_len(), range.max_prefix_len());
            ensure!(
                (bits..=most).contains(&mask) && mask - bits <= 16,
                "the node CIDR mask size /{mask} does not fit into the cluster CIDR {cidr}"
            );
        }
        components.node_masks = masks;
        components.service_cidrs =
            self.service_cluster_ip_range.map(|ranges| ranges.texts()).unwrap_or_default();
        match self.allocate_node_cidrs {
            Some(true) => {
                ensure!(!components.cluster_cidrs.is_empty(), "--allocate-node-cidrs requires --cluster-cidr")
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
        self.autoscaler.apply(settings)?;
        components.workers.0.extend(self.concurrency);
        Ok(())
    }
}

fn parse_workers(text: &str) -> Result<(String, usize), String> {
    let (name, workers) = text.split_once('=').ok_or("CONTROLLER=N")?;
    if !CONCURRENCY.iter().any(|(_, known)| *known == name) {
        return Err(format!("{name:?} has no configurable number of workers"));
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
    fn controller_flags_set_component_config() {
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
    fn invalid_controller_flag_value_is_rejected() {
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
