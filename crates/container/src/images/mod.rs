//! Images: what they are called, what is in them, and their layers, unpacked and shared.

mod import;
mod manifest;
mod reference;
mod store;

pub use import::ImportError;
pub use manifest::{Descriptor, ImageConfig, Manifest, RunConfig};
pub use reference::{BadReference, Reference, is_digest};
pub use store::{Image, ImageStore, Layer, StoreError};
