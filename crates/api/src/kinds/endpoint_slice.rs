//! EndpointSlice.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    counts_generation: true,
    ..Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", Scope::Namespaced)
};

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

fn default(slice: &mut Value) {
    for port in slice.items_mut("ports") {
        port.default_to("name", "");
        port.default_to("protocol", "TCP");
    }
}

fn prepare_create(slice: &mut Value) {
    drop_deprecated_topology(slice, &[]);
}

fn prepare_update(new: &mut Value, old: &Value) {
    if new.field("endpoints") == old.field("endpoints") {
        return;
    }
    let known: Vec<&str> = old.items("endpoints").iter().map(topology_node).collect();
    drop_deprecated_topology(new, &known);
}

/// `deprecatedTopology` cannot be written through v1; a node name that an older writer left there moves to
/// `nodeName`, so that partial updates do not lose it.
fn drop_deprecated_topology(slice: &mut Value, known_nodes: &[&str]) {
    for endpoint in slice.items_mut("endpoints") {
        let node = topology_node(endpoint).to_owned();
        endpoint.unset("deprecatedTopology");
        if !node.is_empty()
            && known_nodes.contains(&node.as_str())
            && machinery::names::dns_subdomain(&node, false).is_empty()
        {
            endpoint.default_to("nodeName", node);
        }
    }
}

fn topology_node(endpoint: &Value) -> &str {
    endpoint.field("deprecatedTopology").text(HOSTNAME_LABEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deprecated_topology_is_dropped_and_its_node_kept() {
        let old = json!({"endpoints": [{"deprecatedTopology": {"kubernetes.io/hostname": "n1"}}]});
        let mut new = json!({"endpoints": [
            {"addresses": ["1.2.3.4"], "deprecatedTopology": {"kubernetes.io/hostname": "n1"}},
            {"deprecatedTopology": {"kubernetes.io/hostname": "other"}},
        ]});
        prepare_update(&mut new, &old);
        assert_eq!(new, json!({"endpoints": [{"addresses": ["1.2.3.4"], "nodeName": "n1"}, {}]}));
    }
}
