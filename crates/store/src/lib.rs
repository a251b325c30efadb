//! Revisioned key-value store with compare-and-swap, ranges and watches over opaque bytes.
//!
//! The model is etcd's: one global revision that every change increases, keys in byte order, bounded
//! history, watches that replay from a past revision and leases that take their keys with them.
//! [`Embedded`] keeps everything in memory and makes it durable with its own write-ahead log;
//! [`Etcd`] talks to an etcd cluster. Both keep the promises written at [`Store`], and one battery of
//! tests holds them to it. Nothing here knows about Kubernetes.

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
