//! StorageObjectInUseProtection: adds the protection finalizer to new volumes, claims and volume attributes classes.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use async_trait::async_trait;
use machinery::status::Result;
use machinery::{Value, meta};

/// Resource and finalizer.
const PROTECTED: [(&str, &str, &str); 3] = [
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
];

pub struct StorageObjectInUseProtection;

fn finalizer(attributes: &Attributes<'_>) -> Option<&'static str> {
    PROTECTED.iter().find(|row| attributes.is(row.0, row.1)).map(|row| row.2)
}

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && finalizer(attributes).is_some()
    }

    async fn mutate(
        &self,
        _registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let (Some(object), Some(finalizer)) = (object, finalizer(attributes)) else { return Ok(()) };
        let mut finalizers = meta::finalizers(object).to_vec();
        if !finalizers.iter().any(|each| each == finalizer) {
            finalizers.push(finalizer.into());
            meta::metadata_mut(object).insert("finalizers".to_owned(), finalizers.into());
        }
        Ok(())
    }
}
