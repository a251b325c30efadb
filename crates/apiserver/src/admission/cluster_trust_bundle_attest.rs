//! ClusterTrustBundleAttest: writing a bundle of a signer needs the verb `attest` on that signer.

use super::{Attributes, Operation, Plugin, signers};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;

const RESOURCE: &str = "clustertrustbundles";

pub struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && attributes.is(signers::GROUP, RESOURCE)
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(new) = object else { return Ok(()) };
        let signer = new.field("spec").text("signerName");
        if signer.is_empty() || old.is_some_and(|old| only_collection_fields_differ(new, old)) {
            return Ok(());
        }
        if signers::may(registry, attributes.context.user, "attest", signer).await? {
            return Ok(());
        }
        Err(attributes.forbidden(format!("user not permitted to attest for signerName {signer:?}")))
    }
}

/// Reports whether an update changes only owner references, finalizers and bookkeeping metadata.
fn only_collection_fields_differ(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            object.child_mut("metadata").unset(field);
        }
        object
    };
    rest(new) == rest(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn owner_change_needs_no_attest_permission() {
        let old = json!({"metadata": {"name": "a"}, "spec": {"signerName": "s", "trustBundle": "x"}});
        let mut new = old.clone();
        new["metadata"]["ownerReferences"] = json!([{"name": "o"}]);
        assert!(only_collection_fields_differ(&new, &old));
        new["spec"]["trustBundle"] = json!("y");
        assert!(!only_collection_fields_differ(&new, &old));
    }
}
