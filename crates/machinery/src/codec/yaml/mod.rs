//! YAML as in Kubernetes: YAML 1.1 scalars, the first document only, JSON values.
//!
//! Built on an event parser instead of serde, because duplicate keys must be detected without failing (the last one
//! wins), aliases must be counted, and `0755`, `on` or `1_000` have their YAML 1.1 meaning.

mod decode;
mod encode;
mod resolve;

pub use decode::decode;
pub use encode::encode;

/// Decoding error of YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// 0 if the line is unknown.
    #[error("yaml: {}{what}", line_prefix(*line))]
    Syntax { line: usize, what: String },
    #[error("yaml: invalid leading UTF-8 octet")]
    Encoding,
    #[error("yaml: document contains excessive aliasing")]
    Aliasing,
    #[error(transparent)]
    Budget(#[from] crate::codec::BudgetExceeded),
    #[error("yaml: exceeded max depth of {0}")]
    Depth(usize),
    #[error("yaml: unknown anchor '{0}' referenced")]
    UnknownAnchor(String),
    #[error("yaml: map merge requires map or sequence of maps as the value")]
    Merge,
    #[error("yaml: invalid map key: {0}")]
    Key(String),
    #[error("yaml: cannot decode `{text}` as a !!{tag}")]
    Tag { text: String, tag: String },
    #[error("json: unsupported value: {0}")]
    Number(String),
}

fn line_prefix(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}
