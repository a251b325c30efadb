//! The table of built-in kinds, one file each.

pub mod api_service;
pub mod certificate_signing_request;
pub mod cluster_role;
pub mod cluster_role_binding;
pub mod cluster_trust_bundle;
pub mod component_status;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod custom_resource_definition;
pub mod daemon_set;
pub mod deployment;
pub mod device_class;
pub mod device_taint_rule;
pub mod endpoint_slice;
pub mod endpoints;
pub mod event;
pub mod flow_schema;
pub mod horizontal_pod_autoscaler;
pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod job;
pub mod lease;
pub mod lease_candidate;
pub mod limit_range;
pub mod mutating_admission_policy;
pub mod mutating_admission_policy_binding;
pub mod mutating_webhook_configuration;
pub mod namespace;
pub mod network_policy;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_certificate_request;
pub mod pod_disruption_budget;
pub mod pod_template;
pub mod priority_class;
pub mod priority_level_configuration;
pub mod replica_set;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_quota;
pub mod resource_slice;
pub mod role;
pub mod role_binding;
pub mod runtime_class;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod stateful_set;
pub mod storage_class;
pub mod storage_version_migration;
pub mod validating_admission_policy;
pub mod validating_admission_policy_binding;
pub mod validating_webhook_configuration;
pub mod volume_attachment;
pub mod volume_attributes_class;

use crate::Kind;

/// Every built-in kind that is stored.
pub static KINDS: &[&Kind] = &[
    &api_service::KIND,
    &certificate_signing_request::KIND,
    &cluster_role::KIND,
    &cluster_role_binding::KIND,
    &cluster_trust_bundle::KIND,
    &cluster_trust_bundle::KIND_V1ALPHA1,
    &component_status::KIND,
    &config_map::KIND,
    &controller_revision::KIND,
    &cron_job::KIND,
    &csi_driver::KIND,
    &csi_node::KIND,
    &csi_storage_capacity::KIND,
    &custom_resource_definition::KIND,
    &daemon_set::KIND,
    &deployment::KIND,
    &device_class::KIND,
    &device_class::KIND_V1BETA2,
    &device_class::KIND_V1BETA1,
    &device_taint_rule::KIND,
    &endpoint_slice::KIND,
    &endpoints::KIND,
    &event::KIND,
    &event::EVENTS_KIND,
    &flow_schema::KIND,
    &horizontal_pod_autoscaler::KIND,
    &horizontal_pod_autoscaler::KIND_V1,
    &ingress::KIND,
    &ingress_class::KIND,
    &ip_address::KIND,
    &ip_address::KIND_V1BETA1,
    &job::KIND,
    &lease::KIND,
    &lease_candidate::KIND,
    &lease_candidate::KIND_V1ALPHA2,
    &limit_range::KIND,
    &mutating_admission_policy::KIND,
    &mutating_admission_policy::KIND_V1BETA1,
    &mutating_admission_policy::KIND_V1ALPHA1,
    &mutating_admission_policy_binding::KIND,
    &mutating_admission_policy_binding::KIND_V1BETA1,
    &mutating_admission_policy_binding::KIND_V1ALPHA1,
    &mutating_webhook_configuration::KIND,
    &namespace::KIND,
    &network_policy::KIND,
    &node::KIND,
    &persistent_volume::KIND,
    &persistent_volume_claim::KIND,
    &pod::KIND,
    &pod_certificate_request::KIND,
    &pod_disruption_budget::KIND,
    &pod_template::KIND,
    &priority_class::KIND,
    &priority_level_configuration::KIND,
    &replica_set::KIND,
    &replication_controller::KIND,
    &resource_claim::KIND,
    &resource_claim::KIND_V1BETA2,
    &resource_claim::KIND_V1BETA1,
    &resource_claim_template::KIND,
    &resource_claim_template::KIND_V1BETA2,
    &resource_claim_template::KIND_V1BETA1,
    &resource_quota::KIND,
    &resource_slice::KIND,
    &resource_slice::KIND_V1BETA2,
    &resource_slice::KIND_V1BETA1,
    &role::KIND,
    &role_binding::KIND,
    &runtime_class::KIND,
    &secret::KIND,
    &service::KIND,
    &service_account::KIND,
    &service_cidr::KIND,
    &service_cidr::KIND_V1BETA1,
    &stateful_set::KIND,
    &storage_class::KIND,
    &storage_version_migration::KIND,
    &validating_admission_policy::KIND,
    &validating_admission_policy_binding::KIND,
    &validating_webhook_configuration::KIND,
    &volume_attachment::KIND,
    &volume_attributes_class::KIND,
    &volume_attributes_class::KIND_V1BETA1,
];

/// A kind in any of its versions.
pub fn find(group: &str, resource: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.resource == resource && kind.group == group)
}
