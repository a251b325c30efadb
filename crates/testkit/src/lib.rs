//! Test harness: an API server with its controllers on a free port, over the support of `testbase`.

mod component_port;
mod server;

pub use component_port::{free_address, get_page, service_account_token};
pub use server::Server;
pub use testbase::{
    Behaviour, Client, Collector, Etcd, Identity, Kubectl, RecordedSpan, Reply, Responder, Scenarios,
    SigningKey, Streaming, eventually,
};
