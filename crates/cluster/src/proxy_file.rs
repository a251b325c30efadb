//! `KubeProxyConfiguration` files of version v1alpha1. They have the same meaning as flags; settings of kube-proxy
//! without effect here are accepted, and reported if set.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use proxy::backend::Mode;
use serde::Deserialize;
use serde_json::Value;

use crate::ClusterError;

const GROUP: &str = "kubeproxy.config.k8s.io";
const KIND: &str = "KubeProxyConfiguration";
const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

/// Content of a file; `None` for absent fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyFile {
    pub kubeconfig: Option<PathBuf>,
    pub hostname: Option<String>,
    pub cluster_cidrs: Vec<String>,
    pub masquerade_all: bool,
    pub mode: Option<Mode>,
    pub healthz: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub ports_are_needed: bool,
    /// Serves `/debug/pprof`.
    pub profiling: bool,
    /// Settings that are set but have no effect.
    pub without_effect: Vec<&'static str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct File {
    client_connection: Connection,
    hostname_override: String,
    healthz_bind_address: String,
    metrics_bind_address: String,
    bind_address_hard_fail: bool,
    mode: String,
    iptables: Rules,
    nftables: Rules,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    feature_gates: Value,
    logging: Value,
    bind_address: Value,
    enable_profiling: Option<bool>,
    show_hidden_metrics_for_version: Value,
    ipvs: Value,
    winkernel: Value,
    detect_local_mode: Value,
    detect_local: Value,
    node_port_addresses: Value,
    oom_score_adj: Value,
    conntrack: Value,
    config_sync_period: Value,
    port_range: Value,
    windows_run_as_service: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Connection {
    kubeconfig: String,
    accept_content_types: Value,
    content_type: Value,
    qps: Value,
    burst: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rules {
    masquerade_all: bool,
    masquerade_bit: Value,
    localhost_node_ports: Value,
    sync_period: Value,
    min_sync_period: Value,
}

impl ProxyFile {
    pub fn read(path: &Path) -> Result<Self, ClusterError> {
        let text =
            std::fs::read(path).map_err(|source| ClusterError::ReadFile { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|reason| ClusterError::BadFile { path: path.to_owned(), reason })
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let file: File = apiserver::configuration::parse(text, GROUP, &["v1alpha1"], KIND)?;
        let mode = match file.mode.as_str() {
            "" => None,
            name => Some(
                Mode::parse(name).ok_or_else(|| format!("mode: {name:?} is not a supported proxy mode"))?,
            ),
        };
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        let ranges = file.cluster_cidr.split(',').filter(|range| !range.is_empty()).map(str::to_owned);
        Ok(Self {
            without_effect: file.without_effect(),
            cluster_cidrs: ranges.collect(),
            kubeconfig: text(file.client_connection.kubeconfig).map(PathBuf::from),
            hostname: text(file.hostname_override),
            masquerade_all: file.iptables.masquerade_all || file.nftables.masquerade_all,
            mode,
            healthz: address("healthzBindAddress", &file.healthz_bind_address, HEALTHZ_PORT)?,
            metrics: address("metricsBindAddress", &file.metrics_bind_address, METRICS_PORT)?,
            ports_are_needed: file.bind_address_hard_fail,
            profiling: file.enable_profiling.unwrap_or(false),
        })
    }
}

impl File {
    fn without_effect(&self) -> Vec<&'static str> {
        let (connection, iptables, nftables) = (&self.client_connection, &self.iptables, &self.nftables);
        [
            ("featureGates", &self.feature_gates),
            ("logging.options", &self.logging["options"]),
            ("bindAddress", &self.bind_address),
            ("showHiddenMetricsForVersion", &self.show_hidden_metrics_for_version),
            ("ipvs", &self.ipvs),
            ("winkernel", &self.winkernel),
            ("detectLocalMode", &self.detect_local_mode),
            ("detectLocal", &self.detect_local),
            ("nodePortAddresses", &self.node_port_addresses),
            ("oomScoreAdj", &self.oom_score_adj),
            ("conntrack", &self.conntrack),
            ("configSyncPeriod", &self.config_sync_period),
            ("portRange", &self.port_range),
            ("windowsRunAsService", &self.windows_run_as_service),
            ("clientConnection.acceptContentTypes", &connection.accept_content_types),
            ("clientConnection.contentType", &connection.content_type),
            ("clientConnection.qps", &connection.qps),
            ("clientConnection.burst", &connection.burst),
            ("iptables.masqueradeBit", &iptables.masquerade_bit),
            ("iptables.localhostNodePorts", &iptables.localhost_node_ports),
            ("iptables.syncPeriod", &iptables.sync_period),
            ("iptables.minSyncPeriod", &iptables.min_sync_period),
            ("nftables.masqueradeBit", &nftables.masquerade_bit),
            ("nftables.syncPeriod", &nftables.sync_period),
            ("nftables.minSyncPeriod", &nftables.min_sync_period),
        ]
        .into_iter()
        .filter(|(_, value)| is_set(value))
        .map(|(name, _)| name)
        .collect()
    }
}

/// Generated files contain every setting; empty values count as absent.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s" | "0.0.0.0"),
        Value::Array(items) => items.iter().any(is_set),
        Value::Object(fields) => fields.values().any(is_set),
    }
}

