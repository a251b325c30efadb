//! TaintNodesByCondition: a new node takes no pods until somebody says it is ready.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::Result;
use serde_json::json;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is("", "nodes")
    }

    fn mutate<'a>(
        &'a self,
        _registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(node) = object else { return Ok(()) };
            let mut taints = node.field("spec").items("taints").to_vec();
            let there =
                |taint: &Value| taint.text("key") == NOT_READY && taint.text("effect") == "NoSchedule";
            if !taints.iter().any(there) {
                taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
                node.child_mut("spec").set("taints", taints);
            }
            Ok(())
        })
    }
}
