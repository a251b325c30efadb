//! Fuzzing without instrumentation: mutated inputs for every decoder of external data.
//!
//! [`engine`] derives inputs from a small corpus, deterministically for a seed, and retains those whose outcome is new;
//! [`mutate`] changes bytes and structure; [`testbase::memory`] counts the allocations of an execution; [`targets`] are the
//! decoders. A test runs each target briefly, `scripts/fuzz` for any duration.

pub mod engine;
mod mutate;
pub mod targets;

pub use testbase::memory;

/// All allocations are counted.
#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
