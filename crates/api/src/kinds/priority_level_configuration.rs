//! PriorityLevelConfiguration.

use crate::kind::{drop_status, keep_status};
use crate::validation::checks::one_of;
use crate::validation::dump::{Field, Shape, dump};
use crate::validation::flow_control::status_conditions;
use crate::validation::values::same;
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create: drop_status,
    prepare_update: keep_status,
    validate,
    validate_update: |new, _| validate(new),
    validate_status_update: |new, _| status_conditions(new),
    counts_generation: true,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    metadata_on_update: &[MetadataCheck::New],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::flow_control::PRIORITY_LEVEL_CONFIGURATION,
    ..Kind::new(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        Scope::Cluster,
    )
};

const QUEUES_MAX: i64 = 10_000_000;
/// Number of bits of a request's hash available for shuffle sharding.
const HASH_BITS: i64 = 60;
/// Annotation of older versions that distinguished zero from unset; not allowed in stored objects.
const ZERO_SHARES_ANNOTATION: &str = "flowcontrol.k8s.io/concurrency-shares-defaults-to-zero";

fn default(level: &mut Value) {
    let Some(spec) = level.field_mut("spec") else {
        return;
    };
    if let Some(exempt) = spec.field_mut("exempt") {
        exempt.default_to("nominalConcurrencyShares", 0);
        exempt.default_to("lendablePercent", 0);
    }
    if let Some(limited) = spec.field_mut("limited") {
        limited.default_to("nominalConcurrencyShares", 30);
        limited.default_to("lendablePercent", 0);
        if let Some(queuing) = limited.at_mut("limitResponse.queuing") {
            queuing.default_if_zero("handSize", 8);
            queuing.default_if_zero("queues", 64);
            queuing.default_if_zero("queueLengthLimit", 50);
        }
    }
}

fn validate(level: &Value) -> ErrorList {
    let mut errors = Vec::new();
    if meta::annotation(level, ZERO_SHARES_ANNOTATION).is_some() {
        let path = Path::new("metadata");
        let detail = format!("annotation '{ZERO_SHARES_ANNOTATION}' is forbidden");
        errors.push(FieldError::forbidden(&path.child("annotations"), detail));
    }
    let (path, spec, name) = (Path::new("spec"), level.field("spec"), meta::name(level));
    errors.extend(validate_spec(spec, name, &path));
    errors.extend(mandatory(spec, name, &path));
    errors.extend(status_conditions(level));
    errors
}

fn validate_spec(spec: &Value, name: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (kind, type_path) = (spec.text("type"), path.child("type"));
    if (name == "exempt") != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid_str(&type_path, kind, detail));
    }
    let (exempt_path, limited_path) = (path.child("exempt"), path.child("limited"));
    match kind {
        "Exempt" => {
            if spec.has("limited") {
                let detail = "must be nil if the type is not Limited";
                errors.push(FieldError::forbidden(&limited_path, detail));
            }
            let exempt = spec.field("exempt");
            errors.extend(shares(exempt, &exempt_path));
            errors.extend(lendable(exempt, &exempt_path));
        }
        "Limited" => {
            if spec.has("exempt") {
                errors.push(FieldError::forbidden(&exempt_path, "must be nil if the type is Limited"));
            }
            if spec.has("limited") {
                errors.extend(limited(spec.field("limited"), &limited_path));
            } else {
                let detail = "must not be empty when type is Limited";
                errors.push(FieldError::required(&limited_path, detail));
            }
        }
        "" => errors.push(FieldError::required(&type_path, "")),
        other => errors.extend(one_of(&type_path, other, &["Exempt", "Limited"])),
    }
    errors
}

fn limited(limited: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors: ErrorList = shares(limited, path).into_iter().collect();
    errors.extend(limit_response(limited.field("limitResponse"), &path.child("limitResponse")));
    errors.extend(lendable(limited, path));
    if let Some(percent) = limited.opt_int("borrowingLimitPercent").filter(|percent| *percent < 0) {
        let path = path.child("borrowingLimitPercent");
        let detail = "if specified, must be a non-negative integer";
        errors.push(FieldError::invalid(&path, &percent.into(), detail));
    }
    errors
}

fn shares(owner: &Value, path: &Path<'_>) -> Option<FieldError> {
    let shares = owner.opt_int("nominalConcurrencyShares").filter(|shares| *shares < 0)?;
    let path = path.child("nominalConcurrencyShares");
    Some(FieldError::invalid(&path, &shares.into(), "must be a non-negative integer"))
}

