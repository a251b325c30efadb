//! Audit policy: the rules of an `audit.k8s.io/v1` Policy. The first matching rule decides.

use crate::authorize::Attributes;
use crate::user::UserInfo;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Audit level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub fn text(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// Result of a policy for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ruling {
    pub level: Level,
    omitted: [bool; 4],
    pub omit_managed_fields: bool,
}

impl Ruling {
    /// Reports whether this stage is recorded.
    pub fn wants(&self, stage: Stage) -> bool {
        self.level > Level::None && !self.omitted[stage as usize]
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    metadata: serde_json::Value,
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Rule {
    level: Option<Level>,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("failed to read the audit policy {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("invalid audit policy {}: {reason}", .path.display())]
    Invalid { path: PathBuf, reason: String },
}

impl Policy {
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let text =
            std::fs::read(path).map_err(|source| PolicyError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|reason| PolicyError::Invalid { path: path.to_owned(), reason })
    }

    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let decoded = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?;
        let policy: Self = serde_json::from_value(decoded.value).map_err(|error| error.to_string())?;
        if (policy.api_version.as_str(), policy.kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(format!(
                "it is {:?} of {:?}, not Policy of audit.k8s.io/v1",
                policy.kind, policy.api_version
            ));
        }
        if policy.rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        policy
            .rules
            .iter()
            .enumerate()
            .try_for_each(|(at, rule)| rule.check().map_err(|reason| format!("rules[{at}]: {reason}")))?;
        Ok(policy)
    }

    pub fn ruling(&self, user: Option<&UserInfo>, attributes: &Attributes<'_>) -> Ruling {
        let rule = self.rules.iter().find(|rule| rule.matches(user, attributes));
        let mut omitted = [false; 4];
        let stages = self.omit_stages.iter().chain(rule.iter().flat_map(|rule| &rule.omit_stages));
        stages.for_each(|stage| omitted[*stage as usize] = true);
        Ruling {
            level: rule.and_then(|rule| rule.level).unwrap_or_default(),
            omitted,
            omit_managed_fields: rule
                .and_then(|rule| rule.omit_managed_fields)
                .unwrap_or(self.omit_managed_fields),
        }
    }
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        if self.level.is_none() {
            return Err("level: Required value".to_owned());
        }
        let regular = !self.resources.is_empty() || !self.namespaces.is_empty();
        if regular && !self.non_resource_urls.is_empty() {
            return Err("rules cannot apply to both regular resources and non-resource URLs".to_owned());
        }
        for url in &self.non_resource_urls {
            let star = url.trim_end_matches('*').contains('*');
            if url != "*" && (!url.starts_with('/') || star) {
                return Err(format!("nonResourceURLs: {url:?} is neither a path nor a prefix"));
            }
        }
        for group in &self.resources {
            if !group.resource_names.is_empty() && group.resources.is_empty() {
                return Err("using resourceNames requires at least one resource".to_owned());
            }
        }
        Ok(())
    }

    fn matches(&self, user: Option<&UserInfo>, attributes: &Attributes<'_>) -> bool {
        let named = |user: &UserInfo| has(&self.users, &user.name);
        let grouped = |user: &UserInfo| user.groups.iter().any(|group| has(&self.user_groups, group));
        if !self.users.is_empty() && !user.is_some_and(named)
            || !self.user_groups.is_empty() && !user.is_some_and(grouped)
            || !self.verbs.is_empty() && !has(&self.verbs, attributes.verb)
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return attributes.is_resource
                && (self.namespaces.is_empty() || has(&self.namespaces, attributes.namespace))
                && (self.resources.is_empty()
                    || self.resources.iter().any(|group| group.matches(attributes)));
        }
        if !self.non_resource_urls.is_empty() {
            let path = attributes.path;
            return !attributes.is_resource
                && self.non_resource_urls.iter().any(|url| {
                    url == "*"
                        || url == path
                        || url.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
                });
        }
        true
    }
}

