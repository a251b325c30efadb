//! Configurations of components as `/configz` shows them: the fields that have an effect, with Kubernetes' names.

use scheduler::Configuration;
use serde_json::{Value, json};

use crate::{Components, ProxyConfig};

pub(crate) const CONTROLLERS_GROUP: &str = "kubecontrollermanager.config.k8s.io";
pub(crate) const PROXY_GROUP: &str = "kubeproxy.config.k8s.io";

/// Leader election with the times that all components use.
fn leader_election(enabled: bool, namespace: &str, name: &str) -> Value {
    let times = runtime::LeaderElection::new(name, "");
    let seconds = |time: std::time::Duration| format!("{}s", time.as_secs());
    json!({
        "leaderElect": enabled,
        "leaseDuration": seconds(times.lease_duration),
        "renewDeadline": seconds(times.renew_deadline),
        "retryPeriod": seconds(times.retry_period),
        "resourceLock": "leases",
        "resourceName": name,
        "resourceNamespace": namespace,
    })
}

/// A KubeControllerManagerConfiguration.
pub(crate) fn of_controllers(components: &Components) -> Value {
    json!({
        "kind": "KubeControllerManagerConfiguration",
        "apiVersion": format!("{CONTROLLERS_GROUP}/v1alpha1"),
        "Generic": {
            "Controllers": components.controllers,
            "LeaderElection":
                leader_election(components.leader_election, "kube-system", "kube-controller-manager"),
            "Debugging": {"EnableProfiling": true, "EnableContentionProfiling": false},
        },
        "KubeCloudShared": {
            "ClusterCIDR": components.cluster_cidrs.join(","),
            "AllocateNodeCIDRs": !components.cluster_cidrs.is_empty(),
            "UseServiceAccountCredentials": components.service_account_credentials,
        },
        "NodeIPAMController": {
            "ServiceCIDR": components.service_cidrs.first().cloned().unwrap_or_default(),
            "SecondaryServiceCIDR": components.service_cidrs.get(1).cloned().unwrap_or_default(),
            "NodeCIDRMaskSizeIPv4": components.node_masks.v4,
            "NodeCIDRMaskSizeIPv6": components.node_masks.v6,
        },
    })
}

/// A KubeSchedulerConfiguration. Extenders are left out: their URLs and certificates may contain secrets.
pub(crate) fn of_scheduler(configuration: &Configuration, leads: bool) -> Value {
    let lease = &configuration.leader_election;
    let names = configuration.profiles.iter().map(|profile| {
        let name = profile.scheduler_name.as_deref().unwrap_or("default-scheduler");
        let arguments = profile.plugin_config.iter();
        let arguments: Vec<Value> =
            arguments.map(|plugin| json!({"name": plugin.name, "args": plugin.args})).collect();
        json!({"schedulerName": name, "pluginConfig": arguments,
            "percentageOfNodesToScore": profile.percentage_of_nodes_to_score})
    });
    let mut profiles: Vec<Value> = names.collect();
    if profiles.is_empty() {
        profiles.push(json!({"schedulerName": "default-scheduler"}));
    }
    json!({
        "kind": "KubeSchedulerConfiguration",
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "leaderElection": leader_election(leads, &lease.resource_namespace, &lease.resource_name),
        "clientConnection": {"kubeconfig": configuration.client_connection.kubeconfig},
        "enableProfiling": true,
        "enableContentionProfiling": false,
        "percentageOfNodesToScore": configuration.percentage_of_nodes_to_score.unwrap_or(0),
        "podInitialBackoffSeconds": configuration.pod_initial_backoff_seconds,
        "podMaxBackoffSeconds": configuration.pod_max_backoff_seconds,
        "profiles": profiles,
    })
}

/// A KubeProxyConfiguration.
pub(crate) fn of_proxy(config: &ProxyConfig, node: &str, mode: &str) -> Value {
    let address = |address: Option<std::net::SocketAddr>| {
        address.map(|address| address.to_string()).unwrap_or_default()
    };
    json!({
        "kind": "KubeProxyConfiguration",
        "apiVersion": format!("{PROXY_GROUP}/v1alpha1"),
        "hostnameOverride": node,
        "healthzBindAddress": address(config.healthz),
        "metricsBindAddress": address(config.metrics),
        "bindAddressHardFail": config.ports_are_needed,
        "enableProfiling": config.pages.profiling,
        "mode": mode,
        "clusterCIDR": config.cluster_cidrs.join(","),
        "iptables": {"masqueradeAll": config.masquerade_all},
        "nftables": {"masqueradeAll": config.masquerade_all},
    })
}
