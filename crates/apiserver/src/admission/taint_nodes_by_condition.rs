//! TaintNodesByCondition: adds the not-ready taint to new nodes.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;
use serde_json::json;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is("", "nodes")
    }

    async fn mutate(
        &self,
        _registry: &Registry,
        _attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(node) = object else { return Ok(()) };
        let mut taints = node.field("spec").items("taints").to_vec();
        let there = |taint: &Value| taint.text("key") == NOT_READY && taint.text("effect") == "NoSchedule";
        if !taints.iter().any(there) {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            node.child_mut("spec").set("taints", taints);
        }
        Ok(())
    }
}
