//! Pulling images.

use std::sync::Arc;

use cri::v1::AuthConfig;

use super::{Runtime, RuntimeError};

impl Runtime {
    /// Makes sure that an image is here; the answer is its id.
    pub(super) async fn pull(
        self: &Arc<Self>,
        name: &str,
        _auth: Option<AuthConfig>,
    ) -> Result<String, RuntimeError> {
        let found = self.images.find(name).map(|image| image.id);
        found.ok_or_else(|| RuntimeError::NotFound(format!("image {name:?} not found")))
    }
}
