//! Fuzzing without instrumentation: mutated inputs for every decoder that takes bytes from elsewhere.
//!
//! [`engine`] makes inputs from a small corpus, always the same for a seed, and keeps those whose outcome is new;
//! [`mutate`] changes bytes and structure; [`memory`] counts what an execution allocates; [`targets`] are the decoders. A
//! test runs each target for a moment, `scripts/fuzz` for as long as one likes.

pub mod engine;
pub mod memory;
mod mutate;
pub mod targets;

/// All executions are accounted.
#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
