//! MutatingWebhookConfigurations and ValidatingWebhookConfigurations.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha};
use crate::state::object::{list, text};
use crate::state::series::Series;
use serde_json::Value;

pub static MUTATING: Kind = Kind {
    resource: "mutatingwebhookconfigurations",
    kind: "MutatingWebhookConfiguration",
    path: "/apis/admissionregistration.k8s.io/v1",
    is_namespaced: false,
    identity: &[("namespace", NAMESPACE), ("mutatingwebhookconfiguration", NAME)],
    families: &[
        alpha("kube_mutatingwebhookconfiguration_info", "A configuration exists.", Source::One),
        alpha("kube_mutatingwebhookconfiguration_created", CREATED_HELP, CREATED),
        alpha(
            "kube_mutatingwebhookconfiguration_metadata_resource_version",
            VERSION_HELP,
            Source::ResourceVersion,
        ),
        alpha(
            "kube_mutatingwebhookconfiguration_webhook_clientconfig_service",
            "Services of the webhooks.",
            Source::Each(services),
        ),
    ],
};

pub static VALIDATING: Kind = Kind {
    resource: "validatingwebhookconfigurations",
    kind: "ValidatingWebhookConfiguration",
    path: "/apis/admissionregistration.k8s.io/v1",
    is_namespaced: false,
    identity: &[("namespace", NAMESPACE), ("validatingwebhookconfiguration", NAME)],
    families: &[
        alpha("kube_validatingwebhookconfiguration_info", "A configuration exists.", Source::One),
        alpha("kube_validatingwebhookconfiguration_created", CREATED_HELP, CREATED),
        alpha(
            "kube_validatingwebhookconfiguration_metadata_resource_version",
            VERSION_HELP,
            Source::ResourceVersion,
        ),
        alpha(
            "kube_validatingwebhookconfiguration_webhook_clientconfig_service",
            "Services of the webhooks.",
            Source::Each(services),
        ),
    ],
};

fn services(configuration: &Value, series: &mut Series<'_>) {
    for webhook in list(configuration, "webhooks") {
        let labels = [
            ("webhook_name", text(webhook, "name")),
            ("service_name", text(webhook, "clientConfig.service.name")),
            ("service_namespace", text(webhook, "clientConfig.service.namespace")),
        ];
        series.add(&labels, 1.0);
    }
}
