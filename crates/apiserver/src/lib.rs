//! The API server: request chain, registry, watch cache, discovery, OpenAPI.

pub mod admission;
mod authenticate;
mod authorize;
mod bootstrap;
mod cache;
mod chain;
mod context;
mod decode;
pub mod discovery;
mod encode;
mod forms;
mod negotiate;
mod openapi;
mod options;
mod query;
mod registry;
mod reply;
mod request_info;
mod rest;
mod selection;
pub mod serve;
mod server;
mod user;

pub use authenticate::{AuthenticationConfig, JwtError, ServiceAccountConfig, TokenFileError};
pub use chain::ChainConfig;
pub use chain::audit;
pub use registry::allocate::ServiceConfig;
pub use rest::Limits;
pub use server::{ApiServer, BuildError, Config};
