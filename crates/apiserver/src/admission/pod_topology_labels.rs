//! PodTopologyLabels: a pod that is bound carries its node's region and zone as labels.

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::selector::label::Labels;
use machinery::status::Result;

const COPIED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub struct PodTopologyLabels;

impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create
            && (attributes.is("", "pods") || attributes.is_subresource("", "pods", "binding"))
    }

    fn mutate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
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
        })
    }
}
