//! The API server: request chain, registry, watch cache, discovery, OpenAPI.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admission;
pub mod aggregate;
mod authenticate;
mod authorize;
mod bootstrap;
mod cache;
mod chain;
pub mod configuration;
mod context;
mod custom;
pub mod discovery;
pub mod encryption;
mod memory_limit;
mod metrics;
mod openapi;
pub mod outbound;
mod registry;
mod reload;
mod request_info;
mod rest;
mod selection;
pub mod serve;
mod server;
mod shared_map;
mod stored_form;
#[cfg(test)]
mod test_server;
mod unix_grpc;
mod user;
mod webhook_cache;
mod wire;

pub use authenticate::{
    AuthenticationConfig, AuthenticationError, JwtError, OidcFlags, ServiceAccountConfig, SigningKey,
    TokenFileError, WebhookTokenConfig,
};
pub use authorize::node::AGENT_ACCOUNTS;
pub use authorize::{AuthorizationConfig, AuthorizationError, WebhookFlags};
pub use bootstrap::AuthenticationTrust;
pub use chain::audit;
pub use chain::{Chain, ChainConfig, Cors};
pub use configuration::ConfigurationError;
pub use registry::services::ServiceConfig;
pub use registry::{StoreOverride, Stores};
pub use reload::server_id;
pub use rest::Limits;
pub use rest::component_status::{ComponentHealth, Unhealthy};
pub use rest::connect::KubeletIdentity;
pub use server::{ApiServer, BuildError, Config};
