//! Configuration files of kube-apiserver for outbound connections: EgressSelectorConfiguration and
//! TracingConfiguration. Unsupported settings are errors.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use base::egress::Proxies;
use base::http::{Authorities, Origin, Trust};
use base::trace::{MAX_SAMPLING_RATE, TracingConfig};
use clap::Args;
use cluster::{Config, configuration};
use serde::Deserialize;

const GROUP: &str = "apiserver.k8s.io";
const NETWORKS: [&str; 3] = ["cluster", "controlplane", "etcd"];

#[derive(Args, Debug)]
pub struct OutboundArgs {
    /// File with apiserver egress selector configuration.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub egress_selector_config_file: Option<PathBuf>,

    /// File with apiserver tracing configuration.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub tracing_config_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EgressSelectorConfiguration {
    #[serde(default)]
    egress_selections: Vec<EgressSelection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EgressSelection {
    #[serde(default)]
    name: String,
    connection: Connection,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Connection {
    #[serde(default)]
    proxy_protocol: String,
    transport: Option<Transport>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transport {
    tcp: Option<TcpTransport>,
    uds: Option<UdsTransport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TcpTransport {
    #[serde(default)]
    url: String,
    tls_config: Option<TlsConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UdsTransport {
    #[serde(default)]
    uds_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsConfig {
    #[serde(default)]
    ca_bundle: String,
    #[serde(default)]
    client_key: String,
    #[serde(default)]
    client_cert: String,
    #[serde(default)]
    tls_server_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TracingConfiguration {
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i32>,
}

impl OutboundArgs {
    /// Reads the files into the configuration.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        if let Some(path) = &self.egress_selector_config_file {
            let file =
                configuration::read(path, GROUP, &["v1beta1", "v1alpha1"], "EgressSelectorConfiguration");
            let proxies = file.map_err(Into::into).and_then(|file| proxies(&file));
            config.egress = Some(proxies.context("--egress-selector-config-file")?);
        }
        let Some(path) = &self.tracing_config_file else { return Ok(()) };
        let file = configuration::read(path, GROUP, &["v1", "v1beta1", "v1alpha1"], "TracingConfiguration");
        let tracing = file.map_err(Into::into).and_then(|file| tracing(&file));
        config.tracing = Some(tracing.context("--tracing-config-file")?);
        Ok(())
    }
}

fn proxies(file: &EgressSelectorConfiguration) -> Result<Proxies> {
    let mut proxies = Proxies::default();
    let mut seen = BTreeSet::new();
    for EgressSelection { name, connection } in &file.egress_selections {
        let network = name.to_lowercase();
        ensure!(
            NETWORKS.contains(&network.as_str()),
            "service.connection: Unsupported value: {network:?}: supported values: \"cluster\", \"controlplane\", \"etcd\""
        );
        ensure!(seen.insert(network.clone()), "service.connection: Duplicate value: {network:?}");
        let proxy = proxy(name, connection)?;
        match network.as_str() {
            "cluster" => proxies.cluster = proxy,
            "controlplane" => proxies.control_plane = proxy,
            _ => ensure!(proxy.is_none(), "{name}: etcd supports proxyProtocol Direct only"),
        }
    }
    Ok(proxies)
}

/// Proxy of a network; `None` for direct connections.
fn proxy(name: &str, connection: &Connection) -> Result<Option<Origin>> {
    match connection.proxy_protocol.as_str() {
        "Direct" => {
            ensure!(
                connection.transport.is_none(),
                "service.connection.transport: Invalid value: \"direct\": config must be absent for direct connect"
            );
            Ok(None)
        }
        "HTTPConnect" => {
            let transport = connection.transport.as_ref();
            let transport = transport.context(
                "service.connection.transport: Required value: transport must be set for HTTPConnect",
            )?;
            match (&transport.tcp, &transport.uds) {
                (Some(_), Some(_)) => {
                    bail!("service.connection.tcp: Invalid value: TCP and UDS cannot both be set")
                }
                (None, None) => {
                    bail!("service.connection.tcp: Required value: One of TCP or UDS must be set")
                }
                (Some(tcp), None) => tcp_proxy(tcp).map(Some),
                (None, Some(uds)) => {
                    ensure!(
                        !uds.uds_name.is_empty(),
                        "service.connection.udsName: Invalid value: \"nil\": must be present for UDS connections"
                    );
                    Ok(Some(Origin::unix(&uds.uds_name)))
                }
            }
        }
        "GRPC" => {
            bail!("{name}: proxyProtocol GRPC is not supported in this version, only Direct and HTTPConnect")
        }
        other => bail!(
            "service.connection.protocol: Unsupported value: {other:?}: supported values: \"Direct\", \"GRPC\", \"HTTPConnect\""
        ),
    }
}

fn tcp_proxy(tcp: &TcpTransport) -> Result<Origin> {
    let secure = match (tcp.url.starts_with("http://"), tcp.url.starts_with("https://")) {
        (false, false) => bail!(
            "service.connection.url: Invalid value: {:?}: supported connection protocols are http:// and https://",
            tcp.url
        ),
        (_, secure) => secure,
    };
    ensure!(
        secure || tcp.tls_config.is_none(),
        "service.connection.tlsConfig: Invalid value: \"nil\": config must not be present when using HTTP"
    );
    if !secure {
        return Origin::of_url(&tcp.url, &Trust::default()).context("service.connection.url");
    }
    let tls = tcp.tls_config.as_ref().context(
        "service.connection.tlsConfig: Required value: TLSConfig must be present when using HTTPS",
    )?;
    let read = |field: &str, path: &str| {
        ensure!(
            !path.is_empty(),
            "service.connection.tlsConfig.{field}: Invalid value: \"nil\": Using TLS requires {field}"
        );
        std::fs::read(path).with_context(|| format!("service.connection.tlsConfig.{field}: {path:?}"))
    };
    let authorities = match tls.ca_bundle.as_str() {
        "" => Authorities::System,
        path => Authorities::Pem(read("caBundle", path)?),
    };
    let identity = Some((read("clientCert", &tls.client_cert)?, read("clientKey", &tls.client_key)?));
    let server_name = Some(tls.tls_server_name.clone()).filter(|name| !name.is_empty());
    let trust = Trust { authorities, identity, server_name };
    Origin::of_url(&tcp.url, &trust).context("service.connection.tlsConfig")
}

/// Trace settings. URLs are accepted besides Kubernetes' forms of endpoints.
fn tracing(file: &TracingConfiguration) -> Result<TracingConfig> {
    let mut config = TracingConfig::default();
    if let Some(rate) = file.sampling_rate_per_million {
        ensure!(rate >= 0, "samplingRatePerMillion: Invalid value: {rate}: sampling rate must be positive");
        config.sampling_rate_per_million = rate.unsigned_abs();
        ensure!(
            config.sampling_rate_per_million <= MAX_SAMPLING_RATE,
            "samplingRatePerMillion: Invalid value: {rate}: sampling rate per million must be less than or equal to one million"
        );
    }
    if let Some(endpoint) = &file.endpoint {
        let parsed = endpoint.parse();
        config.endpoint = parsed.with_context(|| format!("endpoint: Invalid value: {endpoint:?}"))?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(kind: &str, version: &str, body: &str) -> Result<(Option<TracingConfig>, Proxies), String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file.yaml");
        std::fs::write(&path, format!("apiVersion: {GROUP}/{version}\nkind: {kind}\n{body}"))
            .expect("written");
        let (egress, tracing) = match kind {
            "EgressSelectorConfiguration" => (Some(path), None),
            _ => (None, Some(path)),
        };
        let arguments = OutboundArgs { egress_selector_config_file: egress, tracing_config_file: tracing };
        let mut config = Config::new(directory.path());
        arguments.apply(&mut config).map_err(|error| format!("{error:#}"))?;
        Ok((config.tracing, config.egress.unwrap_or_default()))
    }

    #[test]
    fn egress_selector_config_sets_proxies() {
        let check = |body: &str| checked("EgressSelectorConfiguration", "v1beta1", body);
        let direct = "egressSelections: [{name: Cluster, connection: {proxyProtocol: Direct}}, {name: etcd, connection: {proxyProtocol: Direct}}]";
        for body in [direct, "egressSelections: []"] {
            let (_, proxies) = check(body).expect(body);
            assert!(proxies.cluster.is_none() && proxies.control_plane.is_none());
        }
        let connect = "egressSelections: [{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /s}}}}, {name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://127.0.0.1:8131'}}}}]";
        let (_, proxies) = check(connect).expect("accepted");
        assert_eq!(proxies.cluster.expect("a proxy").authority(), "/s");
        assert_eq!(proxies.control_plane.expect("a proxy").authority(), "127.0.0.1:8131");
        for (selection, want) in [
            (
                "{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /s}}}}",
                "etcd supports proxyProtocol Direct only",
            ),
            ("{name: cluster, connection: {proxyProtocol: HTTPConnect}}", "transport must be set"),
            ("{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {}}}", "One of TCP or UDS"),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: ''}}}}",
                "must be present for UDS",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /s}, tcp: {url: 'http://h'}}}}",
                "cannot both be set",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'ftp://h'}}}}",
                "supported connection protocols",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://h'}}}}",
                "TLSConfig must be present",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://h', tlsConfig: {}}}}}",
                "must not be present when using HTTP",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://h', tlsConfig: {caBundle: /nonexistent}}}}}",
                "caBundle",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://h', tlsConfig: {}}}}}",
                "Using TLS requires clientCert",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: /s}}}}",
                "GRPC is not supported",
            ),
            (
                "{name: cluster, connection: {proxyProtocol: Direct, transport: {}}}",
                "must be absent for direct",
            ),
            ("{name: master, connection: {proxyProtocol: Direct}}", "Unsupported value: \"master\""),
            ("{name: cluster, connection: {proxyProtocol: TCP}}", "Unsupported value: \"TCP\""),
            (
                "{name: cluster, connection: {proxyProtocol: Direct}}, {name: CLUSTER, connection: {proxyProtocol: Direct}}",
                "Duplicate value",
            ),
            ("{name: cluster, connection: {proxyProtocol: Direct, port: 1}}", "unknown field"),
            ("{name: cluster}", "connection"),
        ] {
            let error = check(&format!("egressSelections: [{selection}]")).expect_err(selection);
            assert!(error.contains("--egress-selector-config-file") && error.contains(want), "{error}");
        }
    }

    #[test]
    fn tracing_config_is_validated() {
        let check = |body: &str| checked("TracingConfiguration", "v1", body);
        for (body, endpoint, rate) in [
            ("", "localhost:4317", 0),
            ("endpoint: collector:4317\nsamplingRatePerMillion: 100\n", "collector:4317", 100),
            ("endpoint: unix:///s\n", "unix:///s", 0),
            ("endpoint: http://collector:4318/v1/traces\n", "http://collector:4318/v1/traces", 0),
            ("endpoint: https://collector\n", "https://collector", 0),
        ] {
            let config = check(body).expect(body).0.expect("traces are on");
            assert_eq!((&*config.endpoint.to_string(), config.sampling_rate_per_million), (endpoint, rate));
        }
        for (body, want) in [
            ("samplingRatePerMillion: -1", "must be positive"),
            ("samplingRatePerMillion: 1000001", "one million"),
            ("samplingRatePerMillion: 99999999999", "strict decoding error"),
            ("endpoint: ftp://collector", "unsupported scheme: ftp"),
            ("endpoint: 'host:port'", "is not a host"),
            ("sampling: 1", "unknown field"),
        ] {
            let error = check(body).expect_err(body);
            assert!(error.contains(want), "{body}: {error}");
        }
        assert!(checked("TracingConfiguration", "v2", "").is_err());
    }
}
