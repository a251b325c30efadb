//! Tests of the store: one battery for all backends, and what only the embedded one can be put through.

mod battery;
mod crash;
mod disk;
mod embedded;
mod etcd;
mod etcd_server;
mod model;
mod power;
mod recorder;
