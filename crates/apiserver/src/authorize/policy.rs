//! The RBAC policy, indexed by subject and updated incrementally per object.

use super::rules::{Rule, nullable};
use crate::user::UserInfo;
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Deserialize)]
struct StoredRole {
    #[serde(default, deserialize_with = "nullable")]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredBinding {
    #[serde(default, deserialize_with = "nullable")]
    subjects: Vec<Subject>,
    role_ref: RoleRef,
}

#[derive(Debug, Deserialize)]
struct Subject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The role granted by a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

/// A binding with its subjects.
#[derive(Debug)]
struct Binding {
    /// `name`, or `namespace/name`.
    key: Box<str>,
    role: RoleRef,
    /// Key of the role in its table.
    role_key: Box<str>,
    /// Keys of the binding in the tables of subjects.
    subjects: Vec<SubjectKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SubjectKey {
    User(Box<str>),
    Group(Box<str>),
}

#[derive(Clone, Debug)]
struct Grant {
    binding: Arc<Binding>,
    reason: Arc<str>,
}

/// Bindings of one scope, the cluster or a namespace, by subject.
#[derive(Debug, Default)]
struct Scope {
    users: HashMap<Box<str>, Vec<Grant>>,
    groups: HashMap<Box<str>, Vec<Grant>>,
    bindings: HashMap<Box<str>, Arc<Binding>>,
}

/// The four kinds of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    ClusterRoles,
    ClusterRoleBindings,
    Roles,
    RoleBindings,
}

#[derive(Debug, Default)]
pub struct Policy {
    cluster_roles: HashMap<Box<str>, Arc<[Rule]>>,
    /// By `namespace/name`.
    roles: HashMap<Box<str>, Arc<[Rule]>>,
    cluster: Scope,
    namespaces: HashMap<Box<str>, Scope>,
}

impl Policy {
    /// Removes everything from one source.
    pub fn clear(&mut self, source: Source) {
        match source {
            Source::ClusterRoles => self.cluster_roles.clear(),
            Source::Roles => self.roles.clear(),
            Source::ClusterRoleBindings => self.cluster = Scope::default(),
            Source::RoleBindings => self.namespaces.clear(),
        }
    }

    /// Adds or updates an object. `key` is `name` or `namespace/name`.
    pub fn put(&mut self, source: Source, key: &str, bytes: &[u8]) {
        // An undecodable object grants nothing, whatever it granted before.
        self.remove(source, key);
        match source {
            Source::ClusterRoles | Source::Roles => match serde_json::from_slice::<StoredRole>(bytes) {
                Ok(role) => {
                    let table =
                        if source == Source::Roles { &mut self.roles } else { &mut self.cluster_roles };
                    table.insert(key.into(), role.rules.into());
                }
                Err(error) => tracing::error!(key, %error, "failed to decode role, it grants nothing"),
            },
            Source::ClusterRoleBindings | Source::RoleBindings => {
                match serde_json::from_slice::<StoredBinding>(bytes) {
                    Ok(binding) => {
                        let namespace = namespace_of(source, key);
                        let scope = match namespace {
                            "" => &mut self.cluster,
                            namespace => self.namespaces.entry(namespace.into()).or_default(),
                        };
                        scope.bind(key, namespace, binding);
                    }
                    Err(error) => {
                        tracing::error!(key, %error, "failed to decode role binding, it grants nothing");
                    }
                }
            }
        }
    }

    pub fn remove(&mut self, source: Source, key: &str) {
        match source {
            Source::ClusterRoles => drop(self.cluster_roles.remove(key)),
            Source::Roles => drop(self.roles.remove(key)),
            Source::ClusterRoleBindings => self.cluster.unbind(key),
            Source::RoleBindings => {
                let namespace = namespace_of(source, key);
                if let Some(scope) = self.namespaces.get_mut(namespace) {
                    scope.unbind(key);
                    if scope.bindings.is_empty() {
                        self.namespaces.remove(namespace);
                    }
                }
            }
        }
    }

    /// Rules of the role that a binding in `namespace` refers to; the error is the reason for their absence.
    pub fn role(&self, role: &RoleRef, namespace: &str) -> Result<&[Rule], String> {
        self.role_at(role, &role.key(namespace))
    }

    fn role_at(&self, role: &RoleRef, key: &str) -> Result<&[Rule], String> {
        let table = match role.kind.as_str() {
            "ClusterRole" => &self.cluster_roles,
            "Role" => &self.roles,
            kind => return Err(format!("unsupported role reference kind: {kind:?}")),
        };
        table.get(key).map(|rules| &**rules).ok_or_else(|| {
            let kind = role.kind.to_ascii_lowercase();
            format!("{kind}.rbac.authorization.k8s.io {:?} not found", role.name)
        })
    }

    /// Visits the rules of every role that the user is bound to in the cluster and in `namespace`. A binding that
    /// matches the user in several ways may be visited several times.
    pub fn visit<'a, T>(
        &'a self,
        user: &UserInfo,
        namespace: &str,
        mut visitor: impl FnMut(&'a str, &'a Arc<str>, Result<&'a [Rule], String>) -> ControlFlow<T>,
    ) -> Option<T> {
        let local = if namespace.is_empty() { None } else { self.namespaces.get(namespace) };
        for scope in std::iter::once(&self.cluster).chain(local) {
            let by_group = user.groups.iter().filter_map(|group| scope.groups.get(group.as_str()));
            for grant in scope.users.get(user.name.as_str()).into_iter().chain(by_group).flatten() {
                let rules = self.role_at(&grant.binding.role, &grant.binding.role_key);
                if let ControlFlow::Break(found) = visitor(&grant.binding.key, &grant.reason, rules) {
                    return Some(found);
                }
            }
        }
        None
    }
}

