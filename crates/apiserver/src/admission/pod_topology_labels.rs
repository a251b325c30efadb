//! PodTopologyLabels: copies the node's region and zone labels to a pod when it is bound.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::selector::label::Labels;
use machinery::status::Result;

const COPIED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub struct PodTopologyLabels;

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && (attributes.is("", "pods") || attributes.is_subresource("", "pods", "binding"))
    }

    async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(object) = object else { return Ok(()) };
        let node = if attributes.subresource().is_empty() {
            object.field("spec").text("nodeName")
        } else {
            let target = object.field("target");
            if target.text("kind") == "Node" { target.text("name") } else { "" }
        };
        if node.is_empty() {
            return Ok(());
        }
        let nodes = ("", "v1", "nodes");
        let Some(node) = registry.find_entry(nodes, "", node).await? else { return Ok(()) };
        let node = node.attributes(&registry.builtin(nodes.0, nodes.1, nodes.2)?.storage.cache.layout);
        for key in COPIED {
            if let Some(value) = node.label(key) {
                object.child_mut("metadata").child_mut("labels").set(key, value);
            }
        }
        Ok(())
    }
}
