//! ReplicaSet.

use crate::kind::{Scale, keep_status};
use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, scale, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    counts_generation: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: |set| scale::selector_text(set.at("spec.selector")),
    }),
    ..Kind::new("apps", "v1", "ReplicaSet", "replicasets", Scope::Namespaced)
};

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    spec.default_to("replicas", 1);
    defaults::default_template(spec.child_mut("template"));
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(set, &["replicas"]);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}
