//! StatefulSet.

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
    ..Kind::new("apps", "v1", "StatefulSet", "statefulsets", Scope::Namespaced)
};

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    spec.default_if_zero("podManagementPolicy", "OrderedReady");
    let strategy = spec.child_mut("updateStrategy");
    if strategy.text("type").is_empty() {
        strategy.set("type", "RollingUpdate");
        strategy.child_mut("rollingUpdate");
    }
    if strategy.text("type") == "RollingUpdate" {
        if let Some(rolling) = strategy.field_mut("rollingUpdate") {
            rolling.default_to("partition", 0);
        }
    }
    let retention = spec.child_mut("persistentVolumeClaimRetentionPolicy");
    retention.default_if_zero("whenDeleted", "Retain");
    retention.default_if_zero("whenScaled", "Retain");
    spec.default_to("replicas", 1);
    spec.default_to("revisionHistoryLimit", 10);
    defaults::default_template(spec.child_mut("template"));
    for claim in spec.items_mut("volumeClaimTemplates") {
        claim.set("apiVersion", "v1");
        claim.set("kind", "PersistentVolumeClaim");
        claim.child_mut("spec").default_to("volumeMode", "Filesystem");
        claim.child_mut("status").default_if_zero("phase", "Pending");
    }
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(set, &["availableReplicas", "replicas"]);
    drop_max_unavailable(set, &Value::Null);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    drop_max_unavailable(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}

/// The feature is off: the field stays only where it already was.
fn drop_max_unavailable(new: &mut Value, old: &Value) {
    const ROLLING: &str = "spec.updateStrategy.rollingUpdate";
    if !old.at(ROLLING).has("maxUnavailable") {
        if let Some(rolling) = new.at_mut(ROLLING) {
            rolling.unset("maxUnavailable");
        }
    }
}
