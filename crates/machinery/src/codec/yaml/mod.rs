//! YAML as Kubernetes reads and writes it: YAML 1.1 scalars, the first document only, JSON values.
//!
//! Built on an event parser rather than on a serde reader, because duplicate keys must be found and survive
//! (the last one counts), aliases must be counted, and `0755`, `on` or `1_000` mean what YAML 1.1 says.

mod decode;
mod encode;
mod resolve;

pub use decode::decode;
pub use encode::encode;

/// Why bytes are no YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// Line 0 is none.
    #[error("yaml: {}{what}", place(*line))]
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

fn place(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}
