//! Validation shared by kinds, or too large for the file of a kind: one topic per file.

pub mod admission_policy;
pub mod admission_rule;
pub mod certificates;
pub mod checks;
pub mod custom_resource_definition;
pub mod device;
pub mod device_attribute;
pub mod device_v1beta1;
pub mod dump;
pub mod expression;
pub mod flow_control;
pub mod label_selector;
pub mod node_labels;
pub mod persistent_volume;
pub mod public_key;
pub mod rbac;
pub mod resource_names;
pub mod service;
pub mod service_addresses;
pub mod storage;
pub mod values;
pub mod webhook;
