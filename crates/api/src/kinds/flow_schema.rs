//! FlowSchema.

use crate::kind::{drop_status, keep_status};
use crate::validation::checks::{dns_label, dns_subdomain, one_of};
use crate::validation::dump::{Field, Shape, dump};
use crate::validation::flow_control::status_conditions;
use crate::validation::values::{contains, same, strings};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    default: |schema| schema.child_mut("spec").default_if_zero("matchingPrecedence", DEFAULT_PRECEDENCE),
    prepare_create: drop_status,
    prepare_update: keep_status,
    validate,
    validate_update: |new, _| validate(new),
    validate_status_update: |new, _| status_conditions(new),
    counts_generation: true,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    metadata_on_update: &[MetadataCheck::New],
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::flow_control::FLOW_SCHEMA,
    ..Kind::new("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", Scope::Cluster)
};

const DEFAULT_PRECEDENCE: i64 = 1000;
const PRECEDENCE_MAX: i64 = 10000;
const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

fn validate(schema: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), schema.field("spec"));
    let name = meta::name(schema);
    let mut errors = Vec::new();
    let precedence_path = path.child("matchingPrecedence");
    let precedence = spec.int("matchingPrecedence");
    let mut reject = |detail: String| {
        errors.push(FieldError::invalid(&precedence_path, &precedence.into(), detail));
    };
    if precedence <= 0 {
        reject("must be a positive value".to_owned());
    }
    if precedence > PRECEDENCE_MAX {
        reject(format!("must not be greater than {PRECEDENCE_MAX}"));
    }
    if precedence == 1 && name != "exempt" {
        reject("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    if spec.has("distinguisherMethod") {
        let method = spec.field("distinguisherMethod");
        let supported = ["ByNamespace", "ByUser"];
        if !supported.contains(&method.text("type")) {
            let path = path.child("distinguisherMethod");
            let mut error = FieldError::not_supported(&path.child("type"), &Value::Null, &supported);
            error.value = Some(dump(method, TYPE));
            errors.push(error);
        }
    }
    let level = spec.field("priorityLevelConfiguration").text("name");
    let level_path = path.child("priorityLevelConfiguration");
    let level_path = level_path.child("name");
    if level.is_empty() {
        errors.push(FieldError::required(&level_path, "must reference a priority level"));
    } else {
        errors.extend(dns_subdomain(&level_path, level));
    }
    let rules_path = path.child("rules");
    for (index, rule) in spec.items("rules").iter().enumerate() {
        errors.extend(self::rule(rule, &rules_path.index(index)));
    }
    if mandatory_spec(name).is_some_and(|mandatory| !same(spec, &mandatory)) {
        let detail = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid_shown(&path, dump(spec, SPEC), detail));
    }
    errors.extend(status_conditions(schema));
    errors
}

fn rule(rule: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let subjects_path = path.child("subjects");
    if rule.items("subjects").is_empty() {
        errors.push(FieldError::required(&subjects_path, "subjects must contain at least one value"));
    }
    for (index, subject) in rule.items("subjects").iter().enumerate() {
        errors.extend(self::subject(subject, &subjects_path.index(index)));
    }
    let (resource_rules, other_rules) = (rule.items("resourceRules"), rule.items("nonResourceRules"));
    if resource_rules.is_empty() && other_rules.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, detail));
    }
    let rules_path = path.child("resourceRules");
    for (index, rule) in resource_rules.iter().enumerate() {
        errors.extend(resource_rule(rule, &rules_path.index(index)));
    }
    let rules_path = path.child("nonResourceRules");
    for (index, rule) in other_rules.iter().enumerate() {
        errors.extend(non_resource_rule(rule, &rules_path.index(index)));
    }
    errors
}

/// Requires exactly the field of the subject's kind.
fn subject(subject: &Value, path: &Path<'_>) -> ErrorList {
    let kinds = [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")];
    let kind = subject.text("kind");
    let Some((field, _)) = kinds.iter().find(|(_, name)| *name == kind) else {
        return one_of(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]);
    };
    let mut errors = Vec::new();
    let field_path = path.child(field);
    if !subject.has(field) {
        let detail = format!("{field} is required when subject kind is '{kind}'");
        errors.push(FieldError::required(&field_path, detail));
    } else {
        let reference = subject.field(field);
        let name = reference.text("name");
        if name.is_empty() {
            errors.push(FieldError::required(&field_path.child("name"), ""));
        } else if kind == "ServiceAccount" && name != "*" {
            errors.extend(dns_subdomain(&field_path.child("name"), name));
        }
        if kind == "ServiceAccount" {
            errors.extend(namespace(reference.text("namespace"), &field_path.child("namespace")));
        }
    }
    for (other, name) in kinds.iter().filter(|(other, _)| other != field && subject.has(other)) {
        let detail = format!("{other} is forbidden when subject kind is not '{name}'");
        errors.push(FieldError::forbidden(&path.child(other), detail));
    }
    errors
}

fn namespace(namespace: &str, path: &Path<'_>) -> ErrorList {
    if namespace.is_empty() {
        return vec![FieldError::required(path, "must specify namespace for service account")];
    }
    dns_label(path, namespace)
}

fn verbs(rule: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("verbs");
    let items = rule.items("verbs");
    if items.is_empty() {
        return vec![FieldError::required(&path, "verbs must contain at least one value")];
    }
    if contains(items, "*") {
        return lone_wildcard(rule, "verbs", "verbs", &path);
    }
    if strings(items).all(|verb| VERBS.contains(&verb)) {
        return Vec::new();
    }
    vec![FieldError::not_supported(&path, rule.field("verbs"), VERBS)]
}

