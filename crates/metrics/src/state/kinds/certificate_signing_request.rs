//! CertificateSigningRequests.

use super::*;
use crate::state::family::{CREATED, Kind, Source, alpha, stable};
use crate::state::object::{list, text};
use crate::state::series::Series;
use serde_json::Value;

pub static KIND: Kind = Kind {
    resource: "certificatesigningrequests",
    kind: "CertificateSigningRequest",
    path: "/apis/certificates.k8s.io/v1",
    is_namespaced: false,
    identity: &[("certificatesigningrequest", NAME), ("signer_name", "spec.signerName")],
    families: &[
        alpha("kube_certificatesigningrequest_annotations", ANNOTATIONS_HELP, Source::Annotations),
        stable("kube_certificatesigningrequest_labels", LABELS_HELP, Source::Labels),
        stable("kube_certificatesigningrequest_created", CREATED_HELP, CREATED),
        stable(
            "kube_certificatesigningrequest_condition",
            "Number of conditions of each type.",
            Source::Each(conditions),
        ),
        stable(
            "kube_certificatesigningrequest_cert_length",
            "Size of the issued certificate in bytes.",
            Source::Each(certificate),
        ),
    ],
};

fn conditions(request: &Value, series: &mut Series<'_>) {
    let conditions = list(request, "status.conditions");
    for (kind, label) in [("Approved", "approved"), ("Denied", "denied"), ("Failed", "failed")] {
        let count = conditions.iter().filter(|condition| text(condition, "type") == kind).count();
        series.add(&[("condition", label)], count as f64);
    }
}

/// The certificate is base64; its size follows from the length of the text.
fn certificate(request: &Value, series: &mut Series<'_>) {
    let text = text(request, "status.certificate");
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    series.add(&[], (text.len() / 4 * 3).saturating_sub(padding) as f64);
}
