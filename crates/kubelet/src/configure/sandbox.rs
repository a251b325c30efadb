//! Sandbox configuration of a pod: network, names, cgroup and ports.

use std::path::Path;

use cri::v1::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol};
use objects::core::v1::Pod;

use super::dns::{self, ClusterDns, HostDns};
use super::{hosts, labels, resources, security};
use crate::lifecycle::members::members;
use crate::lifecycle::qos::{self, Qos};

/// Settings common to all sandboxes of this node.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// Directory of container logs.
    pub logs: std::path::PathBuf,
    pub cluster_dns: ClusterDns,
    /// Parent cgroup of all pods, such as `/kubepods`.
    pub cgroup_root: String,
    /// Directory of seccomp profiles.
    pub profiles: String,
    pub memory_capacity: i64,
    pub node_name: String,
}

/// `<logs>/<namespace>_<name>_<uid>`.
#[must_use]
pub fn log_directory(logs: &Path, pod: &Pod) -> std::path::PathBuf {
    let meta = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    logs.join(format!("{}_{}_{}", text(&meta.namespace), text(&meta.name), text(&meta.uid)))
}

/// Cgroup of a pod, below that of its QoS class.
#[must_use]
pub fn cgroup(root: &str, pod: &Pod) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    match qos::class(pod) {
        Qos::Guaranteed => format!("{root}/pod{uid}"),
        Qos::Burstable => format!("{root}/burstable/pod{uid}"),
        Qos::BestEffort => format!("{root}/besteffort/pod{uid}"),
    }
}

#[must_use]
pub fn config(pod: &Pod, attempt: u32, node: &NodeSettings, host_dns: &HostDns) -> PodSandboxConfig {
    let meta = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    let hostname = hosts::kernel_hostname(pod, &node.cluster_dns.domain);
    let sysctls = pod
        .spec
        .iter()
        .filter_map(|spec| spec.security_context.as_ref())
        .flat_map(|context| context.sysctls.iter().flatten())
        .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone()));
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: text(&meta.name),
            uid: text(&meta.uid),
            namespace: text(&meta.namespace),
            attempt,
        }),
        hostname: if host_network { String::new() } else { hostname },
        log_directory: log_directory(&node.logs, pod).display().to_string(),
        dns_config: Some(dns::config(pod, host_dns, &node.cluster_dns)),
        port_mappings: if host_network { Vec::new() } else { ports(pod) },
        labels: labels::of_pod(pod),
        annotations: meta.annotations.clone().unwrap_or_default(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup(&node.cgroup_root, pod),
            security_context: Some(security::of_sandbox(pod, &node.profiles)),
            sysctls: sysctls.collect(),
            overhead: None,
            resources: Some(resources::of_pod(pod)),
        }),
        windows: None,
    }
}

fn ports(pod: &Pod) -> Vec<PortMapping> {
    let all = pod.spec.as_ref().map(members).unwrap_or_default();
    let ports = all.iter().flat_map(|member| member.container.ports.iter().flatten());
    ports
        .filter(|port| port.host_port.unwrap_or(0) > 0)
        .map(|port| PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}
