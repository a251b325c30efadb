//! Endpoints.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    create_on_update: true,
    ..Kind::new("", "v1", "Endpoints", "endpoints", Scope::Namespaced)
};

fn default(endpoints: &mut Value) {
    for subset in endpoints.items_mut("subsets") {
        for port in subset.items_mut("ports") {
            port.default_if_zero("protocol", "TCP");
        }
    }
}
