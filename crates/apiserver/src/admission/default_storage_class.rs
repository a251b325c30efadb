//! DefaultStorageClass: a claim that names no storage class gets the default one.

use super::{Attributes, Operation, Plugin, default_class};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::status::Result;
use machinery::{Value, meta};

const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const BETA_DEFAULT: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// How claims named their class before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is("", "persistentvolumeclaims")
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(claim) = object else { return Ok(()) };
            if meta::annotation(claim, BETA_CLASS).is_some() || claim.field("spec").has("storageClassName") {
                return Ok(());
            }
            let resource = ("storage.k8s.io", "v1", "storageclasses");
            let classes = registry.find_all(resource, "", "is-default-class").await?;
            if let Some(name) = default_class::choose(&classes, &[DEFAULT, BETA_DEFAULT]) {
                claim.child_mut("spec").set("storageClassName", name);
            }
            Ok(())
        })
    }
}