fn lendable(owner: &Value, path: &Path<'_>) -> Option<FieldError> {
    let percent = owner.opt_int("lendablePercent").filter(|percent| !(0..=100).contains(percent))?;
    let path = path.child("lendablePercent");
    Some(FieldError::invalid(&path, &percent.into(), "must be between 0 and 100, inclusive"))
}

fn limit_response(response: &Value, path: &Path<'_>) -> ErrorList {
    let queuing_path = path.child("queuing");
    let type_path = path.child("type");
    match (response.text("type"), response.has("queuing")) {
        ("Reject", true) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            vec![FieldError::forbidden(&queuing_path, detail)]
        }
        ("Queue", false) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            vec![FieldError::required(&queuing_path, detail)]
        }
        ("Queue", true) => queuing(response.field("queuing"), &queuing_path),
        ("", _) => vec![FieldError::required(&type_path, "")],
        (other, _) => one_of(&type_path, other, &["Queue", "Reject"]),
    }
}

fn queuing(queuing: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut reject = |field: &'static str, detail: String| {
        errors.push(FieldError::invalid(&path.child(field), &queuing.int(field).into(), detail));
    };
    let positive = "must be positive".to_owned();
    let (queues, hand) = (queuing.int("queues"), queuing.int("handSize"));
    if queuing.int("queueLengthLimit") <= 0 {
        reject("queueLengthLimit", positive.clone());
    }
    if queues <= 0 {
        reject("queues", positive.clone());
    } else if queues > QUEUES_MAX {
        reject("queues", format!("must not be greater than {QUEUES_MAX}"));
    }
    if hand <= 0 {
        reject("handSize", positive);
    } else if hand > queues {
        reject("handSize", format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        reject("handSize", detail);
    }
    errors
}

/// Approximate number of bits for dealing a hand from a deck.
fn entropy_bits(deck: i64, hand: i64) -> i64 {
    ((deck as f64).log2() * hand as f64).ceil() as i64
}

/// Two levels are mandatory and must equal their built-in spec.
fn mandatory(spec: &Value, name: &str, path: &Path<'_>) -> Option<FieldError> {
    let (fixed, except) = match name {
        "exempt" => (json!({"type": "Exempt"}), " except the 'spec.exempt' field"),
        "catch-all" => (
            json!({"type": "Limited", "limited": {
                "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
            }}),
            "",
        ),
        _ => return None,
    };
    let mut have = spec.clone();
    if name == "exempt" {
        have.unset("exempt");
    }
    if same(&have, &fixed) {
        return None;
    }
    let detail = format!("spec of '{name}'{except} must equal the fixed value");
    Some(FieldError::invalid_shown(path, dump(spec, SPEC), detail))
}

const SPEC: &[Field] = &[
    ("type", "Type", Shape::Text),
    ("limited", "Limited", Shape::Pointer(LIMITED)),
    ("exempt", "Exempt", Shape::Pointer(EXEMPT)),
];
const LIMITED: &[Field] = &[
    ("nominalConcurrencyShares", "NominalConcurrencyShares", Shape::Int),
    ("limitResponse", "LimitResponse", Shape::Struct(LIMIT_RESPONSE)),
    ("lendablePercent", "LendablePercent", Shape::Optional),
    ("borrowingLimitPercent", "BorrowingLimitPercent", Shape::Optional),
];
const LIMIT_RESPONSE: &[Field] =
    &[("type", "Type", Shape::Text), ("queuing", "Queuing", Shape::Pointer(QUEUING))];
const QUEUING: &[Field] = &[
    ("queues", "Queues", Shape::Int),
    ("handSize", "HandSize", Shape::Int),
    ("queueLengthLimit", "QueueLengthLimit", Shape::Int),
];
const EXEMPT: &[Field] = &[
    ("nominalConcurrencyShares", "NominalConcurrencyShares", Shape::Optional),
    ("lendablePercent", "LendablePercent", Shape::Optional),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_size_must_fit_hash_bits() {
        let cases = [(64, 8, 0), (64, 65, 1), (1 << 20, 4, 1), (0, 0, 2)];
        for (queues, hand, count) in cases {
            let config = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 1});
            assert_eq!(queuing(&config, &Path::new("q")).len(), count, "{config}");
        }
    }
}
