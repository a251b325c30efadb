//! `/configz`: the configuration in force, as a KubeletConfiguration.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::{Reply, typed};
use crate::config::Config;
use crate::shared::Shared;

/// Serves the configuration.
pub fn page(shared: &Shared) -> Reply {
    let shown = configuration(&shared.config, &shared.settings.cluster_dns.servers);
    let shown = json!({"kubeletconfig": shown});
    typed(StatusCode::OK, "application/json", shown.to_string())
}

/// Duration in the form of the configuration file.
fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

fn configuration(config: &Config, servers: &[String]) -> Value {
    let housekeeping = &config.housekeeping;
    let eviction = &housekeeping.eviction;
    let thresholds = |soft: bool| -> BTreeMap<&str, String> {
        let wanted = eviction.thresholds.iter().filter(|one| one.grace.is_some() == soft);
        wanted.map(|one| (one.signal.name(), one.least.to_string())).collect()
    };
    let graces: BTreeMap<&str, String> =
        eviction.thresholds.iter().filter_map(|one| Some((one.signal.name(), seconds(one.grace?)))).collect();
    let reclaim: BTreeMap<&str, String> =
        eviction.reclaim.iter().map(|(signal, amount)| (signal.name(), amount.to_string())).collect();
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": config.listen.ip(),
        "port": config.listen.port(),
        "enableServer": true,
        "enableDebuggingHandlers": true,
        "enableProfilingHandler": config.pages.profiling,
        "enableSystemLogHandler": config.node_logs.serve,
        "enableSystemLogQuery": config.node_logs.query,
        "registerNode": true,
        "clusterDomain": config.cluster_domain,
        "clusterDNS": servers,
        "resolvConf": config.resolv_conf,
        "maxPods": config.max_pods,
        "podCIDR": config.pod_cidr.clone().unwrap_or_default(),
        "podLogsDir": config.logs,
        "staticPodPath": config.static_pods,
        "containerRuntimeEndpoint": config.runtime,
        "cgroupRoot": config.cgroup_root,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": housekeeping.cgroups_per_qos,
        "podPidsLimit": housekeeping.pod_pids.unwrap_or(-1),
        "allowedUnsafeSysctls": housekeeping.unsafe_sysctls,
        "evictionHard": thresholds(false),
        "evictionSoft": thresholds(true),
        "evictionSoftGracePeriod": graces,
        "evictionMinimumReclaim": reclaim,
        "evictionMaxPodGracePeriod": eviction.max_pod_grace,
        "evictionPressureTransitionPeriod": seconds(eviction.transition),
        "imageGCHighThresholdPercent": housekeeping.images.begin,
        "imageGCLowThresholdPercent": housekeeping.images.until,
        "imageMinimumGCAge": seconds(housekeeping.images.min_age),
        "imageMaximumGCAge": seconds(housekeeping.images.max_age.unwrap_or_default()),
        "containerLogMaxSize": housekeeping.logs.max_size.to_string(),
        "containerLogMaxFiles": housekeeping.logs.max_files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::housekeeping::{Amount, Signal, Threshold};

    #[test]
    fn soft_thresholds_have_their_grace_periods() {
        let mut config = Config::new("n", "/var/lib/kubelet");
        let soft = Threshold {
            signal: Signal::Memory,
            least: Amount::Percent(10.0),
            grace: Some(Duration::from_secs(90)),
        };
        config.housekeeping.eviction.thresholds.push(soft);
        let shown = configuration(&config, &["10.96.0.10".to_owned()]);
        assert_eq!(shown["evictionSoft"], json!({"memory.available": "10%"}));
        assert_eq!(shown["evictionSoftGracePeriod"], json!({"memory.available": "90s"}));
        assert_eq!(shown["enableProfilingHandler"], json!(true));
        assert_eq!(shown["clusterDNS"], json!(["10.96.0.10"]));
    }
}
