//! Metadata of objects of any resource, as `PartialObjectMetadata` carries it.

use serde::{Deserialize, Serialize};

use crate::meta::v1::ObjectMeta;

/// An object's metadata and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialObject {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

impl crate::Resource for PartialObject {
    const API_VERSION: &'static str = "meta.k8s.io/v1";
    const GROUP: &'static str = "meta.k8s.io";
    const KIND: &'static str = "PartialObjectMetadata";
    const VERSION: &'static str = "v1";
    /// A representation of other resources, without a path of its own.
    const URL_PATH_SEGMENT: &'static str = "";
    type Scope = crate::NamespaceResourceScope;
}

impl crate::Metadata for PartialObject {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
