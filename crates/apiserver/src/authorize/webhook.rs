//! Webhook: a remote server decides, by SubjectAccessReview.
//!
//! Match conditions select the requests that are sent to it; decisions are cached.

use super::{Attributes, Authorizer, Decision, ResolvedRules};
use crate::metrics;
use crate::outbound::Client;
use crate::user::UserInfo;
use crate::webhook_cache::{WebhookCache, hash};
use base::backoff::Backoff;
use expressions::{Environment, Program, Type};
use futures_util::future::BoxFuture;
use machinery::selector::field::{FieldSelector, Term};
use machinery::selector::label::{LabelSelector, Operator, Requirement};
use machinery::status::Result;
use machinery::{Map, Value};
use serde_json::json;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Variables of match conditions: the spec of a SubjectAccessReview.
pub static REQUEST: LazyLock<Environment> = LazyLock::new(|| Environment::new([("request", Type::Dyn)]));
/// Attempts if the remote server fails.
const ATTEMPTS: u32 = 5;
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::MAX).growing_by(3, 2);
/// Decisions on requests with longer texts are not cached.
const MAX_CACHED_TEXT: usize = 10_000;

/// Decision if the remote server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    NoOpinion,
    Deny,
}

pub struct Settings {
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    pub timeout: Duration,
    pub failure_policy: FailurePolicy,
    pub conditions: Vec<Program>,
}

pub struct Webhook {
    name: String,
    client: Client,
    settings: Settings,
    answers: WebhookCache<Decision>,
}

impl Webhook {
    pub fn new(name: &str, client: Client, settings: Settings) -> Self {
        Self { name: name.to_owned(), client, settings, answers: WebhookCache::default() }
    }

    /// Evaluates the match conditions. A false one decides; an error counts only if none is false.
    fn matches(&self, spec: &Value) -> Result<bool, String> {
        let mut errors = Vec::new();
        for condition in &self.settings.conditions {
            match condition.evaluate_bool(&[spec]) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => errors.push(format!(
                    "cel evaluation error: expression '{}' resulted in error: {error}",
                    condition.text()
                )),
            }
        }
        if errors.is_empty() { Ok(true) } else { Err(errors.join(", ")) }
    }

    fn failed(&self, why: &str) -> Decision {
        tracing::warn!(webhook = self.name, why, "authorization webhook failed");
        match self.settings.failure_policy {
            FailurePolicy::NoOpinion => Decision::NoOpinion(why.to_owned()),
            FailurePolicy::Deny => Decision::Denied(why.to_owned()),
        }
    }

    async fn decide(&self, user: &UserInfo, wanted: &Attributes<'_>) -> Decision {
        let spec = spec(user, wanted);
        let begin = Instant::now();
        let matches = self.matches(&spec);
        if let Some(metrics) = metrics::process().filter(|_| !self.settings.conditions.is_empty()) {
            metrics.authorizer_conditions(&self.name, &matches, begin.elapsed());
        }
        match matches {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(why) => return self.failed(&why),
        }
        let key = hash(&spec);
        if let Some(answer) = self.answers.get(&key) {
            return answer;
        }
        let begin = Instant::now();
        let answer = self.send_review(&spec).await;
        if let Some(metrics) = metrics::process() {
            let result = if answer.is_ok() { "success" } else { "error" };
            metrics.authorizer_called(&self.name, result, begin.elapsed());
            if answer.is_err() && matches!(self.settings.failure_policy, FailurePolicy::NoOpinion) {
                metrics.authorizer_fail_open.with_label_values(&[&*self.name, result]).inc();
            }
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return self.failed(&why),
        };
        let long = wanted.name.len() + wanted.path.len() + wanted.namespace.len() > MAX_CACHED_TEXT;
        if !long {
            let allowed = matches!(answer, Decision::Allowed(_));
            let ttl = if allowed { self.settings.authorized_ttl } else { self.settings.unauthorized_ttl };
            self.answers.put(key, answer.clone(), ttl);
        }
        answer
    }

    async fn send_review(&self, spec: &Value) -> Result<Decision, String> {
        let mut spec = spec.clone();
        if self.settings.version == "v1beta1"
            && let Some(groups) = spec.as_object_mut().and_then(|spec| spec.remove("groups"))
        {
            spec["group"] = groups;
        }
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.settings.version),
            "kind": "SubjectAccessReview", "metadata": {}, "spec": spec,
        });
        let mut retry = RETRY;
        let mut attempt = 1;
        let answer = loop {
            match self.client.post(&review, self.settings.timeout).await {
                Ok(answer) => break answer,
                Err(error) if error.is_transient() && attempt < ATTEMPTS => {
                    retry.wait().await;
                    attempt += 1;
                }
                Err(error) => return Err(error.chain()),
            }
        };
        let status = &answer["status"];
        let reason = status["reason"].as_str().unwrap_or("");
        Ok(match (status["allowed"] == true, status["denied"] == true) {
            (true, true) => {
                return Err("webhook subject access review returned both allow and deny response".to_owned());
            }
            (_, true) => Decision::Denied(reason.to_owned()),
            (true, _) => Decision::Allowed(Arc::from(reason)),
            _ => Decision::NoOpinion(reason.to_owned()),
        })
    }
}

