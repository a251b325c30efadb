//! Rules of roles, and role references and subjects of role bindings.

use super::checks::invalid_each;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// A string from a fixed set.
fn known(path: &Path<'_>, value: &str, supported: &[&str]) -> ErrorList {
    let is_known = supported.contains(&value);
    (!is_known).then(|| FieldError::not_supported_str(path, value, supported)).into_iter().collect()
}

/// Names of roles and bindings are arbitrary path segments, also if generated.
pub fn name(name: &str, _prefix: bool) -> Vec<String> {
    names::path_segment_name(name, false)
}

/// Rules of a role; those of a namespaced one cannot have non-resource URLs.
pub fn rules(role: &Value, namespaced: bool) -> ErrorList {
    let path = Path::new("rules");
    let rules = role.items("rules").iter().enumerate();
    rules.flat_map(|(index, entry)| rule(entry, namespaced, &path.index(index))).collect()
}

fn rule(rule: &Value, namespaced: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let missing = |field: &str| rule.items(field).is_empty();
    if missing("verbs") {
        errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    if !missing("nonResourceURLs") {
        let path = path.child("nonResourceURLs");
        let urls = rule.field("nonResourceURLs");
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.push(FieldError::invalid(&path, urls, detail));
        }
        if !missing("apiGroups") || !missing("resources") || !missing("resourceNames") {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(&path, urls, detail));
        }
        return errors;
    }
    if missing("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        errors.push(FieldError::required(&path.child("apiGroups"), detail));
    }
    if missing("resources") {
        let detail = "resource rules must supply at least one resource";
        errors.push(FieldError::required(&path.child("resources"), detail));
    }
    errors
}

/// Role reference and subjects of a binding.
pub fn binding(binding: &Value, namespaced: bool) -> ErrorList {
    let mut errors = Vec::new();
    let (path, role) = (Path::new("roleRef"), binding.field("roleRef"));
    errors.extend(known(&path.child("apiGroup"), role.text("apiGroup"), &[GROUP]));
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    errors.extend(known(&path.child("kind"), role.text("kind"), kinds));
    let role_name = role.text("name");
    if role_name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        errors.extend(invalid_each(&path.child("name"), role_name, name(role_name, false)));
    }
    let path = Path::new("subjects");
    for (index, entry) in binding.items("subjects").iter().enumerate() {
        errors.extend(subject(entry, namespaced, &path.index(index)));
    }
    errors
}

fn subject(subject: &Value, namespaced: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let (name, group) = (subject.text("name"), subject.text("apiGroup"));
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    match subject.text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(invalid_each(&path.child("name"), name, names::dns_subdomain(name, false)));
            }
            errors.extend(known(&path.child("apiGroup"), group, &[""]));
            if !namespaced && subject.text("namespace").is_empty() {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => errors.extend(known(&path.child("apiGroup"), group, &[GROUP])),
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported_str(&path.child("kind"), other, &kinds));
        }
    }
    errors
}

/// The role reference of a binding is immutable; only the subjects may change.
pub fn binding_update(new: &Value, old: &Value) -> Option<FieldError> {
    let (new, old) = (new.field("roleRef"), old.field("roleRef"));
    let fields = ["apiGroup", "kind", "name"];
    if fields.iter().all(|field| new.text(field) == old.text(field)) {
        return None;
    }
    let [group, kind, name] = fields.map(|field| Value::from(new.text(field)));
    let shown = format!(r#"{{"APIGroup":{group},"Kind":{kind},"Name":{name}}}"#);
    Some(FieldError::invalid_shown(&Path::new("roleRef"), shown, "cannot change roleRef"))
}

/// Sets the default API groups.
pub fn default_binding(binding: &mut Value) {
    binding.child_mut("roleRef").default_if_zero("apiGroup", GROUP);
    for subject in binding.items_mut("subjects") {
        if matches!(subject.text("kind"), "User" | "Group") {
            subject.default_if_zero("apiGroup", GROUP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: ErrorList) -> Vec<String> {
        errors.iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn role_rules_are_validated() {
        let cases = [
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), true, vec![]),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["/a"]}),
                true,
                vec![
                    "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: namespaced rules cannot apply to \
                     non-resource URLs",
                ],
            ),
            (
                json!({}),
                false,
                vec![
                    "rules[0].verbs: Required value: verbs must contain at least one value",
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                    "rules[0].resources: Required value: resource rules must supply at least one resource",
                ],
            ),
        ];
        for (rule, namespaced, expected) in cases {
            assert_eq!(texts(rules(&json!({"rules": [rule]}), namespaced)), expected);
        }
    }

    #[test]
    fn role_bindings_are_validated() {
        let mut object = json!({"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}, {"kind": "X", "name": "x"},
        ]});
        default_binding(&mut object);
        assert_eq!(
            texts(binding(&object, false)),
            [
                "subjects[1].namespace: Required value",
                "subjects[2].kind: Unsupported value: \"X\": supported values: \"ServiceAccount\", \"User\", \
                 \"Group\"",
            ]
        );
        let mut other = object.clone();
        other["roleRef"]["name"] = "zz".into();
        assert_eq!(binding_update(&object, &object), None);
        assert_eq!(
            binding_update(&other, &object).unwrap().to_string(),
            "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\
             \"Name\":\"zz\"}: cannot change roleRef"
        );
    }
}
