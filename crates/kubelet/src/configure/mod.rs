//! CRI configuration of pods and containers: pure translations from API types to CRI messages.

pub mod container;
pub mod dns;
pub mod downward;
pub mod env_file;
pub mod environment;
pub mod expansion;
pub mod hosts;
pub mod labels;
pub mod resources;
pub mod sandbox;
pub mod security;
pub mod services;
pub mod sources;

pub use sources::Sources;
