//! Tests of the store: one battery for all backends, and tests of the embedded backend's durability.

mod battery;
mod crash;
mod disk;
mod embedded;
mod etcd;
mod etcd_server;
mod model;
mod power;
mod recorder;
