//! Prometheus' text format 0.0.4 and OpenMetrics 1.0, line by line.
//!
//! [`Lines`] cuts pieces of a response into lines of bounded length; [`sample`] parses one. Neither keeps the page.

mod lines;
mod sample;

pub use lines::{LineTooLong, Lines};
pub use sample::{Sample, SampleError, SampleLabels, sample, type_of};

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Timestamps are milliseconds.
    Text,
    /// Timestamps are seconds with a fraction; samples may carry exemplars.
    OpenMetrics,
}

impl Format {
    /// The format that a `Content-Type` names.
    pub fn of_content_type(content_type: Option<&str>) -> Self {
        let media = content_type.and_then(|text| text.split(';').next()).map(str::trim);
        if media == Some("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }
}