fn namespace_of(source: Source, key: &str) -> &str {
    match source {
        Source::RoleBindings => key.split_once('/').map_or("", |(namespace, _)| namespace),
        _ => "",
    }
}

impl Scope {
    fn bind(&mut self, key: &str, namespace: &str, stored: StoredBinding) {
        let mut reasons: Vec<(SubjectKey, String)> = Vec::new();
        for subject in &stored.subjects {
            let Some(who) = subject.key(namespace) else { continue };
            if !reasons.iter().any(|(known, _)| *known == who) {
                reasons.push((who, reason(key, namespace, &stored.role_ref, subject)));
            }
        }
        let subjects = reasons.iter().map(|(who, _)| who.clone()).collect();
        let role_key = stored.role_ref.key(namespace).into();
        let binding = Arc::new(Binding { key: key.into(), role: stored.role_ref, role_key, subjects });
        for (who, reason) in reasons {
            let grant = Grant { binding: binding.clone(), reason: reason.into() };
            match who {
                SubjectKey::User(name) => self.users.entry(name).or_default().push(grant),
                SubjectKey::Group(name) => self.groups.entry(name).or_default().push(grant),
            }
        }
        self.bindings.insert(key.into(), binding);
    }

    fn unbind(&mut self, key: &str) {
        let Some(binding) = self.bindings.remove(key) else { return };
        for who in &binding.subjects {
            let (table, name) = match who {
                SubjectKey::User(name) => (&mut self.users, name),
                SubjectKey::Group(name) => (&mut self.groups, name),
            };
            if let Some(grants) = table.get_mut(name) {
                grants.retain(|grant| !Arc::ptr_eq(&grant.binding, &binding));
                if grants.is_empty() {
                    table.remove(name);
                }
            }
        }
    }
}

impl RoleRef {
    fn key(&self, namespace: &str) -> String {
        if self.kind == "Role" { format!("{namespace}/{}", self.name) } else { self.name.clone() }
    }
}

impl Subject {
    /// Key of a subject; `None` if it is invalid. Service accounts are users with a prefixed name.
    fn key(&self, binding_namespace: &str) -> Option<SubjectKey> {
        match self.kind.as_str() {
            "User" => Some(SubjectKey::User(self.name.as_str().into())),
            "Group" => Some(SubjectKey::Group(self.name.as_str().into())),
            "ServiceAccount" => {
                let namespace = self.namespace_in(binding_namespace);
                let user = || format!("system:serviceaccount:{namespace}:{}", self.name);
                (!namespace.is_empty()).then(|| SubjectKey::User(user().into()))
            }
            _ => None,
        }
    }

    fn namespace_in<'a>(&'a self, binding_namespace: &'a str) -> &'a str {
        if self.namespace.is_empty() { binding_namespace } else { &self.namespace }
    }
}

fn reason(key: &str, namespace: &str, role: &RoleRef, subject: &Subject) -> String {
    let who = match subject.kind.as_str() {
        "ServiceAccount" => format!("{}/{}", subject.name, subject.namespace_in(namespace)),
        _ => subject.name.clone(),
    };
    let (kind, binding) = match key.split_once('/') {
        Some((namespace, name)) => ("RoleBinding", format!("{name}/{namespace}")),
        None => ("ClusterRoleBinding", key.to_owned()),
    };
    let RoleRef { kind: role_kind, name: role_name, .. } = role;
    format!("RBAC: allowed by {kind} {binding:?} of {role_kind} {role_name:?} to {} {who:?}", subject.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: &[u8] = br#"{"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}"#;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
    }

    fn reasons(policy: &Policy, user: &UserInfo, namespace: &str) -> Vec<String> {
        let mut found = Vec::new();
        policy.visit(user, namespace, |_, reason, rules| {
            found.push(match rules {
                Ok(_) => reason.to_string(),
                Err(why) => why,
            });
            ControlFlow::<()>::Continue(())
        });
        found
    }

    fn binding(role: &str, subjects: &str) -> Vec<u8> {
        format!(
            r#"{{"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"{role}"}},"subjects":{subjects}}}"#
        )
        .into_bytes()
    }

    #[test]
    fn policy_bindings_are_added_and_removed() {
        let mut policy = Policy::default();
        let alice = user("alice", &["devs"]);
        let sa = user("system:serviceaccount:n:robot", &[]);
        policy.put(Source::Roles, "n/reader", READER);
        let subjects = r#"[{"kind":"Group","name":"devs"},{"kind":"ServiceAccount","name":"robot"},{"kind":"Robot","name":"x"}]"#;
        policy.put(Source::RoleBindings, "n/b", &binding("reader", subjects));
        assert_eq!(
            reasons(&policy, &alice, "n"),
            [r#"RBAC: allowed by RoleBinding "b/n" of Role "reader" to Group "devs""#]
        );
        assert_eq!(
            reasons(&policy, &sa, "n"),
            [r#"RBAC: allowed by RoleBinding "b/n" of Role "reader" to ServiceAccount "robot/n""#]
        );
        assert!(reasons(&policy, &alice, "m").is_empty());
        assert!(reasons(&policy, &alice, "").is_empty());

        policy.remove(Source::Roles, "n/reader");
        assert_eq!(reasons(&policy, &alice, "n"), [r#"role.rbac.authorization.k8s.io "reader" not found"#]);

        policy.put(Source::RoleBindings, "n/b", &binding("reader", "null"));
        assert!(reasons(&policy, &alice, "n").is_empty());
        policy.put(Source::RoleBindings, "n/b", &binding("reader", subjects));
        policy.put(Source::RoleBindings, "n/b", b"rubbish");
        assert!(reasons(&policy, &alice, "n").is_empty());
        assert!(policy.namespaces.is_empty());
    }
}
