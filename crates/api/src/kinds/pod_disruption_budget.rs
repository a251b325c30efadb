//! PodDisruptionBudget.

use crate::kind::keep_status;
use crate::{Kind, Scope, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    prepare_create,
    prepare_update: keep_status,
    prepare_status_update: workload::keep_spec,
    counts_generation: true,
    unconditional_update: false,
    ..Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Scope::Namespaced)
};

fn prepare_create(budget: &mut Value) {
    workload::zero_status(
        budget,
        &["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"],
    );
}
