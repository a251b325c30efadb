//! Certificate signing requests.

use super::cell::{NONE, age, get, human_duration, labels_text, list, name, or, text};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::Table;
use machinery::Value;

pub(crate) static CERTIFICATE_SIGNING_REQUEST: Table = plain(
    &[
        NAME,
        AGE,
        column("SignerName", "string", doc::CERTIFICATE_SIGNING_REQUEST_SPEC_SIGNER_NAME),
        column("Requestor", "string", doc::CERTIFICATE_SIGNING_REQUEST_SPEC_REQUEST),
        column("RequestedDuration", "string", doc::CERTIFICATE_SIGNING_REQUEST_SPEC_EXPIRATION_SECONDS),
        column("Condition", "string", doc::CERTIFICATE_SIGNING_REQUEST_STATUS_CONDITIONS),
    ],
    |request, context| {
        let duration = get(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64);
        vec![
            name(request),
            age(request, context),
            or(text(request, &["spec", "signerName"]), NONE).into(),
            text(request, &["spec", "username"]).into(),
            duration.map_or(NONE.to_owned(), human_duration).into(),
            status(request).into(),
        ]
    },
);

fn status(request: &Value) -> String {
    let has = |kind| {
        list(request, &["status", "conditions"]).iter().any(|condition| text(condition, &["type"]) == kind)
    };
    let decision = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    };
    let failed = if has("Failed") { ",Failed" } else { "" };
    let issued = if text(request, &["status", "certificate"]).is_empty() { "" } else { ",Issued" };
    format!("{decision}{failed}{issued}")
}

pub(crate) static CLUSTER_TRUST_BUNDLE: Table = plain(
    &[NAME, column("SignerName", "string", "signerName indicates the associated signer, if any.")],
    |bundle, _| vec![name(bundle), or(text(bundle, &["spec", "signerName"]), NONE).into()],
);

pub(crate) static POD_CERTIFICATE_REQUEST: Table = plain(
    &[
        NAME,
        column("PodName", "string", "Name of the pod into which the certificate will be mounted."),
        column("ServiceAccountName", "string", "Name of the service account that the pod runs as."),
        column("NodeName", "string", "Name of the node to which the pod is assigned."),
        column("SignerName", "string", "Name of the signer that is to issue the certificate."),
        column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
        wide(
            "UnverifiedUserAnnotations",
            "string",
            "Data of the pod's author for the signer, verified by no part of Kubernetes.",
        ),
    ],
    |request, _| {
        let spec = |field| text(request, &["spec", field]).into();
        let conditions = list(request, &["status", "conditions"]).iter();
        let state = conditions
            .map(|condition| text(condition, &["type"]))
            .rfind(|kind| matches!(*kind, "Issued" | "Denied" | "Failed"));
        vec![
            name(request),
            spec("podName"),
            spec("serviceAccountName"),
            spec("nodeName"),
            spec("signerName"),
            state.unwrap_or("Pending").into(),
            labels_text(get(request, &["spec", "unverifiedUserAnnotations"])).into(),
        ]
    },
);
