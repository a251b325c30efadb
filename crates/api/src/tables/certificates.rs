//! Certificate signing requests.

use super::cell::{NONE, age, get, human_duration, list, name, or, text};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::Value;

pub(super) static CERTIFICATE_SIGNING_REQUEST: Table = plain(
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

pub(super) static CLUSTER_TRUST_BUNDLE: Table = plain(
    &[NAME, column("SignerName", "string", "signerName indicates the associated signer, if any.")],
    |bundle, _| vec![name(bundle), or(text(bundle, &["spec", "signerName"]), NONE).into()],
);
