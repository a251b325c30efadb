//! Traces of the process: one exporter that its components share.

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use base::trace::{Exporter, ExporterConfig, Sampler, Tracer, TracingConfig};

use crate::ClusterError;

/// Exporter and sampler of the process; without an exporter, nothing is recorded.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<(Exporter, Sampler)>);

impl Traces {
    /// Starts the exporter, if traces are configured.
    pub(crate) fn start(
        config: Option<&TracingConfig>,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Result<Self, ClusterError> {
        let Some(config) = config else { return Ok(Self(None)) };
        let exporter = Exporter::start(ExporterConfig::new(config.endpoint.clone()), clock, tasks);
        let exporter = exporter.map_err(ClusterError::Tracing)?;
        Ok(Self(Some((exporter, Sampler::per_million(config.sampling_rate_per_million)))))
    }

    /// The same, with the settings of one component: its own sampler, and its own exporter only if the collector is
    /// another one.
    pub(crate) fn of_component(
        &self,
        config: Option<&TracingConfig>,
        clock: &Clock,
        tasks: &TaskGroup,
    ) -> Result<Self, ClusterError> {
        match (config, &self.0) {
            (None, _) => Ok(self.clone()),
            (Some(config), Some((exporter, _))) if *exporter.endpoint() == config.endpoint => {
                let sampler = Sampler::per_million(config.sampling_rate_per_million);
                Ok(Self(Some((exporter.clone(), sampler))))
            }
            (Some(_), _) => Self::start(config, clock, tasks),
        }
    }

    /// Tracer of a component.
    pub(crate) fn tracer(&self, service: &str, instance: &str) -> Tracer {
        self.0
            .as_ref()
            .map_or(Tracer::off(), |(exporter, sampler)| exporter.tracer(service, instance, *sampler))
    }

    /// The exporter, unless it is that of the `process`.
    pub(crate) fn exporter_beside(&self, process: &Self) -> Option<Exporter> {
        let (exporter, _) = self.0.as_ref()?;
        let shared = process.0.as_ref().is_some_and(|(other, _)| other.endpoint() == exporter.endpoint());
        (!shared).then(|| exporter.clone())
    }

    pub(crate) fn register(&self, metrics: &Metrics) -> Result<(), ClusterError> {
        self.0
            .as_ref()
            .map_or(Ok(()), |(exporter, _)| exporter.register(metrics))
            .map_err(ClusterError::Metrics)
    }
}
