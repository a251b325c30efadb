//! ResourceQuota.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    returns_deleted: true,
    prepare_create,
    prepare_update: crate::kind::keep_status,
    ..Kind::new("", "v1", "ResourceQuota", "resourcequotas", Scope::Namespaced)
};

fn prepare_create(quota: &mut Value) {
    quota.set("status", json!({}));
}
