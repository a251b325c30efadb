//! CertificateSigningRequest. Creation clears the status, the `status` subresource sets the certificate, `approval`
//! the decision.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, drop_status};
use crate::validation::certificates::{certificate_problem, request_problem, signer_name};
use crate::validation::checks::one_of;
use crate::validation::values::{same, strings};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    validate_name: |_, _| Vec::new(),
    stamp_user: Some(stamp_user),
    prepare_create: drop_status,
    prepare_update,
    prepare_status_update,
    validate: |request| validate(request, &Value::Null),
    validate_update: |new, old| validate_update(new, old, UpdateEndpoint::Main),
    validate_status_update: |new, old| validate_update(new, old, UpdateEndpoint::Status),
    metadata_on_update: &[MetadataCheck::New],
    metadata_on_status_update: &[MetadataCheck::New],
    reset_fields: &[
        ("", &[&["spec"], &["status"]]),
        ("status", &[&["spec"], &["status", "conditions"]]),
        ("approval", &[&["spec"], &["status", "certificate"]]),
    ],
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::certificates::CERTIFICATE_SIGNING_REQUEST,
    ..Kind::new(
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        Scope::Cluster,
    )
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, text};
    &[NAME, field("spec.signerName", |request| text(request, "/spec/signerName"))]
};

/// Sets the requesting user, overwriting values from clients.
fn stamp_user(request: &mut Value, user: &Value) {
    let spec = request.child_mut("spec");
    for field in ["username", "uid", "groups", "extra"] {
        match user.get(field) {
            Some(value) => spec.set(field, value.clone()),
            None => drop(spec.unset(field)),
        }
    }
}

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const EXPIRATION_SECONDS_MIN: i64 = 600;
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Endpoint of an update.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UpdateEndpoint {
    Main,
    Status,
    Approval,
}

/// The main resource changes metadata only.
fn prepare_update(new: &mut Value, old: &Value) {
    for field in ["spec", "status"] {
        keep(new, old, field);
    }
}

fn keep(new: &mut Value, old: &Value, field: &str) {
    match old.field(field) {
        Value::Null => new.unset(field).map_or((), drop),
        value => new.set(field, value.clone()),
    }
}

/// The `status` subresource retains decisions while their number is unchanged.
fn prepare_status_update(new: &mut Value, old: &Value) {
    keep(new, old, "spec");
    for kind in ["Approved", "Denied"] {
        let of_kind = |condition: &&Value| condition.text("type") == kind;
        let decided: Vec<&Value> = conditions(old).iter().filter(of_kind).collect();
        if decided.len() != conditions(new).iter().filter(of_kind).count() {
            continue;
        }
        let mut decided = decided.into_iter();
        for condition in new.child_mut("status").items_mut("conditions") {
            if condition.text("type") == kind
                && let Some(decision) = decided.next()
            {
                *condition = decision.clone();
            }
        }
    }
    set_times(new, old);
}

/// The `approval` subresource changes conditions only.
pub fn prepare_approval_update(new: &mut Value, old: &Value) {
    set_times(new, old);
    let conditions = new.field("status").field("conditions").clone();
    prepare_update(new, old);
    match conditions {
        Value::Null => new.child_mut("status").unset("conditions").map_or((), drop),
        conditions => new.child_mut("status").set("conditions", conditions),
    }
}

pub fn validate_approval_update(new: &Value, old: &Value) -> ErrorList {
    validate_update(new, old, UpdateEndpoint::Approval)
}

fn conditions(request: &Value) -> &[Value] {
    request.field("status").items("conditions")
}

/// Sets missing times of conditions; an unchanged condition retains its transition time.
fn set_times(new: &mut Value, old: &Value) {
    if conditions(new).is_empty() {
        return;
    }
    let now = crate::clock::now_text();
    for condition in new.child_mut("status").items_mut("conditions") {
        condition.default_if_zero("lastUpdateTime", now.as_str());
        if !condition.text("lastTransitionTime").is_empty() {
            continue;
        }
        let since = conditions(old).iter().find_map(|old| {
            let holds_on = ["type", "status"].iter().all(|field| old.text(field) == condition.text(field));
            Some(old.text("lastTransitionTime")).filter(|time| holds_on && !time.is_empty())
        });
        condition.set("lastTransitionTime", since.unwrap_or(&now));
    }
}

