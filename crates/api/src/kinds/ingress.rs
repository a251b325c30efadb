//! Ingress.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    prepare_create,
    prepare_update: crate::kind::keep_status,
    counts_generation: true,
    ..Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses", Scope::Namespaced)
};

fn prepare_create(ingress: &mut Value) {
    ingress.set("status", json!({"loadBalancer": {}}));
}
