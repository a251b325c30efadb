//! Conditions of a definition: accepted names, structural schema, approved group.
//!
//! Pure: computes the conditions and names of a definition from it and the others.

use crate::registry::conditions::{Condition, find, is_true, remove, set};
use api::custom::definition::schema_of;
use api::custom::{structural_unsupported, structural_violations};
use api::value::{Fields, texts};
use base::pki::certificates_from_pem;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use serde_json::Map;
use std::collections::BTreeSet;

pub const ESTABLISHED: &str = "Established";
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const TERMINATING: &str = "Terminating";
const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";
const NON_STRUCTURAL: &str = "NonStructuralSchema";
pub const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// Advances the status of a definition by one step; `structure` is the [`structure`] of the definition, whose schemas
/// may be absent. Reports whether anything changed.
pub fn advance(definition: &mut Value, structure: Option<&Condition>, all: &[&Value], now: &str) -> bool {
    let mut changed = match approval(definition) {
        Some(condition) => set(definition, &condition, now),
        None => false,
    };
    changed |= match structure {
        Some(condition) => set(definition, condition, now),
        None => remove(definition, NON_STRUCTURAL),
    };
    // Established follows in a separate step, after all servers have seen the accepted names.
    if accept_names(definition, all, now) {
        return true;
    }
    if is_true(definition, NAMES_ACCEPTED) && !is_true(definition, ESTABLISHED) {
        let established = if has_invalid_bundle(definition) {
            let message = "The conversion webhook CABundle is invalid";
            Condition::new(ESTABLISHED, "False", "InvalidCABundle", message)
        } else {
            let message = "the initial names have been accepted";
            Condition::new(ESTABLISHED, "True", "InitialNamesAccepted", message)
        };
        changed |= set(definition, &established, now);
    }
    changed
}

/// Reports whether the conversion webhook has an invalid CA bundle.
fn has_invalid_bundle(definition: &Value) -> bool {
    let config = definition.field("spec").field("conversion").field("webhook").field("clientConfig");
    let text = config.text("caBundle");
    if text.is_empty() {
        return false;
    }
    let pem = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    !pem.is_some_and(|pem| certificates_from_pem(&pem).is_ok_and(|found| !found.is_empty()))
}

/// Names of a group that other definitions have accepted: resources and kinds.
fn names_in_use(group: &str, all: &[&Value]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for definition in all.iter().filter(|definition| definition.field("spec").text("group") == group) {
        let names = definition.field("status").field("acceptedNames");
        resources.extend(["plural", "singular"].map(|field| names.text(field).to_owned()));
        resources.extend(texts(names.items("shortNames")).map(str::to_owned));
        kinds.extend(["kind", "listKind"].map(|field| names.text(field).to_owned()));
    }
    (resources, kinds)
}