/// Tolerates violations that the old object already has.
fn validate(request: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let (path, spec) = (Path::new("spec"), request.field("spec"));
    if let Some(problem) = request_problem(spec.text("request")) {
        errors.push(FieldError::invalid(&path.child("request"), spec.field("request"), problem));
    }
    errors.extend(usages(spec.items("usages"), old.field("spec").items("usages"), &path.child("usages")));
    let (signer, signer_path) = (spec.text("signerName"), path.child("signerName"));
    if signer == LEGACY_SIGNER && old.field("spec").text("signerName") != LEGACY_SIGNER {
        let detail = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid_str(&signer_path, signer, detail));
    } else {
        errors.extend(signer_name(signer, &signer_path));
    }
    let seconds = spec.opt_int("expirationSeconds");
    if let Some(seconds) = seconds.filter(|seconds| *seconds < EXPIRATION_SECONDS_MIN) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), &seconds.into(), detail));
    }
    let path = Path::new("status");
    errors.extend(validate_conditions(conditions(request), conditions(old), &path.child("conditions")));
    let (certificate, before) =
        (request.field("status").text("certificate"), old.field("status").text("certificate"));
    let excused = !old.is_null() && (certificate == before || certificate_problem(before).is_some());
    if !excused && let Some(problem) = certificate_problem(certificate) {
        errors.push(FieldError::invalid_str(&path.child("certificate"), "<certificate data>", problem));
    }
    errors
}

fn usages(usages: &[Value], old: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if usages.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if strings(old).all(|usage| USAGES.contains(&usage)) {
        for (index, usage) in strings(usages).enumerate() {
            errors.extend(one_of(&path.index(index), usage, USAGES));
        }
    }
    if strings(old).collect::<BTreeSet<_>>().len() == old.len() {
        let mut seen = BTreeSet::new();
        for (index, usage) in strings(usages).enumerate() {
            if !seen.insert(usage) {
                errors.push(FieldError::duplicate(&path.index(index), &usage.into()));
            }
        }
    }
    errors
}

fn validate_conditions(conditions: &[Value], old: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let old_types: Vec<&str> = old.iter().map(|condition| condition.text("type")).collect();
    let allow_both = old_types.contains(&"Approved") && old_types.contains(&"Denied");
    let allow_empty = old_types.contains(&"");
    let allow_duplicates = old_types.iter().collect::<BTreeSet<_>>().len() != old_types.len();
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        let kind = condition.text("type");
        if kind.is_empty() && !allow_empty {
            errors.push(FieldError::required(&at.child("type"), ""));
        }
        let decided = matches!(kind, "Approved" | "Denied" | "Failed");
        let statuses: &[&str] = if decided { &["True"] } else { &["False", "True", "Unknown"] };
        match condition.text("status") {
            "" => errors.push(FieldError::required(&at.child("status"), "")),
            status => errors.extend(one_of(&at.child("status"), status, statuses)),
        }
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !allow_both && !other.is_empty() && seen.contains(other) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid_str(path, kind, detail));
        }
        if !seen.insert(kind) && !allow_duplicates {
            errors.push(FieldError::duplicate(&at.child("type"), &kind.into()));
        }
    }
    errors
}

fn validate_update(new: &Value, old: &Value, endpoint: UpdateEndpoint) -> ErrorList {
    let mut errors = validate(new, old);
    let path = Path::new("status");
    let conditions_path = path.child("conditions");
    let of_kind = |request, kind: &str| -> Vec<Value> {
        conditions(request).iter().filter(|condition| condition.text("type") == kind).cloned().collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if of_kind(new, kind).len() < of_kind(old, kind).len() {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(FieldError::forbidden(&conditions_path, detail));
        }
    }
    if endpoint != UpdateEndpoint::Approval {
        for kind in ["Approved", "Denied"] {
            let (new, old) = (of_kind(new, kind), of_kind(old, kind));
            let change = if new.len() > old.len() {
                "add"
            } else if new.len() == old.len() && !same(&Value::Array(new), &Value::Array(old)) {
                "modify"
            } else {
                continue;
            };
            let detail = format!("updates may not {change} a condition of type {kind:?}");
            errors.push(FieldError::forbidden(&conditions_path, detail));
        }
    }
    let before = old.field("status").text("certificate");
    if new.field("status").text("certificate") != before {
        let path = path.child("certificate");
        if endpoint != UpdateEndpoint::Status {
            errors.push(FieldError::forbidden(&path, "updates may not set certificate content"));
        } else if !before.is_empty() {
            let detail = "updates may not modify existing certificate content";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    errors.extend(KIND.metadata_update_errors(new, old));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_change_through_approval_only() {
        let old = json!({"spec": {"signerName": "example.com/s"}});
        let mut new = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
        prepare_approval_update(&mut new, &old);
        assert_eq!(new["spec"], old["spec"]);
        assert!(new["status"]["conditions"][0]["lastUpdateTime"].is_string());
        let rejected = |errors: ErrorList| errors.iter().any(|error| error.field == "status.conditions");
        assert!(!rejected(validate_approval_update(&new, &old)));
        assert!(rejected((KIND.validate_status_update)(&new, &old)));
    }

    #[test]
    fn approved_and_denied_are_exclusive() {
        let both =
            [json!({"type": "Approved", "status": "True"}), json!({"type": "Denied", "status": "False"})];
        let errors: Vec<String> =
            validate_conditions(&both, &[], &Path::new("c")).iter().map(FieldError::to_string).collect();
        assert_eq!(
            errors,
            [
                "c[1].status: Unsupported value: \"False\": supported values: \"True\"",
                "c: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive",
            ]
        );
    }
}