/// Address with optional port; the default port applies if absent.
fn address(field: &str, text: &str, port: u16) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let whole = text.parse::<SocketAddr>().ok();
    let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    let any = || Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, text.strip_prefix(':')?.parse().ok()?)));
    let found = whole.or_else(alone).or_else(any);
    found.map(Some).ok_or_else(|| format!("{field}: {text:?} is not an address and port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &str) -> Result<ProxyFile, String> {
        ProxyFile::parse(format!("apiVersion: {GROUP}/v1alpha1\nkind: {KIND}\n{body}").as_bytes())
    }

    #[test]
    fn generated_proxy_config_is_parsed() {
        let body = "bindAddress: 0.0.0.0\nbindAddressHardFail: true\nclientConnection:\n  acceptContentTypes: \"\"\n  \
                    burst: 0\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n  qps: 0\nclusterCIDR: \
                    10.244.0.0/16,fd44::/56\nconfigSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n\
                    healthzBindAddress: 127.0.0.1\nhostnameOverride: n1\niptables:\n  masqueradeAll: true\n  \
                    masqueradeBit: 14\nlogging: {}\nmetricsBindAddress: \"[::1]:1234\"\nmode: ipvs\nipvs:\n  \
                    strictARP: true\nnodePortAddresses: null\nenableProfiling: true\n";
        let file = parsed(body).expect("a configuration");
        let wanted = ProxyFile {
            kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
            hostname: Some("n1".to_owned()),
            cluster_cidrs: vec!["10.244.0.0/16".to_owned(), "fd44::/56".to_owned()],
            masquerade_all: true,
            mode: Some(Mode::Ipvs),
            healthz: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTHZ_PORT))),
            metrics: Some("[::1]:1234".parse().expect("an address")),
            ports_are_needed: true,
            profiling: true,
            without_effect: vec!["ipvs", "iptables.masqueradeBit"],
        };
        assert_eq!(file, wanted);
        assert_eq!(parsed(""), Ok(ProxyFile::default()));
        assert_eq!(parsed("enableProfiling: null\n"), Ok(ProxyFile::default()));
    }

    #[test]
    fn invalid_proxy_config_returns_error() {
        for (body, wanted) in [
            ("mode: magic\n", "mode: \"magic\" is not a supported proxy mode"),
            ("colour: red\n", "unknown field `colour`"),
            ("healthzBindAddress: here\n", "healthzBindAddress: \"here\" is not an address and port"),
            ("iptables: {colour: red}\n", "unknown field `colour`"),
        ] {
            let error = parsed(body).expect_err(body);
            assert!(error.contains(wanted), "{error}");
        }
    }
}
