//! The control loops, one file or folder each. `shared` has the rules that several of them use.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![warn(clippy::arithmetic_side_effects)]

pub mod attach_detach;
pub mod bootstrap;
pub mod certificate;
pub mod cluster_role_aggregation;
pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod device_taint_eviction;
pub mod disruption;
pub mod endpoint_slice;
pub mod endpoint_slice_mirroring;
pub mod endpoints;
pub mod ephemeral_volume;
pub mod garbage_collector;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod namespace;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod persistent_volume;
pub mod pod_garbage_collector;
pub mod protection;
pub mod replica_set;
pub mod replicas;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_quota;
pub mod root_ca_publisher;
pub mod service_account;
pub mod service_account_token;
pub mod service_cidr;
mod shared;
pub mod stateful_set;
pub mod storage_version_migrator;
pub mod taint_eviction;
pub mod ttl;
pub mod ttl_after_finished;
pub mod validating_admission_policy_status;
pub mod volume_expand;

use jiff::SignedDuration;
use runtime::{Action, Row};

pub use shared::metrics::ControllerMetrics;
pub use shared::select::{UnknownController, without_effect};
pub use shared::settings::{AutoscalerSettings, Settings};

/// Table of all loops of this crate: descriptor and constructor.
pub const LOOPS: &[Row] = &[
    Row { descriptor: &deployment::DESCRIPTOR, build: deployment::build, by_default: true },
    Row { descriptor: &endpoint_slice::DESCRIPTOR, build: endpoint_slice::build, by_default: true },
    Row { descriptor: &endpoints::DESCRIPTOR, build: endpoints::build, by_default: true },
    Row { descriptor: &garbage_collector::DESCRIPTOR, build: garbage_collector::build, by_default: true },
    Row { descriptor: &namespace::DESCRIPTOR, build: namespace::build, by_default: true },
    Row {
        descriptor: &pod_garbage_collector::DESCRIPTOR,
        build: pod_garbage_collector::build,
        by_default: true,
    },
    Row { descriptor: &replica_set::DESCRIPTOR, build: replica_set::build, by_default: true },
    Row {
        descriptor: &replication_controller::DESCRIPTOR,
        build: replication_controller::build,
        by_default: true,
    },
    Row { descriptor: &root_ca_publisher::DESCRIPTOR, build: root_ca_publisher::build, by_default: true },
    Row { descriptor: &service_account::DESCRIPTOR, build: service_account::build, by_default: true },
    Row { descriptor: &cron_job::DESCRIPTOR, build: cron_job::build, by_default: true },
    Row { descriptor: &daemon_set::DESCRIPTOR, build: daemon_set::build, by_default: true },
    Row { descriptor: &job::DESCRIPTOR, build: job::build, by_default: true },
    Row { descriptor: &stateful_set::DESCRIPTOR, build: stateful_set::build, by_default: true },
    Row {
        descriptor: &cluster_role_aggregation::DESCRIPTOR,
        build: cluster_role_aggregation::build,
        by_default: true,
    },
    Row { descriptor: &disruption::DESCRIPTOR, build: disruption::build, by_default: true },
    Row { descriptor: &node_ipam::DESCRIPTOR, build: node_ipam::build, by_default: true },
    Row { descriptor: &node_lifecycle::DESCRIPTOR, build: node_lifecycle::build, by_default: true },
    Row { descriptor: &taint_eviction::DESCRIPTOR, build: taint_eviction::build, by_default: true },
    Row { descriptor: &ttl::DESCRIPTOR, build: ttl::build, by_default: true },
    Row { descriptor: &ttl_after_finished::DESCRIPTOR, build: ttl_after_finished::build, by_default: true },
    Row {
        descriptor: &certificate::approving::DESCRIPTOR,
        build: certificate::approving::build,
        by_default: true,
    },
    Row {
        descriptor: &certificate::cleaner::DESCRIPTOR,
        build: certificate::cleaner::build,
        by_default: true,
    },
    Row {
        descriptor: &certificate::signing::DESCRIPTOR,
        build: certificate::signing::build,
        by_default: true,
    },
    Row { descriptor: &bootstrap::signer::DESCRIPTOR, build: bootstrap::signer::build, by_default: false },
    Row {
        descriptor: &bootstrap::token_cleaner::DESCRIPTOR,
        build: bootstrap::token_cleaner::build,
        by_default: false,
    },
    Row { descriptor: &ephemeral_volume::DESCRIPTOR, build: ephemeral_volume::build, by_default: true },
    Row { descriptor: &persistent_volume::DESCRIPTOR, build: persistent_volume::build, by_default: true },
    Row {
        descriptor: &protection::persistent_volume::DESCRIPTOR,
        build: protection::persistent_volume::build,
        by_default: true,
    },
    Row {
        descriptor: &protection::persistent_volume_claim::DESCRIPTOR,
        build: protection::persistent_volume_claim::build,
        by_default: true,
    },
    Row {
        descriptor: &protection::volume_attributes_class::DESCRIPTOR,
        build: protection::volume_attributes_class::build,
        by_default: true,
    },
    Row { descriptor: &resource_quota::DESCRIPTOR, build: resource_quota::build, by_default: true },
    Row {
        descriptor: &service_account_token::DESCRIPTOR,
        build: service_account_token::build,
        by_default: true,
    },
    Row {
        descriptor: &service_account_token::legacy_cleaner::DESCRIPTOR,
        build: service_account_token::legacy_cleaner::build,
        by_default: true,
    },
    Row {
        descriptor: &horizontal_pod_autoscaler::DESCRIPTOR,
        build: horizontal_pod_autoscaler::build,
        by_default: true,
    },
    Row { descriptor: &service_cidr::DESCRIPTOR, build: service_cidr::build, by_default: true },
    Row {
        descriptor: &validating_admission_policy_status::DESCRIPTOR,
        build: validating_admission_policy_status::build,
        by_default: true,
    },
    Row {
        descriptor: &storage_version_migrator::DESCRIPTOR,
        build: storage_version_migrator::build,
        by_default: false,
    },
    Row { descriptor: &volume_expand::DESCRIPTOR, build: volume_expand::build, by_default: true },
    Row {
        descriptor: &endpoint_slice_mirroring::DESCRIPTOR,
        build: endpoint_slice_mirroring::build,
        by_default: true,
    },
    Row { descriptor: &attach_detach::DESCRIPTOR, build: attach_detach::build, by_default: true },
    Row { descriptor: &resource_claim::DESCRIPTOR, build: resource_claim::build, by_default: true },
    Row {
        descriptor: &device_taint_eviction::DESCRIPTOR,
        build: device_taint_eviction::build,
        by_default: true,
    },
];

/// Loops that `--controllers` selects.
pub fn selected(controllers: &[String]) -> Result<Vec<&'static Row>, UnknownController> {
    shared::select::selected(LOOPS, controllers)
}

/// Requeues after this time, or on the next change.
fn requeue(after: Option<SignedDuration>) -> Action {
    match after.map(|after| after.unsigned_abs()) {
        Some(after) => Action::RequeueAfter(after),
        None => Action::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Counts the files below a folder that describe a loop.
    fn described(folder: &Path) -> usize {
        let entries = std::fs::read_dir(folder).expect("the sources");
        let count = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            usize::from(text.contains("\npub const DESCRIPTOR: Descriptor"))
        };
        entries
            .map(|entry| entry.expect("an entry").path())
            .map(|path| if path.is_dir() { described(&path) } else { count(&path) })
            .sum()
    }

    #[test]
    fn every_loop_has_row_and_unique_name() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert_eq!(described(&sources), LOOPS.len());
        let mut names: Vec<_> = LOOPS.iter().map(|row| row.descriptor.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
