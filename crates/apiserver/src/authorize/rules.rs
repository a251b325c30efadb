//! RBAC rules: matching, coverage, and their format in Kubernetes' messages.

use super::Attributes;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable")]
    pub non_resource_urls: Vec<String>,
}

/// `null` is an empty list.
pub(super) fn nullable<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<Vec<T>>::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted)
}

fn has_or_star(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

/// Rules that allow everything.
pub fn full_authority() -> [Rule; 2] {
    let star = || vec!["*".to_owned()];
    [
        Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() },
        Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() },
    ]
}

impl Rule {
    pub fn allows(&self, wanted: &Attributes<'_>) -> bool {
        if !has_or_star(&self.verbs, wanted.verb) {
            return false;
        }
        if !wanted.is_resource {
            return self.non_resource_urls.iter().any(|url| url_covers(url, wanted.path));
        }
        has_or_star(&self.api_groups, wanted.group)
            && self.resources.iter().any(|resource| resource_allows(resource, wanted))
            && (self.resource_names.is_empty() || has(&self.resource_names, wanted.name))
    }

    /// Reports whether this rule covers a rule of single values.
    fn covers(&self, part: &Rule) -> bool {
        let one = |list: &[String], wanted: &[String]| wanted.iter().all(|w| has_or_star(list, w));
        let resource = |wanted: &String| {
            has_or_star(&self.resources, wanted)
                || wanted
                    .split_once('/')
                    .is_some_and(|(_, subresource)| has(&self.resources, &format!("*/{subresource}")))
        };
        let named = self.resource_names.is_empty()
            || !part.resource_names.is_empty()
                && part.resource_names.iter().all(|name| has(&self.resource_names, name));
        one(&self.verbs, &part.verbs)
            && one(&self.api_groups, &part.api_groups)
            && part.resources.iter().all(resource)
            && named
            && part
                .non_resource_urls
                .iter()
                .all(|url| self.non_resource_urls.iter().any(|own| url_covers(own, url)))
    }

    /// Splits the rule into equivalent rules of at most one value per field.
    fn parts(&self) -> Vec<Rule> {
        let single = |value: &String| vec![value.clone()];
        let mut parts = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Rule {
                        verbs: single(verb),
                        api_groups: single(group),
                        resources: single(resource),
                        ..Rule::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(part);
                    } else {
                        let named = |name: &String| Rule { resource_names: single(name), ..part.clone() };
                        parts.extend(self.resource_names.iter().map(named));
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            for verb in &self.verbs {
                parts.push(Rule { verbs: single(verb), non_resource_urls: single(url), ..Rule::default() });
            }
        }
        parts
    }

    /// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
    fn compact(&self) -> String {
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown: Vec<String> = fields
            .into_iter()
            .filter(|(_, values)| !values.is_empty())
            .map(|(name, values)| format!("{name}:{}", quoted(values)))
            .collect();
        format!("{{{}}}", shown.join(", "))
    }
}

/// Compares the whole `resource/subresource`, as Kubernetes does: an access review may name both in `resource`
/// and leave `subresource` empty. Only a subresource of its own matches `*/subresource`.
fn resource_allows(resource: &str, wanted: &Attributes<'_>) -> bool {
    if resource == "*" {
        return true;
    }
    if wanted.subresource.is_empty() {
        return resource == wanted.resource;
    }
    resource
        .strip_suffix(wanted.subresource)
        .and_then(|rest| rest.strip_suffix('/'))
        .is_some_and(|parent| parent == "*" || parent == wanted.resource)
}

