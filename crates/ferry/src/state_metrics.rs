//! `ferry state-metrics`: the series of kube-state-metrics alone, with its flags; and the flags of a control plane that
//! serves them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{AllowList, FamilyFilter, StateMetricsConfig, StateMetricsPort};

use crate::serve::{say, stop_on_signal};

const PORT: u16 = 8080;

/// Labels and annotations to show.
#[derive(Args, Debug, Default)]
pub struct StateLabelArgs {
    /// Object labels in the series `*_labels`, by resource: `pods=[app,team],namespaces=[*]`; without this flag, these
    /// series are not served.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub metric_labels_allowlist: String,

    /// Object annotations in the series `*_annotations`, by resource: `namespaces=[owner]`; without this flag, these
    /// series are not served.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub metric_annotations_allowlist: String,
}

impl StateLabelArgs {
    fn config(&self) -> Result<StateMetricsConfig> {
        let labels = AllowList::parse(&self.metric_labels_allowlist).context("--metric-labels-allowlist")?;
        let annotations =
            AllowList::parse(&self.metric_annotations_allowlist).context("--metric-annotations-allowlist")?;
        let mut config = StateMetricsConfig::default();
        (config.labels, config.annotations) = (labels, annotations);
        Ok(config)
    }
}

/// Flags of a control plane.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Metrics")]
pub struct StateMetricsArgs {
    /// Address on which to serve the series of kube-state-metrics by plain HTTP: 127.0.0.1:8080 if the flag has no
    /// value, the loopback address if it is only a port.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:8080",
          value_parser = parse_address)]
    pub state_metrics: Option<SocketAddr>,

    #[command(flatten)]
    pub labels: StateLabelArgs,
}

impl StateMetricsArgs {
    /// The port; `None` if it is not enabled.
    pub fn config(&self) -> Result<Option<StateMetricsPort>> {
        let metrics = self.labels.config()?;
        Ok(self.state_metrics.map(|address| StateMetricsPort { address, metrics }))
    }
}

/// Parses `IP:PORT`, `IP` or `PORT`.
fn parse_address(text: &str) -> Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    match text.strip_prefix(':').unwrap_or(text).parse() {
        Ok(port) => Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)),
        Err(_) => bail!("expected IP:PORT, IP or PORT"),
    }
}

/// Flags of `ferry state-metrics`.
#[derive(Args, Debug)]
pub struct StateMetricsServerArgs {
    /// Absolute path to the kubeconfig file (defaults to in-cluster config).
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Host to expose metrics on.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to expose metrics on; 0 selects a free port and prints it.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,

    /// Comma-separated list of resources to be enabled; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub resources: Vec<String>,

    /// Comma-separated list of namespaces to be enabled; all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// Comma-separated list of metrics to be exposed, as regular expressions. Excludes --metric-denylist.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub metric_allowlist: Vec<String>,

    /// Comma-separated list of metrics not to be exposed, as regular expressions. Excludes --metric-allowlist.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub metric_denylist: Vec<String>,

    /// Comma-separated list of metrics, as regular expressions, which are opt-in and not enabled by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub metric_opt_in_list: Vec<String>,

    #[command(flatten)]
    pub labels: StateLabelArgs,
}

impl StateMetricsServerArgs {
    fn config(&self) -> Result<StateMetricsPort> {
        let filter =
            FamilyFilter::new(&self.metric_allowlist, &self.metric_denylist, &self.metric_opt_in_list)?;
        let metrics = self.labels.config()?.with_resources(self.resources.clone());
        let mut metrics = metrics.context("--resources")?;
        (metrics.namespaces, metrics.families) = (self.namespaces.clone(), filter);
        Ok(StateMetricsPort { address: SocketAddr::new(self.host, self.port), metrics })
    }
}

/// `ferry state-metrics`.
pub async fn run(arguments: StateMetricsServerArgs) -> Result<ExitCode> {
    let port = arguments.config()?;
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let ready = |address: SocketAddr| say(format_args!("Metrics are served at http://{address}/metrics"));
    let kubeconfig = arguments.kubeconfig.unwrap_or_default();
    cluster::run_state_metrics(port, kubeconfig, &tasks, Box::new(ready)).await?;
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
        arguments: StateMetricsArgs,
    }

    #[derive(Parser)]
    struct ServerLine {
        #[command(flatten)]
        arguments: StateMetricsServerArgs,
    }

    fn address(words: &[&str]) -> Option<String> {
        let line = Line::try_parse_from([&["x"], words].concat()).expect("flags");
        line.arguments.config().expect("valid").map(|port| port.address.to_string())
    }

    #[test]
    fn state_metrics_flag_has_a_default_address() {
        assert_eq!(address(&[]), None);
        for (words, want) in [
            (&["--state-metrics"][..], "127.0.0.1:8080"),
            (&["--state-metrics", "10.0.0.1"], "10.0.0.1:8080"),
            (&["--state-metrics=0.0.0.0:9000"], "0.0.0.0:9000"),
            (&["--state-metrics", "9000"], "127.0.0.1:9000"),
            (&["--state-metrics=[::1]"], "[::1]:8080"),
        ] {
            assert_eq!(address(words).as_deref(), Some(want), "{words:?}");
        }
        assert!(Line::try_parse_from(["x", "--state-metrics=nowhere"]).is_err());
    }

    #[test]
    fn contradicting_lists_are_refused() {
        for words in [
            &["--metric-allowlist=a", "--metric-denylist=b"][..],
            &["--resources=ghosts"],
            &["--metric-labels-allowlist=pods"],
            &["--metric-allowlist=("],
        ] {
            let line = ServerLine::try_parse_from([&["x"], words].concat()).expect("flags");
            assert!(line.arguments.config().is_err(), "{words:?}");
        }
    }
}
