//! Tests of the store: one battery for all backends, and what only the embedded one can be put through.

mod battery;
mod embedded;
mod etcd;
mod recorder;
