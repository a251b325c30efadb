//! Horizontal pod autoscaling: the two versions of the kind and the annotations for fields that v1 lacks.

pub mod conversion;
mod ordered;
mod v1_metrics;
pub mod validation;