fn accept_names(definition: &mut Value, all: &[&Value], now: &str) -> bool {
    let requested = definition.field("spec").field("names").clone();
    let accepted = definition.field("status").field("acceptedNames").clone();
    if same_names(&requested, &accepted) {
        return false;
    }
    let (resources, kinds) = names_in_use(definition.field("spec").text("group"), all);
    let mut names = accepted.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    for (field, used, reason) in [
        ("plural", &resources, "PluralConflict"),
        ("singular", &resources, "SingularConflict"),
        ("shortNames", &resources, "ShortNamesConflict"),
        ("kind", &kinds, "KindConflict"),
        ("listKind", &kinds, "ListKindConflict"),
    ] {
        match conflicts(field, &requested, &accepted, used) {
            Some(message) => conflict = Some(Condition::new(NAMES_ACCEPTED, "False", reason, message)),
            None => copy(&mut names, &requested, field),
        }
    }
    copy(&mut names, &requested, "categories");
    let condition = conflict
        .unwrap_or_else(|| Condition::new(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found"));
    let established = match find(definition, ESTABLISHED) {
        Some(known) if known.text("status") == "True" => None,
        _ if condition.status == "True" => Some(("Installing", "the initial names have been accepted")),
        Some(_) => None,
        None => Some(("NotAccepted", "not all names are accepted")),
    };
    let names = Value::Object(names);
    let mut changed = names != accepted;
    definition.child_mut("status").set("acceptedNames", names);
    changed |= set(definition, &condition, now);
    if let Some((reason, message)) = established {
        changed |= set(definition, &Condition::new(ESTABLISHED, "False", reason, message), now);
    }
    changed
}

/// Compares names, absent and empty lists alike.
fn same_names(requested: &Value, accepted: &Value) -> bool {
    ["plural", "singular", "kind", "listKind"]
        .iter()
        .all(|field| requested.text(field) == accepted.text(field))
        && ["shortNames", "categories"].iter().all(|field| requested.items(field) == accepted.items(field))
}

fn copy(names: &mut Map<String, Value>, requested: &Value, field: &str) {
    match requested.get(field) {
        Some(value) => names.insert(field.to_owned(), value.clone()),
        None => names.remove(field),
    };
}

/// The conflict of a requested name, if there is one.
fn conflicts(field: &str, requested: &Value, accepted: &Value, used: &BTreeSet<String>) -> Option<String> {
    let in_use = |name: &str| format!("{name:?} is already in use");
    if field == "shortNames" {
        let own: Vec<&str> = texts(accepted.items(field)).collect();
        let wanted = texts(requested.items(field)).filter(|name| !own.contains(name));
        let errors: Vec<String> = wanted.filter(|name| used.contains(*name)).map(in_use).collect();
        return match errors.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(format!("[{}]", several.join(", "))),
        };
    }
    let name = requested.text(field);
    (name != accepted.text(field) && used.contains(name)).then(|| in_use(name))
}

fn approval(definition: &Value) -> Option<Condition> {
    let group = definition.field("spec").text("group");
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    if !is_protected {
        return None;
    }
    let annotation = definition.field("metadata").field("annotations").text(APPROVAL);
    let (status, reason, message) = match annotation {
        "" => (
            "False",
            "MissingAnnotation",
            format!("protected groups must have approval annotation {APPROVAL:?}, {APPROVAL_HELP}"),
        ),
        reason if reason.starts_with("unapproved") => {
            ("False", "UnapprovedAnnotation", format!("not approved: {reason:?}"))
        }
        url if is_url(url) => ("True", "ApprovedAnnotation", format!("approved in {url}")),
        _ => (
            "False",
            "InvalidAnnotation",
            format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {APPROVAL_HELP}"
            ),
        ),
    };
    Some(Condition::new(APPROVED, status, reason, message))
}

fn is_url(text: &str) -> bool {
    text.split_once("://")
        .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/'))
}

