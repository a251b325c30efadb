//! Webhook configurations, admission policies and their bindings.

use super::cell::{UNSET, age, count, get, joined, list, name, or, text};
use super::{AGE, NAME, column, plain};
use crate::kind::Table;
use machinery::Value;

pub(crate) static WEBHOOK_CONFIGURATION: Table = plain(
    &[
        NAME,
        column(
            "Webhooks",
            "integer",
            "Webhooks indicates the number of webhooks registered in this configuration",
        ),
        AGE,
    ],
    |object, context| vec![name(object), count(object, &["webhooks"]).into(), age(object, context)],
);

pub(crate) static VALIDATING_ADMISSION_POLICY: Table = plain(
    &[
        NAME,
        column(
            "Validations",
            "integer",
            "Validations indicates the number of validation rules defined in this configuration",
        ),
        column(
            "ParamKind",
            "string",
            "ParamKind specifies the kind of resources used to parameterize this policy",
        ),
        AGE,
    ],
    |policy, context| {
        vec![
            name(policy),
            count(policy, &["spec", "validations"]).into(),
            param_kind(policy).into(),
            age(policy, context),
        ]
    },
);

pub(crate) static MUTATING_ADMISSION_POLICY: Table = plain(
    &[
        NAME,
        column(
            "Mutations",
            "integer",
            "Mutation indicates the number of mutations rules defined in this configuration",
        ),
        column(
            "ParamKind",
            "string",
            "ParamKind specifies the kind of resources used to parameterize this policy",
        ),
        AGE,
    ],
    |policy, context| {
        vec![
            name(policy),
            count(policy, &["spec", "mutations"]).into(),
            param_kind(policy).into(),
            age(policy, context),
        ]
    },
);

fn param_kind(policy: &Value) -> String {
    get(policy, &["spec", "paramKind"])
        .map_or(UNSET.to_owned(), |kind| format!("{}/{}", text(kind, &["apiVersion"]), text(kind, &["kind"])))
}

pub(crate) static POLICY_BINDING: Table = plain(
    &[
        NAME,
        column(
            "PolicyName",
            "string",
            "PolicyName indicates the policy definition which the policy binding binded to",
        ),
        column(
            "ParamRef",
            "string",
            "ParamRef indicates the param resource which sets the configuration param",
        ),
        AGE,
    ],
    |binding, context| {
        vec![
            name(binding),
            text(binding, &["spec", "policyName"]).into(),
            param_ref(binding).into(),
            age(binding, context),
        ]
    },
);

fn param_ref(binding: &Value) -> String {
    let Some(reference) = get(binding, &["spec", "paramRef"]) else { return UNSET.to_owned() };
    let name = text(reference, &["name"]);
    if !name.is_empty() {
        return format!("{}/{name}", or(text(reference, &["namespace"]), "*"));
    }
    get(reference, &["selector"]).map_or(UNSET.to_owned(), selector_dump)
}

/// The selector in the form of its Go struct, as Kubernetes prints it.
fn selector_dump(selector: &Value) -> String {
    let mut labels = String::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        labels.push_str(&format!("{key}: {},", value.as_str().unwrap_or("")));
    }
    let mut expressions = String::new();
    for expression in list(selector, &["matchExpressions"]) {
        expressions.push_str(&format!(
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
            text(expression, &["key"]),
            text(expression, &["operator"]),
            joined(list(expression, &["values"]), " "),
        ));
    }
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
