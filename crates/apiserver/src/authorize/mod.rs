//! Authorization chain, one file per authorizer: the first one with an opinion decides; the default is to deny.

mod config;
pub mod escalation;
pub mod node;
mod policy;
mod rbac;
pub mod rules;
mod webhook;

pub use config::{AuthorizationConfig, AuthorizationError, AuthorizationFile, Choice, WebhookFlags};
pub use rbac::{Rbac, aggregate};

use crate::context::Context;
use crate::user::UserInfo;
use arc_swap::ArcSwap;
use base::metrics::{IntCounterVec, Metrics, MetricsError};
use futures_util::future::BoxFuture;
use machinery::status::{Result, Status, qualified};
use rules::Rule;
use std::sync::{Arc, OnceLock};

/// The group whose members are always allowed, even with a broken policy.
pub const MASTERS: &str = "system:masters";

/// Attributes of the request to authorize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub is_resource: bool,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Path of non-resource requests.
    pub path: &'a str,
    /// Field selector of a list or watch, as submitted.
    pub field_selector: &'a str,
    /// Label selector, as submitted.
    pub label_selector: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn of(context: &'a Context) -> Self {
        let info = &context.info;
        // Selectors apply to requests for several objects only.
        let selector = |name: &'static str| match info.verb.as_str() {
            "list" | "watch" | "deletecollection" => context.query.text(name),
            _ => "",
        };
        Self {
            verb: info.verb.as_str(),
            is_resource: info.is_resource,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &context.path,
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    }

    /// Kubernetes' 403 status.
    pub fn forbidden(&self, user: &UserInfo, reason: &str) -> Status {
        let who = &user.name;
        if !self.is_resource {
            let mut why = format!("forbidden: User {who:?} cannot {} path {:?}", self.verb, self.path);
            if !reason.is_empty() {
                why.push_str(&format!(": {reason}"));
            }
            let mut status = Status::forbidden("", "", "", "");
            status.message = why;
            return status;
        }
        let resource = if self.subresource.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        };
        let mut why =
            format!("User {who:?} cannot {} resource {resource:?} in API group {:?}", self.verb, self.group);
        if self.namespace.is_empty() {
            why.push_str(" at the cluster scope");
        } else {
            why.push_str(&format!(" in the namespace {:?}", self.namespace));
        }
        if !reason.is_empty() {
            why.push_str(&format!(": {reason}"));
        }
        let mut status = Status::forbidden(self.group, self.resource, self.name, &why);
        let what = qualified(self.group, self.resource);
        status.message = if self.name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {:?} is forbidden: {why}", self.name)
        };
        status
    }
}

/// Decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed(Arc<str>),
    /// Final, regardless of later authorizers.
    Denied(String),
    /// Later authorizers decide; the reason is reported if none does.
    NoOpinion(String),
}

/// Rules that apply to a user, and the errors of resolving them.
#[derive(Debug, Default)]
pub struct ResolvedRules {
    pub rules: Vec<Rule>,
    pub errors: Vec<String>,
    /// Some permissions cannot be expressed as rules.
    pub incomplete: bool,
}

/// An authorizer. An error means that it cannot decide: the request fails.
pub trait Authorizer: Send + Sync {
    fn authorize<'a>(
        &'a self,
        user: &'a UserInfo,
        attributes: &'a Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>>;

    /// Type and name, for metrics.
    fn label(&self) -> (&'static str, &str);

    /// Reports whether every request that reaches it is allowed.
    fn always_allows(&self) -> bool {
        false
    }

    /// The user's rules in a namespace, as far as they can be enumerated.
    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>>;
}

/// The chain of authorizers. Requests of `system:masters` bypass it.
pub struct Authorization {
    chain: ArcSwap<Vec<Arc<dyn Authorizer>>>,
    node: Arc<node::Node>,
    pub rbac: Arc<Rbac>,
    decisions: OnceLock<IntCounterVec>,
}

impl Authorization {
    /// `choices` are evaluated in order.
    pub fn new(node: node::Node, rbac: Rbac, choices: Vec<Choice>) -> Self {
        let (node, rbac) = (Arc::new(node), Arc::new(rbac));
        let authorization = Self { chain: ArcSwap::default(), node, rbac, decisions: OnceLock::new() };
        authorization.replace(choices);
        authorization
    }

