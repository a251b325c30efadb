//! Local history: usage of nodes and pods over the last day, compressed on disk.
//!
//! Points of a series are collected in a compressed block in memory. Every ten minutes all blocks are appended to the
//! segment file of the present two hours; segments older than the retention are deleted. A crash loses the blocks in memory.

mod advice;
mod api;
mod bits;
mod block;
mod ring;
mod summary;

pub use api::{HISTORY_GROUP, HISTORY_RESOURCES, HISTORY_VERSION, answer};
pub use block::HistoryPoint;
pub use ring::{History, HistoryConfig, SeriesKey};
