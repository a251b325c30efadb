//! Trace settings of a kubelet: `tracing` of KubeletConfiguration as flags.

use base::trace::{Endpoint, MAX_SAMPLING_RATE, TracingConfig};
use clap::Args;

#[derive(Args, Clone, Debug)]
pub struct TracingArgs {
    /// Collector for the kubelet's traces, as `endpoint` of TracingConfiguration: `host:port` for OTLP over gRPC, or a
    /// URL with a path for OTLP over HTTP [default: that of the control plane in the same process].
    #[arg(long, value_name = "ENDPOINT", help_heading = "Node")]
    pub tracing_endpoint: Option<Endpoint>,

    /// Number of samples to collect per million spans without a sampled parent.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SAMPLING_RATE)), requires = "tracing_endpoint", help_heading = "Node")]
    pub tracing_sampling_rate_per_million: u32,
}

impl TracingArgs {
    /// Settings, if a collector is set.
    pub fn config(self) -> Option<TracingConfig> {
        let sampling_rate_per_million = self.tracing_sampling_rate_per_million;
        self.tracing_endpoint.map(|endpoint| TracingConfig { endpoint, sampling_rate_per_million })
    }
}
