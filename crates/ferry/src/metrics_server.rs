//! `ferry metrics-server`: metrics.k8s.io alone, with the flags of metrics-server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base::clock::Clock;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{
    KubeletAddressing, KubeletClientConfig, KubeletPort, MetricsServerConfig, ResourceMetricsConfig,
    SecurePort,
};
use machinery::selector::LabelSelector;

use crate::flags::parse_duration;
use crate::serve::{say, stop_on_signal};

/// Shortest resolution that metrics-server accepts.
const SHORTEST_RESOLUTION: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub struct MetricsServerArgs {
    /// The path to the kubeconfig used to connect to the Kubernetes API server and the Kubelets (defaults to in-cluster
    /// config).
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The resolution at which metrics-server will retain metrics, must set value at least 10s.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub metric_resolution: Duration,

    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// The port on which to serve HTTPS with authentication and authorization; 0 selects a free port and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    pub secure_port: u16,

    /// The directory where the TLS certs are located. If --tls-cert-file and --tls-private-key-file are provided, this
    /// flag will be ignored.
    #[arg(long, value_name = "DIR", default_value = "apiserver.local.config/certificates")]
    pub cert_dir: PathBuf,

    /// File containing the default x509 Certificate for HTTPS.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// File containing the default x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Do not verify CA of serving certificates presented by Kubelets. For testing purposes only.
    #[arg(long, conflicts_with = "kubelet_certificate_authority")]
    pub kubelet_insecure_tls: bool,

    /// Do not use any encryption, authorization, or authentication when communicating with the Kubelet.
    #[arg(long, conflicts_with_all = ["kubelet_insecure_tls", "kubelet_certificate_authority", "kubelet_client_certificate"])]
    pub deprecated_kubelet_completely_insecure: bool,

    /// Use the port in the node status. Takes precedence over --kubelet-port flag.
    #[arg(long)]
    pub kubelet_use_node_status_port: bool,

    /// The port to use to connect to Kubelets.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,

    /// The priority of node address types to use when determining which address to use to connect to a particular node.
    #[arg(
        long,
        value_name = "TYPE[,TYPE]",
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP"
    )]
    pub kubelet_preferred_address_types: Vec<String>,

    /// Path to the CA to use to validate the Kubelet's serving certificates.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,

    /// Path to a client cert file for TLS.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,

    /// Path to a client key file for TLS.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,

    /// The length of time to wait before giving up on a single request to Kubelet.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub kubelet_request_timeout: Duration,

    /// Selector (label query) to filter on, not including uninitialized ones, supports '=', '==', and '!='.
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pub node_selector: String,
}

impl MetricsServerArgs {
    fn config(self) -> Result<MetricsServerConfig> {
        ensure!(
            self.metric_resolution >= SHORTEST_RESOLUTION,
            "metric-resolution should be a time duration at least 10s, but value {:?} provided",
            self.metric_resolution
        );
        ensure!(!self.kubelet_request_timeout.is_zero(), "kubelet-request-timeout should be positive");
        ensure!(
            self.kubelet_request_timeout < self.metric_resolution,
            "metric-resolution should be larger than kubelet-request-timeout, but metric-resolution value {:?} \
             kubelet-request-timeout value {:?} provided",
            self.metric_resolution,
            self.kubelet_request_timeout
        );
        let port = if self.kubelet_use_node_status_port {
            KubeletPort::OfStatus
        } else {
            KubeletPort::Fixed(self.kubelet_port)
        };
        Ok(MetricsServerConfig {
            resource: ResourceMetricsConfig {
                resolution: self.metric_resolution,
                request_timeout: self.kubelet_request_timeout,
                addressing: KubeletAddressing { types: self.kubelet_preferred_address_types, port },
                node_selector: LabelSelector::parse(&self.node_selector).context("--node-selector")?,
                ..ResourceMetricsConfig::default()
            },
            kubelet: KubeletClientConfig {
                insecure_tls: self.kubelet_insecure_tls,
                completely_insecure: self.deprecated_kubelet_completely_insecure,
                certificate_authority: self.kubelet_certificate_authority,
                client_certificate: self.kubelet_client_certificate.zip(self.kubelet_client_key),
            },
            port: SecurePort {
                listen: SocketAddr::new(self.bind_address, self.secure_port),
                serving: self.tls_cert_file.zip(self.tls_private_key_file),
                cert_dir: Some(self.cert_dir),
                pair_name: "apiserver",
            },
            kubeconfig: self.kubeconfig.unwrap_or_default(),
        })
    }
}

/// `ferry metrics-server`.
pub async fn run(arguments: MetricsServerArgs) -> Result<ExitCode> {
    let config = arguments.config()?;
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let ready = |address: SocketAddr| say(format_args!("Metrics are served at https://{address}"));
    cluster::run_metrics_server(config, &Clock::system(), &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: MetricsServerArgs,
    }

    fn config(words: &[&str]) -> Result<MetricsServerConfig> {
        Line::try_parse_from([&["x"], words].concat()).context("flags")?.arguments.config()
    }

    #[test]
    fn flags_of_the_deployment_of_metrics_server_are_accepted() {
        let words = [
            "--cert-dir=/tmp",
            "--secure-port=10250",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--kubelet-use-node-status-port",
            "--metric-resolution=15s",
        ];
        let config = config(&words).expect("valid");
        assert_eq!(config.port.listen.port(), 10250);
        assert_eq!(config.resource.addressing.types, ["InternalIP", "ExternalIP", "Hostname"]);
        assert_eq!(config.resource.addressing.port, KubeletPort::OfStatus);
        assert_eq!(config.resource.resolution, Duration::from_secs(15));
    }

    #[test]
    fn contradicting_flags_are_refused() {
        for words in [
            &["--metric-resolution=5s"][..],
            &["--metric-resolution=10s", "--kubelet-request-timeout=10s"],
            &["--kubelet-insecure-tls", "--kubelet-certificate-authority=x"],
            &["--kubelet-client-certificate=x"],
            &["--node-selector=a in"],
        ] {
            assert!(config(words).is_err(), "{words:?}");
        }
    }
}