/// Condition of a definition whose schemas are not structural. New definitions must be, but older versions may have
/// stored others.
pub fn structure(definition: &Value) -> Option<Condition> {
    let spec = definition.field("spec");
    let path = Path::new("spec");
    let mut errors: ErrorList = Vec::new();
    if spec.flag("preserveUnknownFields") {
        errors.push(FieldError::invalid(&path.child("preserveUnknownFields"), &true.into(), "must be false"));
    }
    let versions = path.child("versions");
    for (index, version) in spec.items("versions").iter().enumerate() {
        let version_path = versions.index(index);
        let schema_path = version_path.child("schema");
        let Some(schema) = schema_of(version) else { continue };
        if let Some(why) = structural_unsupported(schema) {
            let name = version.text("name");
            let message = format!("failed to check validation schema for version {name}: {why}");
            return Some(Condition::new(NON_STRUCTURAL, "Unknown", "StructuralError", message));
        }
        errors.extend(structural_violations(schema, &schema_path.child("openAPIV3Schema")));
    }
    let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let message = match shown.as_slice() {
        [] => return None,
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(Condition::new(NON_STRUCTURAL, "True", "Violations", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "names": {
                "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
                "shortNames": short,
            }},
        })
    }

    fn reason(definition: &Value, kind: &str) -> String {
        find(definition, kind)
            .map(|condition| format!("{} {}", condition.text("status"), condition.text("reason")))
            .unwrap_or_default()
    }

    #[test]
    fn names_are_accepted_then_established() {
        let mut one = definition("widgets", "Widget", &["w"]);
        assert!(advance(&mut one.clone(), None, &[], "t"));
        assert!(advance(&mut one, None, &[], "t"));
        assert_eq!(reason(&one, NAMES_ACCEPTED), "True NoConflicts");
        assert_eq!(reason(&one, ESTABLISHED), "False Installing");
        assert_eq!(one["status"]["acceptedNames"], one["spec"]["names"]);
        assert!(advance(&mut one, None, &[], "later"));
        assert_eq!(reason(&one, ESTABLISHED), "True InitialNamesAccepted");
        assert_eq!(find(&one, NAMES_ACCEPTED).map(|of| of.text("lastTransitionTime")), Some("t"));
        assert!(!advance(&mut one, None, &[], "later still"));
    }

    #[test]
    fn definition_with_invalid_webhook_ca_is_not_established() {
        let mut one = definition("widgets", "Widget", &[]);
        one["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "bm8="}}});
        assert!(advance(&mut one, None, &[], "t"));
        assert!(advance(&mut one, None, &[], "t"));
        assert_eq!(reason(&one, ESTABLISHED), "False InvalidCABundle");
        assert!(!advance(&mut one, None, &[], "t"));
        one["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = json!("");
        assert!(advance(&mut one, None, &[], "t"));
        assert_eq!(reason(&one, ESTABLISHED), "True InitialNamesAccepted");
    }

    #[test]
    fn names_in_use_conflict_until_released() {
        let mut first = definition("widgets", "Widget", &["w"]);
        while advance(&mut first, None, &[], "t") {}
        let mut second = definition("others", "Widget", &["w"]);
        assert!(advance(&mut second, None, &[&first], "t"));
        assert_eq!(reason(&second, NAMES_ACCEPTED), "False ListKindConflict");
        assert_eq!(reason(&second, ESTABLISHED), "False NotAccepted");
        assert_eq!(second["status"]["acceptedNames"], json!({"plural": "others"}));
        assert!(!advance(&mut second, None, &[&first], "t"), "nothing has changed");
        assert!(advance(&mut second, None, &[], "t"), "the first was deleted");
        assert_eq!(reason(&second, NAMES_ACCEPTED), "True NoConflicts");
    }

    #[test]
    fn non_structural_schemas_are_reported_with_every_cause() {
        let with = |preserve: bool, schemas: &[Value]| {
            let versions = schemas
                .iter()
                .enumerate()
                .map(|(n, schema)| json!({"name": format!("v{n}"), "schema": {"openAPIV3Schema": schema}}));
            json!({"spec": {"preserveUnknownFields": preserve, "versions": versions.collect::<Vec<_>>()}})
        };
        let shown = |definition: &Value| {
            structure(definition).map(|found| (found.status, found.reason, found.message))
        };
        let sound = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
        assert_eq!(shown(&with(false, std::slice::from_ref(&sound))), None);
        assert_eq!(
            shown(&with(true, std::slice::from_ref(&sound))),
            Some((
                "True",
                "Violations",
                "spec.preserveUnknownFields: Invalid value: true: must be false".to_owned()
            ))
        );
        let untyped = json!({"type": "object", "properties": {"spec": {}}});
        let (status, reason, message) = shown(&with(true, &[sound.clone(), untyped])).expect("a condition");
        assert_eq!((status, reason), ("True", "Violations"));
        assert_eq!(
            message,
            "[spec.preserveUnknownFields: Invalid value: true: must be false, \
             spec.versions[1].schema.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields]"
        );
        let referring = json!({"type": "object", "properties": {"spec": {"$ref": "#/x"}}});
        let (status, reason, message) = shown(&with(true, &[referring])).expect("a condition");
        assert_eq!((status, reason), ("Unknown", "StructuralError"));
        assert_eq!(
            message,
            "failed to check validation schema for version v0: OpenAPIV3Schema '$ref' is not supported"
        );
    }

    #[test]
    fn protected_groups_need_approval() {
        for (group, annotation, want) in [
            ("example.com", "", ""),
            ("x.k8s.io", "", "False MissingAnnotation"),
            ("x.k8s.io", "unapproved, experimental", "False UnapprovedAnnotation"),
            ("x.k8s.io", "https://github.com/x", "True ApprovedAnnotation"),
            ("kubernetes.io", "maybe", "False InvalidAnnotation"),
            ("notk8s.io", "", ""),
        ] {
            let mut one = definition("widgets", "Widget", &[]);
            one["spec"]["group"] = group.into();
            one["metadata"]["annotations"] = json!({APPROVAL: annotation});
            advance(&mut one, None, &[], "t");
            assert_eq!(reason(&one, APPROVED), want, "{group} {annotation}");
        }
    }
}