/// `*` matches all, so it must be the only item.
fn lone_wildcard(rule: &Value, field: &str, noun: &str, path: &Path<'_>) -> ErrorList {
    let items = rule.items(field);
    if items.len() < 2 || !contains(items, "*") {
        return Vec::new();
    }
    let detail = format!("if '*' is present, must not specify other {noun}");
    vec![FieldError::invalid(path, rule.field(field), detail)]
}

fn resource_rule(rule: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = verbs(rule, path);
    for (field, noun, missing) in [
        ("apiGroups", "api groups", "resource rules must supply at least one api group"),
        ("resources", "resources", "resource rules must supply at least one resource"),
    ] {
        let path = path.child(field);
        if rule.items(field).is_empty() {
            errors.push(FieldError::required(&path, missing));
        }
        errors.extend(lone_wildcard(rule, field, noun, &path));
    }
    let path = path.child("namespaces");
    let namespaces = rule.items("namespaces");
    if namespaces.is_empty() && !rule.flag("clusterScope") {
        let detail = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(&path, detail));
    } else if contains(namespaces, "*") {
        errors.extend(lone_wildcard(rule, "namespaces", "namespaces", &path));
    } else {
        for (index, namespace) in strings(namespaces).enumerate() {
            for problem in names::dns_label(namespace, false) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.push(FieldError::invalid_str(&path.index(index), namespace, detail));
            }
        }
    }
    errors
}

fn non_resource_rule(rule: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = verbs(rule, path);
    let path = path.child("nonResourceURLs");
    let urls = rule.items("nonResourceURLs");
    if urls.is_empty() {
        errors.push(FieldError::required(&path, "nonResourceURLs must contain at least one value"));
    } else if contains(urls, "*") {
        errors.extend(lone_wildcard(rule, "nonResourceURLs", "non-resource URLs", &path));
    } else {
        for (index, url) in strings(urls).enumerate() {
            let problem = url_problem(url);
            errors.extend(problem.map(|problem| FieldError::invalid_str(&path.index(index), url, problem)));
        }
    }
    errors
}

fn url_problem(url: &str) -> Option<&'static str> {
    let wildcards = url.matches('*').count();
    if url.is_empty() {
        Some("must not be empty")
    } else if url == "/" {
        None
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else if wildcards > 1 || (wildcards == 1 && !url.ends_with("/*")) {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}

/// Two schemas are mandatory and must equal their built-in spec.
fn mandatory_spec(name: &str) -> Option<Value> {
    let (precedence, method, groups): (i64, Value, &[&str]) = match name {
        "exempt" => (1, Value::Null, &["system:masters"]),
        "catch-all" => {
            (PRECEDENCE_MAX, json!({"type": "ByUser"}), &["system:unauthenticated", "system:authenticated"])
        }
        _ => return None,
    };
    let subjects: Vec<Value> =
        groups.iter().map(|group| json!({"kind": "Group", "group": {"name": group}})).collect();
    Some(json!({
        "priorityLevelConfiguration": {"name": name},
        "matchingPrecedence": precedence,
        "distinguisherMethod": method,
        "rules": [{
            "subjects": subjects,
            "resourceRules": [{
                "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
            }],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }],
    }))
}

const TYPE: &[Field] = &[("type", "Type", Shape::Text)];
const NAME: &[Field] = &[("name", "Name", Shape::Text)];
const SPEC: &[Field] = &[
    ("priorityLevelConfiguration", "PriorityLevelConfiguration", Shape::Struct(NAME)),
    ("matchingPrecedence", "MatchingPrecedence", Shape::Int),
    ("distinguisherMethod", "DistinguisherMethod", Shape::Pointer(TYPE)),
    ("rules", "Rules", Shape::List(RULE)),
];
const RULE: &[Field] = &[
    ("subjects", "Subjects", Shape::List(SUBJECT)),
    ("resourceRules", "ResourceRules", Shape::List(RESOURCE_RULE)),
    ("nonResourceRules", "NonResourceRules", Shape::List(NON_RESOURCE_RULE)),
];
const SUBJECT: &[Field] = &[
    ("kind", "Kind", Shape::Text),
    ("user", "User", Shape::Pointer(NAME)),
    ("group", "Group", Shape::Pointer(NAME)),
    ("serviceAccount", "ServiceAccount", Shape::Pointer(SERVICE_ACCOUNT)),
];
const SERVICE_ACCOUNT: &[Field] = &[("namespace", "Namespace", Shape::Text), ("name", "Name", Shape::Text)];
const RESOURCE_RULE: &[Field] = &[
    ("verbs", "Verbs", Shape::Optional),
    ("apiGroups", "APIGroups", Shape::Optional),
    ("resources", "Resources", Shape::Optional),
    ("clusterScope", "ClusterScope", Shape::Flag),
    ("namespaces", "Namespaces", Shape::Optional),
];
const NON_RESOURCE_RULE: &[Field] =
    &[("verbs", "Verbs", Shape::Optional), ("nonResourceURLs", "NonResourceURLs", Shape::Optional)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_resource_urls_are_validated() {
        let cases = [
            ("/healthz", None),
            ("/", None),
            ("/a/*", None),
            ("/a*", Some("wildcard can only do suffix matching")),
            ("a", Some("must start with slash")),
            ("/a b", Some("must not contain white-space")),
            ("//a", Some("must not contain double slash")),
        ];
        for (url, problem) in cases {
            assert_eq!(url_problem(url), problem, "{url}");
        }
    }

    #[test]
    fn mandatory_schema_spec_is_immutable() {
        let mut schema = json!({"metadata": {"name": "exempt"}, "spec": mandatory_spec("exempt").unwrap()});
        assert_eq!(validate(&schema), []);
        schema["spec"]["rules"] = json!([]);
        let errors = validate(&schema);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().ends_with("spec of 'exempt' must equal the fixed value"));
    }
}
