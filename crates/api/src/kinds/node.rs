//! Node.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    ..Kind::new("", "v1", "Node", "nodes", Scope::Cluster)
};

fn default(node: &mut Value) {
    let Some(status) = node.field_mut("status") else {
        return;
    };
    if !status.has("allocatable") && status.has("capacity") {
        let capacity = status.field("capacity").clone();
        status.set("allocatable", capacity);
    }
}

/// Nodes may bring their status along; only the removed dynamic kubelet configuration is dropped.
fn prepare_create(node: &mut Value) {
    if let Some(spec) = node.field_mut("spec") {
        spec.unset("configSource");
    }
    if let Some(status) = node.field_mut("status") {
        status.unset("config");
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    if !old.field("spec").has("configSource")
        && let Some(spec) = new.field_mut("spec")
    {
        spec.unset("configSource");
    }
}

/// The status door leaves the spec alone; labels, annotations and the like may change with it.
fn prepare_status_update(new: &mut Value, old: &Value) {
    crate::kind::keep_all_but_status(new, old);
    if !old.field("status").has("config")
        && let Some(status) = new.field_mut("status")
    {
        status.unset("config");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn allocatable_follows_capacity() {
        let mut node = json!({"status": {"capacity": {"cpu": "4"}}});
        default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
        let mut node = json!({"status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}});
        default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "3"}));
    }

    #[test]
    fn removed_configuration_is_dropped() {
        let mut node = json!({"spec": {"configSource": {}}, "status": {"config": {}}});
        prepare_create(&mut node);
        assert_eq!(node, json!({"spec": {}, "status": {}}));
    }
}
