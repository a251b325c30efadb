//! OpenTelemetry traces: W3C trace context, sampling, spans, and their export over OTLP.
//!
//! A [`Tracer`] starts the spans of one component; without an [`Exporter`] it is off and a span costs one branch. The span
//! of the current task is found through [`scope`], so that steps of a request ([`child`]) and outbound requests
//! ([`inject`]) need no parameter for it. A span is queued when it is dropped; a full queue drops spans and counts them, and
//! no caller ever waits for a collector.

mod causes;
mod context;
mod current;
mod endpoint;
mod exporter;
pub mod otlp;
mod queue;
mod sampler;
mod span;
mod tracer;
mod transport;

pub use causes::{MAX_HOPS, WriteInProgress};
pub use context::{SpanContext, TRACEPARENT, TRACESTATE};
pub use current::{child, current, inject, scope, writing, wrote};
pub use endpoint::{DEFAULT_ENDPOINT, Endpoint, EndpointError};
pub use exporter::{Exporter, ExporterConfig, ExporterError};
pub use sampler::{MAX_SAMPLING_RATE, Sampler};
pub use span::{Attributes, Handle, Kind, Span, Value};
pub use tracer::{Parent, Tracer};

/// Settings of traces, as in TracingConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracingConfig {
    pub endpoint: Endpoint,
    /// Samples per million of traces without a parent; 0 records only the spans of sampled parents.
    pub sampling_rate_per_million: u32,
}
