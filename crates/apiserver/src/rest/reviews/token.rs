//! TokenReview: whose token is this, and is it meant for me?

use crate::rest::Rest;
use machinery::Value;
use machinery::status::{Result, Status};
use serde_json::json;

pub async fn review(rest: &Rest, mut review: Value) -> Result<Value> {
    let spec = &review["spec"];
    let token = spec["token"].as_str().unwrap_or("");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let own = &rest.authentication.service_accounts.config.audiences;
    let wanted = if audiences.is_empty() { own } else { &audiences };
    // A header is how the token would come: what no header can carry is no token.
    let token = token.split(' ').next().unwrap_or("");
    let status = match rest.authentication.review(token, Some(wanted)).await {
        Ok(found) => {
            // A token that does not say whom it is for is for this server.
            let given = if found.audiences.is_empty() { own } else { &found.audiences };
            let common: Vec<&String> = given.iter().filter(|audience| wanted.contains(audience)).collect();
            if common.is_empty() {
                return Err(Status::internal("error validating audiences"));
            }
            json!({"authenticated": true, "user": found.user.to_value(), "audiences": common})
        }
        Err(why) => json!({"user": {}, "error": why.0}),
    };
    review["status"] = status;
    Ok(review)
}
