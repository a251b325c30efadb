//! Flags of kube-controller-manager that configure controllers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base::machine_network::Family;
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
    ("concurrent-device-taint-eviction-syncs", "device-taint-eviction-controller"),
    ("concurrent-endpoint-syncs", "endpoints-controller"),
    ("concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller"),
    ("concurrent-gc-syncs", "garbage-collector-controller"),
    ("concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller"),
    ("concurrent-job-syncs", "job-controller"),
    ("concurrent-namespace-syncs", "namespace-controller"),
    ("concurrent-rc-syncs", "replicationcontroller-controller"),
    ("concurrent_rc_syncs", "replicationcontroller-controller"),
    ("concurrent-replicaset-syncs", "replicaset-controller"),
    ("concurrent-resource-quota-syncs", "resourcequota-controller"),
    ("concurrent-resourceclaim-syncs", "resourceclaim-controller"),
    ("concurrent-service-endpoint-syncs", "endpointslice-controller"),
    ("concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller"),
    ("concurrent-statefulset-syncs", "statefulset-controller"),
    ("concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller"),
    ("concurrent-validating-admission-policy-status-syncs", "validatingadmissionpolicy-status-controller"),
    ("mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller"),
];

/// Sizes of the pod ranges of nodes.
#[derive(Args, Clone, Copy, Debug)]
pub struct MaskArgs {
    /// Mask size for node cidr in cluster; not allowed in dual-stack clusters.
    #[arg(long, value_name = "BITS", help_heading = "Controllers")]
    pub node_cidr_mask_size: Option<u8>,

    /// Mask size for IPv4 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 24, help_heading = "Controllers")]
    pub node_cidr_mask_size_ipv4: u8,

    /// Mask size for IPv6 node cidr in dual-stack cluster.
    #[arg(long, value_name = "BITS", default_value_t = 64, help_heading = "Controllers")]
    pub node_cidr_mask_size_ipv6: u8,
}

impl MaskArgs {
    /// Applies the flags to the configuration, which has the pod ranges of the cluster.
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
        Ok(())
    }
}

/// Checks that pods have addresses of the families of services, which nothing could reach otherwise.
pub fn check_families(services: &[Family], components: &Components) -> Result<()> {
    let pods = Family::all_of(&components.cluster_cidrs);
    for (family, name, example) in [(Family::V4, "IPv4", "10.244.0.0/16"), (Family::V6, "IPv6", "fd44::/56")]
    {
        ensure!(
            !services.contains(&family) || pods.contains(&family),
            "--service-cluster-ip-range has an {name} range, but the pods have none: set --cluster-cidr, for example {}",
            if pods.len() < services.len() {
                join(&components.cluster_cidrs, example)
            } else {
                example.to_owned()
            }
        );
    }
    Ok(())
}

fn join(ranges: &[String], other: &str) -> String {
    ranges.iter().map(String::as_str).chain([other]).collect::<Vec<_>>().join(",")
}

/// Checks that the pod range of a node has an address for each of its pods.
pub fn check_max_pods(components: &Components, max_pods: u32) -> Result<()> {
    let has_ipv4 = components.cluster_cidrs.iter().any(|cidr| !cidr.contains(':'));
    // Network, gateway and broadcast addresses are not those of pods.
    let capacity = |mask: u8| (1_u64 << (32 - u32::from(mask.min(32)))).saturating_sub(3);
    let mask = components.node_masks.v4;
    if !has_ipv4 || u64::from(max_pods) <= capacity(mask) {
        return Ok(());
    }
    let flag = if components.cluster_cidrs.len() > 1 {
        "--node-cidr-mask-size-ipv4"
    } else {
        "--node-cidr-mask-size"
    };
    let needed = (1..mask).rev().find(|mask| capacity(*mask) >= u64::from(max_pods)).unwrap_or(1);
    anyhow::bail!(
        "--max-pods {max_pods} exceeds the {} addresses of a node's pod range /{mask}: set {flag} {needed}",
        capacity(mask)
    )
}

#[derive(Args, Debug)]
pub struct ControllerArgs {
    /// Should CIDRs for Pods be allocated and set on nodes [default: true if `--cluster-cidr` is given].
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
          require_equals = true)]
    pub allocate_node_cidrs: Option<bool>,

    #[command(flatten)]
    pub masks: MaskArgs,

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

    /// The period of time since the last usage of an legacy service account token before it can be deleted.
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s", value_parser = parse_duration)]
    pub legacy_service_account_token_clean_up_period: Duration,

    /// The maximum number of endpoints that will be added to an EndpointSlice. More endpoints per slice will result in less
    /// endpoint slices, but larger resources.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_endpoints_per_slice: u16,

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
        self.masks.apply(components)?;
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
        settings.legacy_token_cleanup = signed(self.legacy_service_account_token_clean_up_period)?;
        settings.endpoints_per_slice = usize::from(self.max_endpoints_per_slice);
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
    fn services_need_pods_of_their_families() {
        let check = |services: &[Family], pods: &[&str]| {
            let components = configured(pods, &[]).expect("valid");
            check_families(services, &components).map_err(|error| error.to_string())
        };
        let (v4, v6) = ("10.244.0.0/16", "fd44::/56");
        assert_eq!(check(&[Family::V6], &[v6]), Ok(()));
        assert_eq!(check(&[Family::V4], &[v4, v6]), Ok(()));
        let text = check(&[Family::V6], &[v4]).expect_err("no IPv6");
        assert!(text.ends_with("set --cluster-cidr, for example fd44::/56"), "{text}");
        let text = check(&[Family::V4, Family::V6], &[v4]).expect_err("no IPv6");
        assert!(text.ends_with("for example 10.244.0.0/16,fd44::/56"), "{text}");
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
                "--legacy-service-account-token-clean-up-period=48h",
                "--max-endpoints-per-slice=1000",
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
        assert_eq!(components.settings.legacy_token_cleanup.as_hours(), 48);
        assert_eq!(components.settings.endpoints_per_slice, 1000);
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
            (&[], "--max-endpoints-per-slice=0"),
            (&[], "--max-endpoints-per-slice=1001"),
        ] {
            assert!(configured(cidrs, &[flag]).is_err(), "{flag}");
        }
    }

    #[test]
    fn max_pods_beyond_the_range_of_a_node_names_the_flag() {
        let of = |cidrs: &[&str], v4: u8| Components {
            cluster_cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
            node_masks: NodeMasks { v4, v6: 64 },
            ..Components::default()
        };
        let single = of(&["10.244.0.0/16"], 24);
        assert!(check_max_pods(&single, 253).is_ok());
        let error = check_max_pods(&single, 350).expect_err("too many").to_string();
        assert!(error.ends_with("/24: set --node-cidr-mask-size 23"), "{error}");
        assert!(check_max_pods(&of(&["10.244.0.0/16"], 23), 350).is_ok());
        let error = check_max_pods(&of(&["10.244.0.0/16", "fd44::/56"], 24), 2000).expect_err("too many");
        assert!(error.to_string().ends_with("set --node-cidr-mask-size-ipv4 21"), "{error}");
        assert!(check_max_pods(&of(&["fd44::/56"], 24), 2000).is_ok());
    }
}
