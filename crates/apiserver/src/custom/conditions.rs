//! Conditions of a definition: which names it has, whether its schema is structural, whether its group is approved.
//!
//! Pure: a definition and the others go in, the conditions and names it should have come out.

use api::value::{Fields, texts};
use machinery::Value;
use machinery::field::{FieldError, Path};
use serde_json::{Map, json};
use std::collections::BTreeSet;

pub const ESTABLISHED: &str = "Established";
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const TERMINATING: &str = "Terminating";
const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";
const NON_STRUCTURAL: &str = "NonStructuralSchema";
const APPROVAL: &str = "api-approved.kubernetes.io";
const APPROVAL_HELP: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// One condition, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    pub fn new(
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }
}

/// A condition that a definition has.
pub fn find<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = definition.field("status").items("conditions");
    conditions.iter().find(|condition| condition.text("type") == kind)
}

pub fn is_true(definition: &Value, kind: &str) -> bool {
    find(definition, kind).is_some_and(|condition| condition.text("status") == "True")
}

/// Sets a condition; its time changes with its status. Reports whether anything did.
pub fn set(definition: &mut Value, condition: &Condition, now: &str) -> bool {
    let wanted = json!({
        "type": condition.kind, "status": condition.status, "reason": condition.reason,
        "message": condition.message, "lastTransitionTime": now,
    });
    let status = definition.child_mut("status");
    if !status.field("conditions").is_array() {
        status.set("conditions", json!([]));
    }
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return false };
    let Some(known) = conditions.iter_mut().find(|known| known.text("type") == condition.kind) else {
        conditions.push(wanted);
        return true;
    };
    let mut wanted = wanted;
    if known.text("status") == condition.status && known.has("lastTransitionTime") {
        wanted.set("lastTransitionTime", known.field("lastTransitionTime").clone());
    }
    let changed = *known != wanted;
    *known = wanted;
    changed
}

/// Removes a condition. Reports whether there was one.
pub fn remove(definition: &mut Value, kind: &str) -> bool {
    let conditions = definition.get_mut("status").and_then(|status| status.get_mut("conditions"));
    let Some(conditions) = conditions.and_then(Value::as_array_mut) else { return false };
    let before = conditions.len();
    conditions.retain(|condition| condition.text("type") != kind);
    conditions.len() != before
}

/// Brings the status of a definition one step further. Reports whether anything changed.
pub fn advance(definition: &mut Value, all: &[&Value], now: &str) -> bool {
    let mut changed = match approval(definition) {
        Some(condition) => set(definition, &condition, now),
        None => false,
    };
    changed |= match structure(definition) {
        Some(condition) => set(definition, &condition, now),
        None => remove(definition, NON_STRUCTURAL),
    };
    // Established follows accepted names in a step of its own, when all servers have seen those.
    if accept_names(definition, all, now) {
        return true;
    }
    if is_true(definition, NAMES_ACCEPTED) && !is_true(definition, ESTABLISHED) {
        let message = "the initial names have been accepted";
        changed |=
            set(definition, &Condition::new(ESTABLISHED, "True", "InitialNamesAccepted", message), now);
    }
    changed
}

/// Names of a group that definitions have been given: of resources, of kinds.
fn taken(group: &str, all: &[&Value]) -> (BTreeSet<String>, BTreeSet<String>) {
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
    let (resources, kinds) = taken(definition.field("spec").text("group"), all);
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

/// Both say the same, absent and empty lists alike.
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

/// Definitions are structural since `apiextensions.k8s.io/v1`, unless they keep unknown fields from earlier.
fn structure(definition: &Value) -> Option<Condition> {
    if !definition.field("spec").flag("preserveUnknownFields") {
        return None;
    }
    let path = Path::new("spec");
    let path = path.child("preserveUnknownFields");
    let error = FieldError::invalid(&path, &true.into(), "must be false");
    Some(Condition::new(NON_STRUCTURAL, "True", "Violations", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(advance(&mut one.clone(), &[], "t"));
        assert!(advance(&mut one, &[], "t"));
        assert_eq!(reason(&one, NAMES_ACCEPTED), "True NoConflicts");
        assert_eq!(reason(&one, ESTABLISHED), "False Installing");
        assert_eq!(one["status"]["acceptedNames"], one["spec"]["names"]);
        assert!(advance(&mut one, &[], "later"));
        assert_eq!(reason(&one, ESTABLISHED), "True InitialNamesAccepted");
        assert_eq!(find(&one, NAMES_ACCEPTED).map(|of| of.text("lastTransitionTime")), Some("t"));
        assert!(!advance(&mut one, &[], "later still"));
    }

    #[test]
    fn names_in_use_conflict_until_they_are_free() {
        let mut first = definition("widgets", "Widget", &["w"]);
        while advance(&mut first, &[], "t") {}
        let mut second = definition("others", "Widget", &["w"]);
        assert!(advance(&mut second, &[&first], "t"));
        assert_eq!(reason(&second, NAMES_ACCEPTED), "False ListKindConflict");
        assert_eq!(reason(&second, ESTABLISHED), "False NotAccepted");
        assert_eq!(second["status"]["acceptedNames"], json!({"plural": "others"}));
        assert!(!advance(&mut second, &[&first], "t"), "nothing has changed");
        assert!(advance(&mut second, &[], "t"), "the first is gone");
        assert_eq!(reason(&second, NAMES_ACCEPTED), "True NoConflicts");
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
            advance(&mut one, &[], "t");
            assert_eq!(reason(&one, APPROVED), want, "{group} {annotation}");
        }
    }
}
