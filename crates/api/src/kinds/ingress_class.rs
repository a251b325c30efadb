//! IngressClass.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    counts_generation: true,
    ..Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses", Scope::Cluster)
};

fn default(class: &mut Value) {
    if let Some(parameters) = class.at_mut("spec.parameters") {
        parameters.default_to("scope", "Cluster");
    }
}
