//! Revisioned key-value store with compare-and-swap, ranges and watches over opaque bytes.
//!
//! The model is etcd's: one global revision that every change increases, keys in byte order, bounded history, watches
//! that replay from a past revision and leases whose keys are deleted with them.
//!
//! [`Embedded`] keeps the data in memory and makes it durable with its own write-ahead log; [`Etcd`] is a client of
//! an etcd cluster. Both implement the contract of [`Store`], which one test battery checks. The crate is independent
//! of Kubernetes.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod contract;
pub mod embedded;
mod error;
pub mod etcd;
pub mod etcd_server;
mod layer;
mod prefixed;

pub use contract::{
    Event, Expect, KeyValue, LeaseId, Op, Outcome, RangeRequest, RangeResponse, Revision, Store, StoreHealth,
    Txn, WatchHandle, WatchSink, prefix_end,
};
pub use embedded::{Embedded, EmbeddedOptions};
pub use error::{Result, StoreError};
pub use etcd::{Etcd, EtcdOptions, EtcdTls};
pub use layer::Layer;
pub use prefixed::Prefixed;

/// Runs a task that ends with its connection or with the store. This crate cannot use `base::tasks`.
#[cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "the only place of this crate that spawns")
)]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
