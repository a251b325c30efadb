//! Container logs in CRI format, and reading them for `kubectl logs`.

mod follow;
mod line;
mod read;

pub use line::{Line, Stream, parse_line};
pub use read::{LogOptions, read};
