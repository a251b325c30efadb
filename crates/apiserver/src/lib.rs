//! The API server: request chain, registry, watch cache, discovery, OpenAPI.

pub mod discovery;
pub mod openapi;
pub mod serve;
