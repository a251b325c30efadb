//! Benchmarks, side by side with another API server when one is given.
fn main() {}
