//! Registration of the metrics of a component by a table.

/// A struct with one metric per row, and a constructor that registers them.
///
/// With `shared` before the struct, its metrics can be added to several registries.
///
/// A row is the field, the method of [`Metrics`](crate::metrics::Metrics) that registers it with its arguments except for
/// the help text, and the help text.
///
/// ```
/// base::metric_table! {
///     /// Metrics of jobs.
///     pub struct JobMetrics {
///         syncs: counters("job_syncs_total", &["result"]) "Syncs of jobs.";
///         seconds: histogram("job_seconds", &[0.1, 1.0]) "Durations of syncs in seconds.";
///     }
/// }
///
/// let metrics = base::metrics::Metrics::new(&base::clock::Clock::system())?;
/// let jobs = JobMetrics::new(&metrics)?;
/// jobs.syncs.with_label_values(&["success"]).inc();
/// # Ok::<(), base::metrics::MetricsError>(())
/// ```
#[macro_export]
macro_rules! metric_table {
    ($(#[$doc:meta])* $visibility:vis struct $name:ident {
        $($field:ident: $method:ident($metric:literal $(, $argument:expr)* $(,)?) $help:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $(pub $field: $crate::metric_table!(@type $method),)*
        }

        impl $name {
            pub fn new(
                metrics: &$crate::metrics::Metrics,
            ) -> ::std::result::Result<Self, $crate::metrics::MetricsError> {
                Ok(Self { $($field: $crate::metric_table!(@new metrics $method $metric, $help $(, $argument)*),)* })
            }
        }
    };
    (shared $(#[$doc:meta])* $visibility:vis struct $name:ident {
        $($field:ident: $method:ident($metric:literal $(, $argument:expr)* $(,)?) $help:literal;)*
    }) => {
        $crate::metric_table! {
            $(#[$doc])* $visibility struct $name { $($field: $method($metric $(, $argument)*) $help;)* }
        }

        impl $name {
            /// Adds the metrics to a further registry, which shares them.
            pub fn register(
                &self,
                metrics: &$crate::metrics::Metrics,
            ) -> ::std::result::Result<(), $crate::metrics::MetricsError> {
                $(metrics.add_shared(&self.$field, $crate::metric_table!(@buckets $method $(, $argument)*))?;)*
                Ok(())
            }
        }
    };
    (@buckets histogram, $buckets:expr) => { $buckets };
    (@buckets histograms, $labels:expr, $buckets:expr) => { $buckets };
    (@buckets $method:ident $(, $argument:expr)*) => { &[] };
    (@new $metrics:ident $method:ident $metric:literal, $help:literal $(, $argument:expr)*) => {
        $metrics.$method($metric, $help $(, $argument)*)?
    };
    (@type counter) => { $crate::metrics::IntCounter };
    (@type counters) => { $crate::metrics::IntCounterVec };
    (@type gauge) => { $crate::metrics::IntGauge };
    (@type gauges) => { $crate::metrics::IntGaugeVec };
    (@type histogram) => { $crate::metrics::Histogram };
    (@type histograms) => { $crate::metrics::HistogramVec };
    (@type computed) => { $crate::metrics::ComputedGauges };
}
