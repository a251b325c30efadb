//! MutatingWebhookConfiguration.

use crate::validation::{admission_rule, webhook};
use crate::{Kind, MetadataCheck, Scope};

pub static KIND: Kind = Kind {
    any_finalizer: true,
    default: |configuration| webhook::default_configuration(configuration, true),
    validate: |configuration| webhook::configuration(configuration, true),
    validate_update: |new, old| webhook::configuration_update(new, old, true),
    warnings: |new, _| admission_rule::warnings(new),
    counts_generation: true,
    unconditional_update: false,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::admission::WEBHOOK_CONFIGURATION,
    ..Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        Scope::Cluster,
    )
};
