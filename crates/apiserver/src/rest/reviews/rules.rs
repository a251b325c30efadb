//! SelfSubjectRulesReview: permissions of the user in a namespace.

use crate::context::Context;
use crate::rest::Rest;
use machinery::status::{Result, Status};
use machinery::{Map, Value};
use serde_json::json;

pub async fn own(rest: &Rest, context: &Context, review: Value) -> Result<Value> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or("");
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let found = rest.registry.authorization.rules(&context.user, namespace).await?;
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    for rule in found.rules {
        if !rule.resources.is_empty() {
            let mut shown = Map::new();
            shown.insert("verbs".to_owned(), json!(rule.verbs));
            for (field, values) in [
                ("apiGroups", &rule.api_groups),
                ("resources", &rule.resources),
                ("resourceNames", &rule.resource_names),
            ] {
                if !values.is_empty() {
                    shown.insert(field.to_owned(), json!(values));
                }
            }
            resources.push(Value::Object(shown));
        }
        if !rule.non_resource_urls.is_empty() {
            urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": found.incomplete});
    if !found.errors.is_empty() {
        status["evaluationError"] = crate::authorize::aggregate(&found.errors).into();
    }
    Ok(json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "metadata": {},
        "spec": {},
        "status": status,
    }))
}