/// A pattern with a trailing star covers every path with its prefix.
fn url_covers(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

/// `["a" "b"]`, Kubernetes' format of lists of strings.
pub fn quoted(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("[{}]", values.join(" "))
}

/// Rules of `wanted` that `own` does not cover: sorted lines in Kubernetes' format, none if all are covered.
pub fn missing(own: &[Rule], wanted: &[Rule]) -> Vec<String> {
    let uncovered =
        wanted.iter().flat_map(Rule::parts).filter(|part| !own.iter().any(|rule| rule.covers(part)));
    // Parts that differ in their verb only are merged.
    let mut merged: BTreeMap<[Vec<String>; 3], Rule> = BTreeMap::new();
    let mut lines = Vec::new();
    for part in uncovered {
        if !part.non_resource_urls.is_empty() {
            lines.push(part.compact());
            continue;
        }
        let key = [part.api_groups.clone(), part.resources.clone(), part.resource_names.clone()];
        match merged.get_mut(&key) {
            Some(rule) => rule.verbs.extend(part.verbs),
            None => drop(merged.insert(key, part)),
        }
    }
    lines.extend(merged.values().map(Rule::compact));
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Rule {
        serde_json::from_str(json).unwrap()
    }

    fn request<'a>(verb: &'a str, group: &'a str, resource: &'a str, name: &'a str) -> Attributes<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes { verb, is_resource: true, group, resource, subresource, name, ..Attributes::default() }
    }

    #[test]
    fn rule_allows_matching_requests() {
        let pods = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}"#;
        let log = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods/log"]}"#;
        let scale = r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*/scale"]}"#;
        let named = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods"],"resourceNames":["a"]}"#;
        let all = r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}"#;
        for (json, attributes, want) in [
            (pods, request("get", "", "pods", "x"), true),
            (pods, request("list", "", "pods", ""), false),
            (pods, request("get", "apps", "pods", "x"), false),
            (pods, request("get", "", "pods/log", "x"), false),
            (log, request("get", "", "pods/log", "x"), true),
            (log, request("get", "", "pods", "x"), false),
            (scale, request("update", "apps", "deployments/scale", "x"), true),
            (scale, request("update", "apps", "deployments", "x"), false),
            (named, request("get", "", "pods", "a"), true),
            (named, request("get", "", "pods", "b"), false),
            (all, request("impersonate", "x", "y/z", ""), true),
            (all, Attributes { verb: "get", path: "/x", ..Attributes::default() }, false),
        ] {
            assert_eq!(rule(json).allows(&attributes), want, "{json} {attributes:?}");
        }
    }

    #[test]
    fn rule_with_slash_in_resource_matches_exactly() {
        let log = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods/log"]}"#;
        let any_log = r#"{"verbs":["get"],"apiGroups":[""],"resources":["*/log"]}"#;
        let pods = r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}"#;
        let all = r#"{"verbs":["get"],"apiGroups":[""],"resources":["*"]}"#;
        for (json, resource, subresource, want) in [
            (log, "pods/log", "", true),
            (any_log, "pods/log", "", false),
            (pods, "pods/log", "", false),
            (all, "pods/log", "", true),
            (log, "pods", "log", true),
            (log, "pods", "g", false),
            (any_log, "pods", "log", true),
            (any_log, "pods", "log/x", false),
        ] {
            let attributes =
                Attributes { verb: "get", is_resource: true, resource, subresource, ..Attributes::default() };
            assert_eq!(rule(json).allows(&attributes), want, "{json} {resource:?} {subresource:?}");
        }
    }

    #[test]
    fn non_resource_url_patterns_match_paths() {
        for (urls, path, want) in [
            (r#"["/healthz"]"#, "/healthz", true),
            (r#"["/healthz"]"#, "/healthz/etcd", false),
            (r#"["/healthz/*"]"#, "/healthz/etcd", true),
            (r#"["/healthz/*"]"#, "/healthz", false),
            (r#"["*"]"#, "/anything", true),
            (r#"null"#, "/anything", false),
        ] {
            let rule = rule(&format!(r#"{{"verbs":["get"],"nonResourceURLs":{urls}}}"#));
            let attributes = Attributes { verb: "get", path, ..Attributes::default() };
            assert_eq!(rule.allows(&attributes), want, "{urls} {path}");
        }
    }

    #[test]
    fn uncovered_rules_are_listed() {
        let own = [
            rule(r#"{"verbs":["get"],"apiGroups":[""],"resources":["configmaps"]}"#),
            rule(r#"{"verbs":["*"],"apiGroups":["apps"],"resources":["*/scale"]}"#),
            rule(r#"{"verbs":["get"],"apiGroups":[""],"resources":["secrets"],"resourceNames":["a"]}"#),
            rule(r#"{"verbs":["get"],"nonResourceURLs":["/logs/*"]}"#),
        ];
        for (json, want) in [
            (r#"{"verbs":["get"],"apiGroups":[""],"resources":["configmaps"],"resourceNames":["x"]}"#, ""),
            (
                r#"{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["configmaps"]}"#,
                r#"{APIGroups:[""], Resources:["configmaps"], Verbs:["list" "watch"]}"#,
            ),
            (r#"{"verbs":["patch"],"apiGroups":["apps"],"resources":["deployments/scale"]}"#, ""),
            (
                r#"{"verbs":["get"],"apiGroups":[""],"resources":["secrets"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#,
            ),
            (
                r#"{"verbs":["get"],"apiGroups":[""],"resources":["secrets"],"resourceNames":["a","b"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}"#,
            ),
            (r#"{"verbs":["get"],"nonResourceURLs":["/logs/x"]}"#, ""),
            (r#"{"verbs":["get"],"nonResourceURLs":["/x"]}"#, r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#),
        ] {
            assert_eq!(missing(&own, &[rule(json)]).join("\n"), want, "{json}");
        }
        assert!(missing(&full_authority(), &full_authority()).is_empty());
    }
}
