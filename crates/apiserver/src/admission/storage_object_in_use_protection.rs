//! StorageObjectInUseProtection: volumes, claims and attribute classes start with the finalizer that keeps them
//! while they are used.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use futures_util::future::BoxFuture;
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

impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && finalizer(attributes).is_some()
    }

    fn mutate<'a>(
        &'a self,
        _registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (Some(object), Some(finalizer)) = (object, finalizer(attributes)) else { return Ok(()) };
            let mut finalizers = meta::finalizers(object).to_vec();
            if !finalizers.iter().any(|each| each == finalizer) {
                finalizers.push(finalizer.into());
                meta::metadata_mut(object).insert("finalizers".to_owned(), finalizers.into());
            }
            Ok(())
        })
    }
}
