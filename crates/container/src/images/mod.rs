//! Images: references, manifests, and layers, which are unpacked once and shared.

mod import;
mod lookup;
mod manifest;
mod pull;
mod reference;
mod store;

pub use import::ImportError;
pub(crate) use lookup::contains;
pub use manifest::{ARCHITECTURE, Descriptor, ImageConfig, Manifest, RunConfig};
pub use pull::{PullError, Puller};
pub use reference::{BadReference, Reference, is_digest};
pub use store::{Image, ImageStore, Layer, LayerGuard, StoreError};
