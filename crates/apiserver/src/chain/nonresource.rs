//! Non-resource endpoints: discovery, version, OpenAPI, health, metrics.

use super::Chain;
use crate::context::Context;
use crate::discovery::{self, Document};
use crate::wire::negotiate::{Accepted, Encoding, Forms, Offers, accept, accepts_only};
use crate::wire::reply::{self, Reply};
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderValue, Method};
use machinery::Value;
use machinery::status::{Details, Status};

impl Chain {
    /// Removes the metrics of resources that are no longer served.
    pub(super) fn forget_unserved(&self) {
        let catalogue = self.rest.registry.catalogue();
        self.request_metrics.retain_served(&catalogue);
        if let Some(watches) = &self.rest.watch_metrics {
            watches.retain_served(&catalogue);
        }
    }

    pub(super) async fn nonresource(&self, context: &Context) -> Reply {
        if let Some(reply) = self.health(context).await {
            return reply;
        }
        let path = &*context.path;
        if path.starts_with("//") {
            return reply::page_not_found();
        }
        if let Some(reply) = self.metrics_page(path) {
            return reply;
        }
        if let Some(reply) = self.journal(context) {
            return reply;
        }
        if let Some(reply) = self.debug(context).await {
            return reply;
        }
        if let Some(reply) = self.page(context) {
            return reply;
        }
        if let Some(reply) = self.openid(context).await {
            return reply;
        }
        if path == "/openapi/v2" || path == "/openapi/v3" || path.starts_with("/openapi/v3/") {
            return self.openapi(context).await;
        }
        self.discovery(context)
    }

    /// `/metrics` and `/metrics/slis`.
    fn metrics_page(&self, path: &str) -> Option<Reply> {
        if path == "/metrics" && self.catalogue_changes.take() {
            self.forget_unserved();
        }
        let encoded = match path {
            "/metrics" => self.metrics.encode(),
            "/metrics/slis" => self.health_metrics.encode(),
            _ => return None,
        };
        Some(match encoded {
            Ok(text) => {
                reply::with_type(200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
            }
            Err(error) => reply::status(&Status::internal(error), None),
        })
    }

    /// The list of paths, the version and the discovery documents.
    fn discovery(&self, context: &Context) -> Reply {
        let path = &*context.path;
        let discovery = &context.catalogue.discovery;
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let value = match parts.as_slice() {
            [""] => return json(&discovery.root_paths(), context),
            ["version"] => {
                return match accepts_only(&context.headers, Encoding::Json.media_type()) {
                    Ok(()) => json(&discovery::version(), context),
                    Err(status) => self.refuse(context, &status),
                };
            }
            ["api"] => {
                if let Some(reply) = aggregated(context, discovery.aggregated_core()) {
                    return reply;
                }
                Some(discovery.api_versions())
            }
            ["apis"] => {
                if let Some(reply) = aggregated(context, discovery.aggregated_groups()) {
                    return reply;
                }
                Some(discovery.group_list())
            }
            ["api", version] => discovery.resource_list("", version),
            ["apis", group] => discovery.group(group),
            ["apis", group, version] => discovery.resource_list(group, version),
            _ => return reply::page_not_found(),
        };
        let Some(value) = value else {
            return match parts.as_slice() {
                ["apis", group, ..] if !discovery.has_group(group) => reply::page_not_found(),
                _ => self.refuse(context, &Status::no_such_path()),
            };
        };
        if context.method != Method::GET {
            let status = Status::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
            .with_details(Details::default());
            return self.refuse(context, &status);
        }
        negotiated(&value, context)
    }
}

/// A document as indented JSON.
fn json(value: &Value, context: &Context) -> Reply {
    let accepted = Accepted::plain(Encoding::Json, true);
    reply::finish(200, &accepted, discovery::document(value, true).into(), context)
}

/// A discovery document in the encoding the client accepts.
fn negotiated(value: &Value, context: &Context) -> Reply {
    let offers = Offers { cbor: false, forms: Forms::None, streams: false, protobuf: true };
    let outcome = accept(&context.headers, context.query.get("pretty"), offers).and_then(|accepted| {
        match accepted.encoding {
            Encoding::Json => {
                let body = discovery::document(value, accepted.pretty);
                Ok(reply::finish(200, &accepted, body.into(), context))
            }
            _ => reply::value(200, value, &accepted, context),
        }
    });
    outcome.unwrap_or_else(|status| reply::status(&status, None))
}

/// Aggregated discovery, if the client prefers it to the plain form.
fn aggregated(context: &Context, document: &Document) -> Option<Reply> {
    let header = context.headers.get(ACCEPT)?.to_str().ok()?;
    let clause = header.split(',').map(str::trim).next()?;
    let wanted = clause.starts_with("application/json")
        && clause.contains("g=apidiscovery.k8s.io")
        && clause.contains("as=APIGroupDiscoveryList")
        && clause.contains("v=v2")
        && !clause.contains("v=v2beta1");
    if !wanted {
        return None;
    }
    let known = context.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let fresh = known.is_some_and(|tag| document.matches(tag));
    let mut reply = if fresh {
        reply::with_type(304, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "")
    } else {
        reply::finish_typed(
            200,
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            document.json.clone(),
            context,
        )
    };
    let headers = reply.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", document.etag)) {
        headers.insert(ETAG, tag);
    }
    headers.append(VARY, HeaderValue::from_static("Accept"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("public"));
    Some(reply)
}
