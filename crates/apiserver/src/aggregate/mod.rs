//! Aggregated APIs: group versions served by other servers, as declared by APIServices.
//!
//! [`Aggregator`] watches APIServices with the Services and EndpointSlices behind them, maintains their `Available`
//! condition, fetches their discovery, and adds a [`Backend`] for each to the catalogue. The request chain
//! authenticates and authorizes such a request like any other, then forwards it with the user in `X-Remote-*`
//! headers.

mod availability;
mod backend;
mod custom_groups;
mod discovery;
mod extension;
mod metrics;
mod remote;
mod resolve;
mod run;
mod target;
#[cfg(test)]
mod tests;
pub(crate) mod user_headers;
mod worker;

pub use backend::Backend;
pub use extension::Extension;
pub use metrics::AggregatorMetrics;
pub(crate) use remote::ServerTls;
pub use resolve::Routing;
pub(crate) use resolve::resolve;
pub use run::Aggregator;
pub(crate) use run::service_and_slices;
pub(crate) use target::ServiceReference;
pub use target::Target;
