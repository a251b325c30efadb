//! One table of families for each kind.

mod certificate_signing_request;
mod config_map;
mod cron_job;
mod daemon_set;
mod deployment;
mod endpoint_slice;
mod horizontal_pod_autoscaler;
mod ingress;
mod job;
mod lease;
mod limit_range;
mod namespace;
mod network_policy;
mod node;
mod persistent_volume;
mod persistent_volume_claim;
mod pod;
mod pod_disruption_budget;
mod replica_set;
mod replication_controller;
mod resource_quota;
mod secret;
mod service;
mod stateful_set;
mod storage_class;
mod volume_attachment;
mod webhook_configuration;

use super::family::Kind;

/// All kinds, by resource name.
pub static KINDS: [&Kind; 28] = [
    &certificate_signing_request::KIND,
    &config_map::KIND,
    &cron_job::KIND,
    &daemon_set::KIND,
    &deployment::KIND,
    &endpoint_slice::KIND,
    &horizontal_pod_autoscaler::KIND,
    &ingress::KIND,
    &job::KIND,
    &lease::KIND,
    &limit_range::KIND,
    &webhook_configuration::MUTATING,
    &namespace::KIND,
    &network_policy::KIND,
    &node::KIND,
    &persistent_volume_claim::KIND,
    &persistent_volume::KIND,
    &pod_disruption_budget::KIND,
    &pod::KIND,
    &replica_set::KIND,
    &replication_controller::KIND,
    &resource_quota::KIND,
    &secret::KIND,
    &service::KIND,
    &stateful_set::KIND,
    &storage_class::KIND,
    &webhook_configuration::VALIDATING,
    &volume_attachment::KIND,
];

/// Help of families that every kind has.
const CREATED_HELP: &str = "Unix time of the object's creation.";
const DELETED_HELP: &str = "Unix time from which the object is being deleted.";
const LABELS_HELP: &str = "Labels of the object, as labels of the series.";
const ANNOTATIONS_HELP: &str = "Annotations of the object, as labels of the series.";
const GENERATION_HELP: &str = "Generation of the desired state.";
const VERSION_HELP: &str = "Resource version of the object.";
const OWNER_HELP: &str = "Owners of the object.";
/// Fields that identify objects.
const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";
const UID: &str = "metadata.uid";
