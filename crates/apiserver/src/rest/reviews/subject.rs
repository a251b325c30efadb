//! SelfSubjectReview: attributes of the authenticated user.

use crate::context::Context;
use crate::registry::metadata;
use machinery::Value;
use machinery::status::Result;
use serde_json::json;

pub async fn own(context: &Context) -> Result<Value> {
    Ok(json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "SelfSubjectReview",
        "metadata": {"creationTimestamp": metadata::now()},
        "status": {"userInfo": context.user.to_value()},
    }))
}