    /// Replaces the authorizers; decisions in progress finish with the previous ones.
    pub fn replace(&self, choices: Vec<Choice>) {
        let chain = choices.into_iter().map(|choice| -> Arc<dyn Authorizer> {
            match choice {
                Choice::Node => self.node.clone(),
                Choice::Rbac => self.rbac.clone(),
                Choice::Other(other) => other,
            }
        });
        self.chain.store(Arc::new(chain.collect()));
    }

    /// Registers the metric of decisions.
    pub fn observe(&self, metrics: &Metrics) -> std::result::Result<(), MetricsError> {
        let decisions = metrics.counters(
            "apiserver_authorization_decisions_total",
            "Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.",
            &["type", "name", "decision"],
        )?;
        let _ = self.decisions.set(decisions);
        Ok(())
    }

    /// The decision; [`Decision::NoOpinion`] only if no authorizer had an opinion.
    pub async fn decide(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<Decision> {
        if user.is_in(MASTERS) {
            return Ok(Decision::Allowed(Arc::default()));
        }
        let mut reasons: Vec<String> = Vec::new();
        for authorizer in self.chain.load_full().iter() {
            match authorizer.authorize(user, attributes).await? {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                decided => {
                    self.count(&**authorizer, &decided);
                    return Ok(decided);
                }
            }
        }
        Ok(Decision::NoOpinion(reasons.join("\n")))
    }

    /// Counts a terminal decision.
    fn count(&self, authorizer: &dyn Authorizer, decision: &Decision) {
        if let Some(decisions) = self.decisions.get() {
            let (kind, name) = authorizer.label();
            let decision = if matches!(decision, Decision::Allowed(_)) { "allowed" } else { "denied" };
            decisions.with_label_values(&[kind, name, decision]).inc();
        }
    }

    /// Returns 403 unless the user is allowed.
    pub async fn check(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<()> {
        if user.is_in(MASTERS) {
            return Ok(());
        }
        match self.decide(user, attributes).await? {
            Decision::Allowed(_) => Ok(()),
            Decision::NoOpinion(reason) | Decision::Denied(reason) => {
                Err(attributes.forbidden(user, &reason))
            }
        }
    }

    pub async fn allows(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<bool> {
        Ok(matches!(self.decide(user, attributes).await?, Decision::Allowed(_)))
    }

    /// Reports whether the chain contains AlwaysAllow.
    pub fn always_allows(&self) -> bool {
        self.chain.load().iter().any(|authorizer| authorizer.always_allows())
    }

    /// The user's rules in a namespace, from all authorizers.
    pub async fn rules(&self, user: &UserInfo, namespace: &str) -> Result<ResolvedRules> {
        let mut found = ResolvedRules::default();
        for authorizer in self.chain.load_full().iter() {
            let more = authorizer.rules(user, namespace).await?;
            found.rules.extend(more.rules);
            found.errors.extend(more.errors);
            found.incomplete |= more.incomplete;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_messages_match_kubernetes() {
        let alice = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
        let pods = Attributes { verb: "list", is_resource: true, resource: "pods", ..Attributes::default() };
        for (attributes, reason, want) in [
            (
                pods,
                "",
                r#"pods is forbidden: User "alice" cannot list resource "pods" in API group "" at the cluster scope"#,
            ),
            (
                Attributes { verb: "get", namespace: "n", name: "x", subresource: "log", ..pods },
                "",
                r#"pods "x" is forbidden: User "alice" cannot get resource "pods/log" in API group "" in the namespace "n""#,
            ),
            (
                Attributes { group: "apps", resource: "deployments", namespace: "n", ..pods },
                "RBAC: gone",
                r#"deployments.apps is forbidden: User "alice" cannot list resource "deployments" in API group "apps" in the namespace "n": RBAC: gone"#,
            ),
            (
                Attributes { verb: "get", path: "/metrics", ..Attributes::default() },
                "",
                r#"forbidden: User "alice" cannot get path "/metrics""#,
            ),
        ] {
            let status = attributes.forbidden(&alice, reason);
            assert_eq!((status.code, status.message.as_str()), (403, want));
        }
    }
}