/// Spec of the review: empty fields are omitted.
fn spec(user: &UserInfo, wanted: &Attributes<'_>) -> Value {
    let mut spec = Map::new();
    let mut attributes = Map::new();
    let fields: &[(&str, &str)] = &[
        ("namespace", wanted.namespace),
        ("verb", wanted.verb),
        ("group", wanted.group),
        ("version", wanted.version),
        ("resource", wanted.resource),
        ("subresource", wanted.subresource),
        ("name", wanted.name),
    ];
    let (kind, fields) = match wanted.is_resource {
        true => ("resourceAttributes", fields),
        false => ("nonResourceAttributes", &[("path", wanted.path), ("verb", wanted.verb)][..]),
    };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        attributes.insert((*name).to_owned(), (*value).into());
    }
    for (name, requirements) in [
        ("fieldSelector", field_requirements(wanted.field_selector)),
        ("labelSelector", label_requirements(wanted.label_selector)),
    ] {
        if !requirements.is_empty() {
            attributes.insert(name.to_owned(), json!({"requirements": requirements}));
        }
    }
    spec.insert(kind.to_owned(), attributes.into());
    spec.insert("user".to_owned(), user.name.as_str().into());
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.as_str().into());
    }
    spec.into()
}

/// A field selector in the form of SubjectAccessReviews; empty if it is invalid.
fn field_requirements(selector: &str) -> Vec<Value> {
    let terms = FieldSelector::parse(selector).map(|selector| selector.terms).unwrap_or_default();
    let requirement = |term: Term| {
        let operator = if term.equal { "In" } else { "NotIn" };
        json!({"key": term.field, "operator": operator, "values": [term.value]})
    };
    terms.into_iter().map(requirement).collect()
}

/// The same for a label selector. Numeric comparisons cannot be represented.
fn label_requirements(selector: &str) -> Vec<Value> {
    let Ok(selector) = LabelSelector::parse(selector) else { return Vec::new() };
    let requirement = |requirement: &Requirement| {
        let operator = match requirement.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan | Operator::LessThan => return None,
        };
        let mut carried = json!({"key": requirement.key, "operator": operator});
        if !requirement.values.is_empty() {
            carried["values"] = json!(requirement.values);
        }
        Some(carried)
    };
    selector.requirements().iter().filter_map(requirement).collect()
}

impl Authorizer for Webhook {
    fn label(&self) -> (&'static str, &str) {
        ("Webhook", &self.name)
    }

    fn authorize<'a>(
        &'a self,
        user: &'a UserInfo,
        attributes: &'a Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>> {
        Box::pin(async move { Ok(self.decide(user, attributes).await) })
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>> {
        let error = "webhook authorizer does not support user rule resolution".to_owned();
        Box::pin(std::future::ready(Ok(ResolvedRules {
            errors: vec![error],
            incomplete: true,
            ..ResolvedRules::default()
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_selectors_are_sent_as_requirements() {
        let wanted = Attributes {
            verb: "list",
            is_resource: true,
            resource: "pods",
            field_selector: "spec.nodeName=n,metadata.name!=x",
            label_selector: "app in (b,a),!old,tier,size>3",
            ..Attributes::default()
        };
        let spec = spec(&UserInfo::default(), &wanted);
        assert_eq!(
            spec["resourceAttributes"]["fieldSelector"],
            json!({"requirements": [
                {"key": "metadata.name", "operator": "NotIn", "values": ["x"]},
                {"key": "spec.nodeName", "operator": "In", "values": ["n"]},
            ]})
        );
        let labels = spec["resourceAttributes"]["labelSelector"]["requirements"].as_array().expect("a list");
        assert_eq!(labels.len(), 3, "{labels:?}");
        assert!(
            labels.contains(&json!({"key": "app", "operator": "In", "values": ["a", "b"]})),
            "{labels:?}"
        );
        assert!(labels.contains(&json!({"key": "old", "operator": "DoesNotExist"})), "{labels:?}");
        let unreadable = Attributes { field_selector: "nonsense", label_selector: "a in (", ..wanted };
        assert!(
            super::spec(&UserInfo::default(), &unreadable)["resourceAttributes"]["fieldSelector"].is_null()
        );
    }
}
