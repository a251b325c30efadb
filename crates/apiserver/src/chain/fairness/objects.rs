//! FlowSchemas and PriorityLevelConfigurations as stored, with their matching rules and defaults.

use super::dealer::Dealer;
use super::queue_set::Discipline;
use crate::request_info::RequestInfo;
use crate::user::UserInfo;
use serde::Deserialize;

pub const EXEMPT: &str = "exempt";
pub const CATCH_ALL: &str = "catch-all";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowSchema {
    pub metadata: Metadata,
    pub spec: FlowSchemaSpec,
    pub status: FlowSchemaStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowSchemaSpec {
    pub priority_level_configuration: LevelReference,
    pub matching_precedence: i64,
    pub distinguisher_method: Option<DistinguisherMethod>,
    pub rules: Vec<PolicyRules>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LevelReference {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DistinguisherMethod {
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct FlowSchemaStatus {
    pub conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRules {
    pub subjects: Vec<Subject>,
    pub resource_rules: Option<Vec<ResourceRule>>,
    pub non_resource_rules: Option<Vec<NonResourceRule>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    pub kind: String,
    pub user: Option<Named>,
    pub group: Option<Named>,
    pub service_account: Option<Named>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub cluster_scope: bool,
    pub namespaces: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NonResourceRule {
    pub verbs: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub urls: Vec<String>,
}

/// Reports whether one of the rules matches the request.
pub fn matches(rules: &[PolicyRules], user: &UserInfo, info: &RequestInfo, path: &str) -> bool {
    rules.iter().any(|rule| {
        rule.subjects.iter().any(|subject| subject.matches(user))
            && match info.is_resource {
                true => rule.resource_rules.iter().flatten().any(|rule| rule.matches(info)),
                false => rule
                    .non_resource_rules
                    .iter()
                    .flatten()
                    .any(|rule| rule.matches(info.verb.as_str(), path)),
            }
    })
}

impl Subject {
    fn matches(&self, user: &UserInfo) -> bool {
        match (self.kind.as_str(), &self.user, &self.group, &self.service_account) {
            ("User", Some(named), _, _) => named.name == "*" || named.name == user.name,
            ("Group", _, Some(group), _) => group.name == "*" || user.is_in(&group.name),
            ("ServiceAccount", _, _, Some(account)) => {
                let rest = user.name.strip_prefix("system:serviceaccount:");
                let name = rest
                    .and_then(|rest| rest.strip_prefix(account.namespace.as_str()))
                    .and_then(|rest| rest.strip_prefix(':'));
                name.is_some_and(|name| account.name == "*" || account.name == name)
            }
            _ => false,
        }
    }
}

/// A list of only the wildcard matches everything.
fn contains(list: &[String], text: &str) -> bool {
    matches!(list, [all] if all == "*") || list.iter().any(|item| item == text)
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        contains(&self.verbs, info.verb.as_str())
            && self.matches_resource(info)
            && contains(&self.api_groups, &info.group)
            && match info.namespace.as_str() {
                "" => self.cluster_scope,
                namespace => self.namespaces.as_ref().is_some_and(|list| contains(list, namespace)),
            }
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if info.subresource.is_empty() {
            return contains(&self.resources, &info.resource);
        }
        contains(&self.resources, "")
            || self
                .resources
                .iter()
                .any(|item| item.split_once('/') == Some((info.resource.as_str(), info.subresource.as_str())))
    }
}

impl NonResourceRule {
    fn matches(&self, verb: &str, path: &str) -> bool {
        contains(&self.verbs, verb)
            && self.urls.iter().any(|url| {
                let prefix = url.strip_suffix('*').unwrap_or(url);
                let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
                url == "*"
                    || url == path
                    || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
            })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityLevel {
    pub metadata: Metadata,
    pub spec: LevelSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LevelSpec {
    #[serde(rename = "type")]
    pub kind: String,
    pub limited: Option<Limited>,
    pub exempt: Option<ExemptLevel>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limited {
    pub nominal_concurrency_shares: Option<i64>,
    pub lendable_percent: Option<i64>,
    pub borrowing_limit_percent: Option<i64>,
    pub limit_response: LimitResponse,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExemptLevel {
    pub nominal_concurrency_shares: Option<i64>,
    pub lendable_percent: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LimitResponse {
    #[serde(rename = "type")]
    pub kind: String,
    pub queuing: Option<Queuing>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Queuing {
    pub queues: usize,
    pub hand_size: usize,
    pub queue_length_limit: usize,
}

/// Validated configuration of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub discipline: Discipline,
    pub shares: i64,
    pub lendable_percent: i64,
    /// `None`: no borrowing limit.
    pub borrowing_percent: Option<i64>,
}

/// Default `nominalConcurrencyShares`.
const DEFAULT_SHARES: i64 = 30;
/// Upper bound on queues per level.
const MAX_QUEUES: usize = 10_000;

impl PriorityLevel {
    /// `None`: the object is invalid and treated as missing.
    pub fn settings(&self) -> Option<Settings> {
        let spec = &self.spec;
        if (spec.kind == "Exempt") != (self.metadata.name == EXEMPT) {
            return None;
        }
        match (spec.kind.as_str(), &spec.limited, &spec.exempt) {
            ("Exempt", None, exempt) => {
                let exempt = exempt.clone().unwrap_or_default();
                Some(Settings {
                    discipline: Discipline::Exempt,
                    shares: exempt.nominal_concurrency_shares.unwrap_or(0).max(0),
                    lendable_percent: exempt.lendable_percent.unwrap_or(0).clamp(0, 100),
                    borrowing_percent: None,
                })
            }
            ("Limited", Some(limited), None) => Some(Settings {
                discipline: limited.limit_response.discipline()?,
                shares: limited.nominal_concurrency_shares.unwrap_or(DEFAULT_SHARES).max(0),
                lendable_percent: limited.lendable_percent.unwrap_or(0).clamp(0, 100),
                borrowing_percent: limited.borrowing_limit_percent.map(|percent| percent.max(0)),
            }),
            _ => None,
        }
    }
}

impl LimitResponse {
    fn discipline(&self) -> Option<Discipline> {
        match (self.kind.as_str(), &self.queuing) {
            ("Reject", None) => Some(Discipline::Reject),
            ("Queue", Some(queuing)) if queuing.queues <= MAX_QUEUES => Some(Discipline::Queue {
                dealer: Dealer::new(queuing.queues, queuing.hand_size)?,
                queues: queuing.queues,
                length: queuing.queue_length_limit.max(1),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::query::Query;
    use serde_json::json;

    fn info(method: &str, path: &str) -> RequestInfo {
        RequestInfo::new(&method.parse().expect("a method"), path, &Query::default())
    }

    #[test]
    fn flow_schema_rules_match_as_in_kubernetes() {
        let user = |name: &str, groups: &[&str]| UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        };
        let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]);
        let robot = |name: &str| json!([{"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": name}}]);
        let group = json!([{"kind": "Group", "group": {"name": "devs"}}]);
        let only = |resources: serde_json::Value, cluster: bool| json!([{"verbs": ["get"], "apiGroups": [""], "resources": resources, "namespaces": ["a"], "clusterScope": cluster}]);
        let urls = |url: &str| json!([{"verbs": ["get"], "nonResourceURLs": [url]}]);
        let any_user = json!([{"kind": "User", "user": {"name": "*"}}]);
        let none = json!([]);
        let dev = user("alice", &["devs"]);
        let pod = "/api/v1/namespaces/a/pods/p";
        for (subjects, resources, others, who, path, want) in [
            (&group, &all, &none, &dev, pod, true),
            (&group, &all, &none, &user("bob", &["ops"]), pod, false),
            (&group, &all, &none, &dev, "/healthz", false),
            (&robot("*"), &all, &none, &user("system:serviceaccount:n:x", &[]), pod, true),
            (&robot("*"), &all, &none, &user("system:serviceaccount:nn:x", &[]), pod, false),
            (&robot("y"), &all, &none, &user("system:serviceaccount:n:x", &[]), pod, false),
            (&group, &only(json!(["pods"]), false), &none, &dev, pod, true),
            (&group, &only(json!(["pods"]), false), &none, &dev, "/api/v1/namespaces/a/pods/p/log", false),
            (&group, &only(json!(["pods/log"]), false), &none, &dev, "/api/v1/namespaces/a/pods/p/log", true),
            (&group, &only(json!(["*"]), false), &none, &dev, "/api/v1/namespaces/a/pods/p/log", true),
            (&group, &only(json!(["*"]), false), &none, &dev, "/api/v1/nodes/n", false),
            (&group, &only(json!(["*"]), true), &none, &dev, "/api/v1/nodes/n", true),
            (&group, &only(json!(["*"]), true), &none, &dev, "/api/v1/namespaces/b/pods/p", false),
            (&any_user, &none, &urls("/healthz"), &dev, "/healthz", true),
            (&any_user, &none, &urls("/healthz"), &dev, "/healthz/ping", true),
            (&any_user, &none, &urls("/healthz"), &dev, "/healthzz", false),
            (&any_user, &none, &urls("/apis/*"), &dev, "/apis/apps", true),
            (&any_user, &none, &urls("/apis/*"), &dev, "/apis", false),
            (&any_user, &none, &urls("*"), &dev, "/whatever", true),
        ] {
            let rule = json!({"subjects": subjects, "resourceRules": resources, "nonResourceRules": others});
            let rule: PolicyRules = serde_json::from_value(rule.clone()).expect("a rule");
            assert_eq!(
                matches(std::slice::from_ref(&rule), who, &info("GET", path), path),
                want,
                "{rule:?} {path}"
            );
        }
    }

    #[test]
    fn invalid_priority_level_has_no_settings() {
        let limited = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}}}});
        for (name, spec, sound) in [
            ("a", limited.clone(), true),
            (EXEMPT, limited, false),
            (EXEMPT, json!({"type": "Exempt"}), true),
            ("a", json!({"type": "Exempt"}), false),
            ("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}), true),
            ("a", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}}), false),
            ("a", json!({"type": "Limited"}), false),
        ] {
            let level = json!({"metadata": {"name": name}, "spec": spec});
            let level: PriorityLevel = serde_json::from_value(level).expect("a level");
            assert_eq!(level.settings().is_some(), sound, "{level:?}");
        }
    }
}
