//! Container logs: CRI's format, and reading them as `kubectl logs` asks for.

mod follow;
mod line;
mod read;

pub use line::{Line, Stream, parse_line};
pub use read::{LogOptions, read};
