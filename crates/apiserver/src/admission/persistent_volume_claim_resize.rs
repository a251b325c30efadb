//! PersistentVolumeClaimResize: only bound claims whose storage class allows expansion may grow.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::quantity::Quantity;
use machinery::status::Result;
use machinery::{Value, meta};

const UNBOUND: &str = "Only bound persistent volume claims can be expanded";
const NOT_EXPANDABLE: &str = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";

pub struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update && attributes.is("", "persistentvolumeclaims")
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let (Some(new), Some(old)) = (object, old) else { return Ok(()) };
        if size(new) <= size(old) {
            return Ok(());
        }
        if old.at("status.phase") != "Bound" {
            return Err(attributes.forbidden(UNBOUND));
        }
        let class = class(new);
        let resource = ("storage.k8s.io", "v1", "storageclasses");
        let expandable = !class.is_empty()
            && class == self::class(old)
            && registry
                .find(resource, "", class)
                .await?
                .is_some_and(|class| class.flag("allowVolumeExpansion"));
        if expandable { Ok(()) } else { Err(attributes.forbidden(NOT_EXPANDABLE)) }
    }
}

fn size(claim: &Value) -> Quantity {
    let text = claim.at("spec.resources.requests.storage").as_str().unwrap_or("0");
    Quantity::parse(text).unwrap_or_default()
}

fn class(claim: &Value) -> &str {
    meta::annotation(claim, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| claim.field("spec").text("storageClassName"))
}
