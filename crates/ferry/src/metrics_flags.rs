//! Flags about the metrics that a control plane collects and serves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use cluster::{AdapterConfig, AdapterRules, HistoryConfig, ResourceMetricsConfig, SinkConfig};

use machinery::quantity::Quantity;

use crate::flags::parse_duration;

/// Shortest time between two scrapes of a node.
const SHORTEST_RESOLUTION: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArgs {
    /// The resolution at which metrics are collected from kubelets for metrics.k8s.io.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub metric_resolution: Duration,

    /// Retention of the usage of nodes and pods on disk, for `ferry top`; 0s disables it.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub usage_history: Duration,

    /// Monitoring system to which usage, requests and limits are pushed; may be repeated: `influxdb:URL?db=NAME`,
    /// `influxdb2:URL?org=ORG&bucket=NAME&token-file=FILE`, `prometheus:URL` (remote write; `?version=2`), `otlp:URL`,
    /// `statsd:HOST:PORT`, `graphite:HOST:PORT`, `file:PATH`.
    #[arg(long, value_name = "KIND:URL")]
    pub metrics_sink: Vec<String>,

    /// Maximum size on disk of the payloads queued for each monitoring system that is not available; the oldest are
    /// dropped beyond it.
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = parse_size)]
    pub metrics_sink_queue_size: u64,

    /// Scrape pods with the annotation `prometheus.io/scrape: "true"`, and serve their series as custom.metrics.k8s.io
    /// and external.metrics.k8s.io.
    #[arg(long)]
    pub metrics_adapter: bool,

    /// File with a MetricsAdapterConfiguration: further pods to scrape, by label selector, and how their series are
    /// served. Implies `--metrics-adapter`.
    #[arg(long, value_name = "FILE")]
    pub metrics_adapter_config: Option<PathBuf>,
}

/// Parses a quantity of bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let size = Quantity::parse(text).map_err(|error| error.to_string())?.value();
    u64::try_from(size).ok().filter(|size| *size > 0).ok_or_else(|| "must be above 0".to_owned())
}

impl MetricsArgs {
    /// The configuration of metrics in a control plane with this data directory; `None` if they are disabled.
    pub fn config(self, is_disabled: bool, data_dir: &Path) -> Result<Option<ResourceMetricsConfig>> {
        if is_disabled {
            ensure!(
                !self.metrics_adapter
                    && self.metrics_adapter_config.is_none()
                    && self.metrics_sink.is_empty(),
                "--metrics-adapter and --metrics-sink require the metrics server, which --disable excludes"
            );
            return Ok(None);
        }
        let resolution = self.metric_resolution;
        ensure!(
            resolution >= SHORTEST_RESOLUTION,
            "metric-resolution should be a time duration at least 1s, but value {resolution:?} provided"
        );
        let sinks = self.metrics_sink.iter().map(|text| SinkConfig::parse(text));
        let sinks: Vec<SinkConfig> = sinks.collect::<Result<_, _>>().context("--metrics-sink")?;
        let names: BTreeSet<String> = sinks.iter().map(SinkConfig::name).collect();
        ensure!(names.len() == sinks.len(), "--metrics-sink specifies one monitoring system twice");
        let mut history = HistoryConfig::new(data_dir.join("usage"));
        history.retention = self.usage_history;
        let is_adapting = self.metrics_adapter || self.metrics_adapter_config.is_some();
        let rules = match &self.metrics_adapter_config {
            Some(file) => {
                let text =
                    std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
                AdapterRules::parse(&text).with_context(|| file.display().to_string())?
            }
            None => AdapterRules::default(),
        };
        let adapter = AdapterConfig { interval: resolution, rules, ..AdapterConfig::default() };
        Ok(Some(ResourceMetricsConfig {
            resolution,
            adapter: is_adapting.then_some(adapter),
            sinks,
            sink_directory: data_dir.join("sinks"),
            sink_queue_size: self.metrics_sink_queue_size,
            history: Some(history).filter(|history| !history.retention.is_zero()),
            ..ResourceMetricsConfig::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: MetricsArgs,
    }

    fn config(is_disabled: bool, words: &[&str]) -> Result<Option<ResourceMetricsConfig>> {
        let line = Line::try_parse_from([&["x"], words].concat()).context("flags")?;
        line.arguments.config(is_disabled, Path::new("/data"))
    }

    #[test]
    fn flags_configure_history_adapter_and_sinks() {
        let usual = config(false, &[]).expect("valid").expect("enabled");
        assert_eq!(usual.resolution, Duration::from_secs(15));
        assert_eq!(usual.history.expect("a history").directory, Path::new("/data/usage"));
        assert!(usual.adapter.is_none() && usual.sinks.is_empty());
        assert_eq!(usual.sink_queue_size, 256 << 20);
        let words = [
            "--usage-history=0s",
            "--metrics-adapter",
            "--metrics-sink=file:/a",
            "--metrics-sink=otlp:http://c:4318",
            "--metrics-sink-queue-size=1Gi",
        ];
        let other = config(false, &words).expect("valid").expect("enabled");
        assert!(other.history.is_none() && other.adapter.is_some());
        assert_eq!((other.sinks.len(), other.sink_queue_size), (2, 1 << 30));
    }

    #[test]
    fn configuration_of_the_adapter_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("adapter.yaml");
        let flag = format!("--metrics-adapter-config={}", file.display());
        assert!(config(false, &[&flag]).is_err(), "no such file");
        std::fs::write(
            &file,
            "apiVersion: metrics.ferry.dev/v1alpha1\nkind: MetricsAdapterConfiguration\n\
            metrics:\n- {series: jobs, name: work}\n",
        )
        .expect("written");
        let found = config(false, &[&flag]).expect("valid").expect("enabled").adapter.expect("an adapter");
        assert!(found.rules.metric("work").is_some());
        std::fs::write(&file, "kind: Pod").expect("written");
        assert!(config(false, &[&flag]).is_err());
        assert!(config(true, &[&flag]).is_err());
    }

    #[test]
    fn contradicting_flags_are_refused() {
        assert!(config(true, &[]).expect("valid").is_none());
        assert!(config(true, &["--metrics-adapter"]).is_err());
        assert!(config(false, &["--metric-resolution=500ms"]).is_err());
        assert!(config(false, &["--metrics-sink=carrier-pigeon:x"]).is_err());
        assert!(config(false, &["--metrics-sink=file:/a", "--metrics-sink=file:/a"]).is_err());
        assert!(config(false, &["--metrics-sink-queue-size=0"]).is_err());
    }
}
