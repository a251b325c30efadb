//! Service account issuer discovery: lets relying parties verify this cluster's service account tokens.

use super::Chain;
use crate::context::Context;
use crate::wire::negotiate::accepts_only;
use crate::wire::reply::{self, Reply};
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Method};

impl Chain {
    /// OpenID configuration and key set; `None` for any other path.
    pub(super) async fn openid(&self, context: &Context) -> Option<Reply> {
        let accounts = &self.rest.authentication.service_accounts;
        let path = &*context.path;
        if !matches!(path, "/.well-known/openid-configuration" | "/openid/v1/jwks") {
            return None;
        }
        if context.method != Method::GET {
            return Some(reply::status(&crate::rest::method_not_allowed(), None));
        }
        let keys = path == "/openid/v1/jwks";
        let media_type = if keys { "application/jwk-set+json" } else { "application/json" };
        if let Err(status) = accepts_only(&context.headers, media_type) {
            return Some(self.refuse(context, &status));
        }
        let document = if keys {
            match accounts.keys().await {
                Ok(keys) => keys.jwks(),
                Err(status) => return Some(reply::status(&status, None)),
            }
        } else {
            let advertise = context.catalogue.discovery.server_address().to_owned();
            match accounts.discovery(&advertise).await {
                Ok(document) => document,
                Err(status) => return Some(reply::status(&status, None)),
            }
        };
        let mut reply = reply::with_type(200, media_type, document.to_string());
        let age = format!("public, max-age={}", accounts.keys_max_age());
        if let Ok(age) = HeaderValue::from_str(&age) {
            reply.headers_mut().insert(CACHE_CONTROL, age);
        }
        Some(reply)
    }
}
