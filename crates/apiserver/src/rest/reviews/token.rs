//! TokenReview: authenticates a token and checks its audiences.

use crate::rest::Rest;
use api::value::{Fields, texts};
use machinery::Value;
use machinery::status::{Result, Status};
use serde_json::json;

pub async fn review(rest: &Rest, mut review: Value) -> Result<Value> {
    let spec = &review["spec"];
    let token = spec["token"].as_str().unwrap_or("");
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<String> = texts(spec.items("audiences")).map(str::to_owned).collect();
    let own = &rest.authentication.service_accounts.config.audiences;
    let wanted = if audiences.is_empty() { own } else { &audiences };
    // The token is cut at the first space, as if it were sent in a header.
    let token = token.split(' ').next().unwrap_or("");
    let status = match rest.authentication.review(token, Some(wanted)).await {
        Ok(found) => {
            // A token without audiences is valid for this server's own.
            let given = if found.audiences.is_empty() { own } else { &found.audiences };
            let common: Vec<&String> = given.iter().filter(|audience| wanted.contains(audience)).collect();
            if common.is_empty() {
                return Err(Status::internal("error validating audiences"));
            }
            json!({"authenticated": true, "user": found.user.to_value(), "audiences": common})
        }
        Err(why) => json!({"user": {}, "error": joined_error(&why.0)}),
    };
    review["status"] = status;
    Ok(review)
}

/// Error of an unknown token.
const UNKNOWN: &str = "invalid bearer token";

/// Error text: Kubernetes tries its own loopback token first and joins that error with the others.
fn joined_error(why: &str) -> String {
    let reasons = why.strip_prefix('[').and_then(|why| why.strip_suffix(']')).unwrap_or(why);
    if reasons.split(", ").any(|reason| reason == UNKNOWN) {
        return why.to_owned();
    }
    format!("[{UNKNOWN}, {reasons}]")
}

#[cfg(test)]
mod tests {
    use super::joined_error;

    #[test]
    fn token_errors_are_joined() {
        for (why, text) in [
            ("invalid bearer token", "invalid bearer token"),
            (
                "service account token has expired",
                "[invalid bearer token, service account token has expired]",
            ),
            ("[a, b]", "[invalid bearer token, a, b]"),
            ("[invalid bearer token, b]", "[invalid bearer token, b]"),
        ] {
            assert_eq!(joined_error(why), text);
        }
    }
}
