//! Parses the table of the RBAC policy into objects.

use machinery::Value;
use serde_json::json;

const TABLE: &str = include_str!("policy.txt");
const API_GROUP: &str = "rbac.authorization.k8s.io";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// Every role and binding of the enabled features, in the table's order.
pub fn objects(is_enabled: impl Fn(&str) -> bool) -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    let (mut role, mut enabled) = (0, true);
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(feature) = line.strip_prefix("feature ") {
            enabled = is_enabled(feature);
        } else if !enabled {
            continue;
        } else if let Some(text) = line.strip_prefix("  ") {
            let rules = objects.get_mut(role).and_then(|role| role["rules"].as_array_mut());
            rules.into_iter().for_each(|rules| rules.extend(rule(text)));
        } else if let Some(object) = object(line) {
            let same = |one: &Value| {
                one["kind"] == object["kind"]
                    && one["metadata"]["name"] == object["metadata"]["name"]
                    && one["metadata"]["namespace"] == object["metadata"]["namespace"]
            };
            role = objects.iter().position(same).unwrap_or(objects.len());
            if role == objects.len() {
                objects.push(object);
            }
        }
    }
    objects
}

fn object(line: &str) -> Option<Value> {
    let (kind, rest) = line.split_once(' ')?;
    match kind {
        "clusterrole" => cluster_role(rest),
        "role" => Some(named("Role", rest, json!({"rules": []}))),
        "clusterrolebinding" => binding("ClusterRoleBinding", rest),
        "rolebinding" => binding("RoleBinding", rest),
        _ => None,
    }
}

fn cluster_role(rest: &str) -> Option<Value> {
    let mut words = rest.split(' ');
    let mut role = named("ClusterRole", words.next()?, json!({"rules": []}));
    while let (Some(word), Some(label)) = (words.next(), words.next()) {
        let label = format!("{AGGREGATE}{label}");
        if word == "in" {
            role["metadata"]["labels"][label] = "true".into();
        } else {
            role["rules"] = Value::Null;
            role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
        }
    }
    Some(role)
}

fn binding(kind: &str, rest: &str) -> Option<Value> {
    let (name, rest) = rest.split_once(" = ")?;
    let (role, subjects) = rest.split_once(" to").unwrap_or((rest, ""));
    let (role_kind, role) = role.split_once('/')?;
    let role_kind = if role_kind == "role" { "Role" } else { "ClusterRole" };
    let subjects: Vec<Value> = subjects.split_whitespace().filter_map(subject).collect();
    let mut binding =
        named(kind, name, json!({"roleRef": {"apiGroup": API_GROUP, "kind": role_kind, "name": role}}));
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    Some(binding)
}

fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once('/')?;
    if kind != "ServiceAccount" {
        return Some(json!({"apiGroup": API_GROUP, "kind": kind, "name": name}));
    }
    let (namespace, name) = name.split_once('/')?;
    Some(json!({"kind": kind, "namespace": namespace, "name": name}))
}

/// Body of an object with the common metadata; the name may begin with a namespace.
fn named(kind: &str, name: &str, mut body: Value) -> Value {
    body["apiVersion"] = format!("{API_GROUP}/v1").into();
    body["kind"] = kind.into();
    body["metadata"] = json!({
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    });
    let name = match name.split_once('/').filter(|_| !kind.starts_with("Cluster")) {
        None => name,
        Some((namespace, name)) => {
            body["metadata"]["namespace"] = namespace.into();
            name
        }
    };
    body["metadata"]["name"] = name.into();
    body
}

fn rule(text: &str) -> Option<Value> {
    let (verbs, rest) = text.split_once(": ")?;
    let list = |text: &str| -> Vec<Value> { text.split(',').map(Value::from).collect() };
    let mut words = rest.split(' ');
    let first = words.next()?;
    let Some(resources) = words.next() else {
        return Some(json!({"verbs": list(verbs), "nonResourceURLs": list(first)}));
    };
    let groups: Vec<&str> = first.split(',').map(|group| if group == "core" { "" } else { group }).collect();
    let mut rule = json!({"verbs": list(verbs), "apiGroups": groups, "resources": list(resources)});
    if let Some(names) = words.next() {
        rule["resourceNames"] = list(names.trim_matches(['[', ']'])).into();
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_lines_are_parsed_into_objects() {
        assert_eq!(
            rule("get,list: core,apps pods [a,b]"),
            Some(json!({
                "verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods"],
                "resourceNames": ["a", "b"],
            }))
        );
        assert_eq!(
            rule("get: /healthz,/livez"),
            Some(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez"]}))
        );
        let bound = object("rolebinding n/b = role/r to ServiceAccount/n/s").expect("a binding");
        assert_eq!((&bound["metadata"]["name"], &bound["metadata"]["namespace"]), (&json!("b"), &json!("n")));
        assert_eq!(bound["subjects"], json!([{"kind": "ServiceAccount", "namespace": "n", "name": "s"}]));
    }

    #[test]
    fn enabled_feature_adds_roles_and_rules() {
        let with = objects(|feature| feature == "ClusterTrustBundle");
        let without = objects(|_| false);
        let node_rules = |objects: &[Value]| {
            let node = objects
                .iter()
                .find(|one| one["kind"] == "ClusterRole" && one["metadata"]["name"] == "system:node");
            node.and_then(|node| node["rules"].as_array()).map_or(0, Vec::len)
        };
        assert_eq!(node_rules(&with), node_rules(&without) + 1);
        assert_eq!(with.len(), without.len() + 2, "a role and its binding");
        let all = objects(|_| true);
        let name = "system:controller:storage-version-migrator-controller";
        let named = |objects: &[Value]| objects.iter().filter(|one| one["metadata"]["name"] == name).count();
        assert_eq!((named(&all), named(&with)), (2, 0));
    }

    #[test]
    fn policy_table_matches_reference() {
        let mut wanted = 0;
        let ours = objects(|_| false);
        for (file, list) in reference::BOOTSTRAP.values() {
            for item in list["items"].as_array().into_iter().flatten() {
                wanted += 1;
                let mut item = item.clone();
                // The controller computes the rules of aggregated roles.
                if item.get("aggregationRule").is_some() {
                    item["rules"] = Value::Null;
                }
                assert!(ours.contains(&item), "{file} {}", item["metadata"]["name"]);
            }
        }
        let own =
            ours.iter().filter(|one| one["metadata"]["name"].as_str().unwrap_or("").starts_with("ferry:"));
        assert_eq!(ours.len(), wanted + own.count());
    }
}
