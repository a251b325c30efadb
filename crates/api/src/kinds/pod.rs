//! Pod.

use crate::kind::{Graceful, keep_status};
use crate::pod_spec::{defaults, disabled};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    returns_deleted: true,
    default,
    prepare_update,
    graceful,
    counts_generation: true,
    ..Kind::new("", "v1", "Pod", "pods", Scope::Namespaced)
};

fn default(pod: &mut Value) {
    defaults::default_pod(pod);
    if let Some(status) = pod.field_mut("status") {
        defaults::default_pod_status(status);
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    if let Some(spec) = new.field_mut("spec") {
        disabled::drop_disabled_fields(spec, old.field("spec"));
    }
}

/// A pod that is on no node or has ended goes at once; any other waits for its kubelet.
fn graceful(pod: &Value, asked: Option<i64>) -> Graceful {
    let period = asked.or(pod.field("spec").opt_int("terminationGracePeriodSeconds")).unwrap_or(0);
    let gone = pod.field("spec").text("nodeName").is_empty()
        || matches!(pod.field("status").text("phase"), "Failed" | "Succeeded");
    match period {
        _ if gone => Graceful::After(0),
        period if period < 0 => Graceful::After(1),
        period => Graceful::After(period),
    }
}
