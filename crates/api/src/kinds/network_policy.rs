//! NetworkPolicy.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    counts_generation: true,
    ..Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", Scope::Namespaced)
};

fn default(policy: &mut Value) {
    let spec = policy.child_mut("spec");
    for direction in ["ingress", "egress"] {
        for rule in spec.items_mut(direction) {
            for port in rule.items_mut("ports") {
                port.default_to("protocol", "TCP");
            }
        }
    }
    if spec.items("policyTypes").is_empty() {
        let types =
            if spec.items("egress").is_empty() { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.set("policyTypes", types);
    }
}
