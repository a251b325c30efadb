//! Label and field selectors: parsing with Kubernetes' messages, matching without allocation.

pub mod field;
pub mod label;

pub use field::FieldSelector;
pub use label::LabelSelector;

/// A malformed selector, with the API's error text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);