impl GroupResources {
    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.group != "*" && self.group != attributes.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !has(&self.resource_names, attributes.name) {
            return false;
        }
        let (resource, strategy) = (attributes.resource, attributes.subresource);
        self.resources.iter().any(|wanted| match wanted.split_once('/') {
            None => wanted == "*" || strategy.is_empty() && wanted == resource,
            Some(("*", wanted)) => !strategy.is_empty() && wanted == strategy,
            Some((wanted, "*")) => wanted == resource,
            Some((wanted, wanted_door)) => wanted == resource && wanted_door == strategy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &[u8] = br#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
  resources:
  - group: ""
    resources: ["endpoints", "services"]
- level: RequestResponse
  userGroups: ["auditors"]
  omitStages: [ResponseStarted]
  omitManagedFields: false
- level: Request
  resources:
  - group: ""
    resources: ["configmaps"]
    resourceNames: ["important"]
  namespaces: ["kube-system"]
- level: Metadata
  resources:
  - group: ""
    resources: ["pods/*", "*/status"]
  - group: apps
- level: Metadata
  nonResourceURLs: ["/api*", "/version"]
"#;

    fn user(name: &str, group: &str) -> UserInfo {
        UserInfo { name: name.to_owned(), groups: vec![group.to_owned()], ..UserInfo::default() }
    }

    #[test]
    fn audit_policy_first_matching_rule_decides() {
        let policy = Policy::parse(POLICY).expect("a policy");
        let get = Attributes { verb: "get", is_resource: true, ..Attributes::default() };
        let path = |path| Attributes { verb: "get", path, ..Attributes::default() };
        let (alice, proxy, auditor) =
            (user("alice", "x"), user("system:kube-proxy", "x"), user("a", "auditors"));
        let endpoints = Attributes { verb: "watch", resource: "endpoints", ..get };
        let config = Attributes { resource: "configmaps", namespace: "kube-system", ..get };
        for (who, what, level) in [
            (Some(&proxy), endpoints, Level::None),
            (Some(&auditor), endpoints, Level::RequestResponse),
            (Some(&alice), Attributes { name: "important", ..config }, Level::Request),
            (Some(&alice), Attributes { name: "other", ..config }, Level::None),
            (Some(&alice), Attributes { name: "important", namespace: "default", ..config }, Level::None),
            (Some(&alice), Attributes { resource: "pods", subresource: "log", ..get }, Level::Metadata),
            (Some(&alice), Attributes { resource: "pods", ..get }, Level::Metadata),
            (Some(&alice), Attributes { resource: "nodes", subresource: "status", ..get }, Level::Metadata),
            (Some(&alice), Attributes { resource: "nodes", ..get }, Level::None),
            (Some(&alice), Attributes { group: "apps", resource: "deployments", ..get }, Level::Metadata),
            (None, path("/apis"), Level::Metadata),
            (None, path("/version"), Level::Metadata),
            (None, path("/versions"), Level::None),
        ] {
            assert_eq!(policy.ruling(who, &what).level, level, "{who:?} {what:?}");
        }
        let ruling = policy.ruling(Some(&auditor), &get);
        assert!(!ruling.omit_managed_fields && policy.ruling(None, &path("/api")).omit_managed_fields);
        let wanted = [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];
        assert_eq!(wanted.map(|stage| ruling.wants(stage)), [false, false, true, true]);
    }

    #[test]
    fn invalid_audit_policy_is_rejected() {
        for (text, want) in [
            ("kind: Policy\napiVersion: audit.k8s.io/v2\nrules: [{level: None}]", "audit.k8s.io/v1"),
            ("kind: Policy\napiVersion: audit.k8s.io/v1", "no rules"),
            ("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{}]", "rules[0]: level"),
            ("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: All}]", "All"),
            ("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, verb: [x]}]", "verb"),
            (
                "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, nonResourceURLs: ['a*b']}]",
                "a*b",
            ),
        ] {
            let error = Policy::parse(text.as_bytes()).expect_err(text);
            assert!(error.contains(want), "{error}");
        }
    }
}
