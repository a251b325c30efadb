//! Aggregated APIs: group versions that another server answers for, as APIServices name them.
//!
//! [`Aggregator`] follows APIServices with the Services and EndpointSlices behind them, keeps their `Available` condition
//! true to what it finds, fetches their discovery, and puts a [`Backend`] into the catalogue for each. The request chain
//! authenticates and authorizes such a request as any other, then sends it there with the user in `X-Remote-*` headers.

mod availability;
mod backend;
mod custom_groups;
mod discovery;
mod extension;
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
pub(crate) use remote::Secured;
pub use resolve::Routing;
pub(crate) use resolve::resolve;
pub use run::Aggregator;
pub(crate) use run::service_and_slices;
pub(crate) use target::ServiceReference;
pub use target::Target;
