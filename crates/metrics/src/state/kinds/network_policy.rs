//! NetworkPolicies.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha};

pub static KIND: Kind = Kind {
    resource: "networkpolicies",
    kind: "NetworkPolicy",
    path: "/apis/networking.k8s.io/v1",
    is_namespaced: true,
    identity: &[("namespace", NAMESPACE), ("networkpolicy", NAME)],
    families: &[
        alpha("kube_networkpolicy_created", CREATED_HELP, CREATED),
        alpha("kube_networkpolicy_annotations", ANNOTATIONS_HELP, Source::Annotations),
        alpha("kube_networkpolicy_labels", LABELS_HELP, Source::Labels),
        alpha(
            "kube_networkpolicy_spec_ingress_rules",
            "Number of ingress rules.",
            Source::Count("spec.ingress"),
        ),
        alpha(
            "kube_networkpolicy_spec_egress_rules",
            "Number of egress rules.",
            Source::Count("spec.egress"),
        ),
    ],
};
