//! ServiceCIDR.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    prepare_create,
    prepare_update: crate::kind::keep_status,
    ..Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", Scope::Cluster)
};

fn prepare_create(range: &mut Value) {
    range.set("status", json!({}));
}
