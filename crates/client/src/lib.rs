//! A thin typed client of the API, over TCP and TLS or inside the process.
//!
//! [`Client`] is one identity at one server. A [`Transport`] carries its requests: [`Remote`] over TCP and TLS,
//! or a bridge into an API server in the same process. Objects are the types of the `objects` crate ([`Object`]);
//! kinds known only at run time use [`Dynamic`].

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod account;
mod client;
mod discovery;
mod dynamic;
mod error;
mod exec;
mod kubeconfig;
mod merged;
mod metrics;
mod object;
mod options;
mod remote;
mod servers;
mod transport;
mod trim;
mod watch;

pub use account::Account;
pub use client::{Client, RawRequest};
pub use discovery::{Discovery, ResourceInfo};
pub use dynamic::Dynamic;
pub use error::ClientError;
pub use kubeconfig::{Kubeconfig, KubeconfigError, read_material, render_kubeconfig};
pub use merged::{MergedKubeconfig, Overrides};
pub use metrics::register_metrics;
pub use object::{Collection, ObjectList, ResourceKey, escape};
pub use objects::meta::v1::{DeleteOptions, Preconditions, Status};
pub use objects::{Object, PartialObject};
pub use options::{Cause, Causes, ListOptions, Patch, Propagation, WatchOptions, delete_options};
pub use remote::{Remote, Upgraded};
pub use servers::Servers;
pub use transport::{Body, Call, Transport, TransportError};
pub use watch::{WatchEvent, WatchStream};
