//! Resource requests: from route and verb to the registry and back to a response.
//!
//! One file per group of verbs; subresources with their own logic have a file each.

#[cfg(test)]
mod authorization_tests;
pub mod component_status;
pub mod connect;
mod delete;
#[cfg(test)]
mod hostile_tests;
mod read;
mod reviews;
#[cfg(test)]
mod subresource_authorization_tests;
mod subresources;
mod watch;
mod watch_metrics;
mod write;

pub use watch_metrics::WatchMetrics;

use crate::authenticate::Authentication;
use crate::context::Context;
use crate::registry::{Registry, Served, Subresource, WriteContext};
use crate::request_info::Verb;
use crate::serve::RequestBody;
use crate::wire::decode::{self, Expected};
use crate::wire::negotiate::{Accepted, Encoding, Forms, Offers, accept, content_type};
use crate::wire::options::{WriteKind, WriteOptions};
use crate::wire::reply::Reply;
use api::kind::Scope;
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use machinery::Value;
use machinery::status::{Details, Result, Status};
use std::sync::Arc;

/// Limits and switches of resource requests.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request body.
    pub max_body_bytes: usize,
    /// True if CBOR is offered and accepted.
    pub cbor: bool,
}

/// Serves resource requests.
pub struct Rest {
    pub registry: Arc<Registry>,
    pub authentication: Arc<Authentication>,
    pub limits: Limits,
    pub connections: connect::Connections,
    pub components: component_status::ComponentChecks,
    pub watch_metrics: Option<WatchMetrics>,
}

/// Result of routing: resource and subresource.
struct Route<'a> {
    served: Arc<Served>,
    /// Index into the resource's subresources.
    subresource: Option<usize>,
    context: &'a Context,
}

impl Route<'_> {
    fn subresource(&self) -> Option<&Subresource> {
        self.served.subresources.get(self.subresource?)
    }

    /// Facts of the subresource, if the route has one with a handler.
    fn facts(&self) -> Option<&'static api::subresources::Subresource> {
        self.subresource()?.facts
    }
}

impl Route<'_> {
    /// Returns 405 for a verb that the resource does not have, or that fits neither its path nor its method.
    fn check_verb(&self, named: bool) -> Result<()> {
        let (info, method) = (&self.context.info, &self.context.method);
        let row = self.subresource();
        let fits = match info.verb {
            Verb::Get | Verb::List | Verb::Watch if *method == Method::GET => true,
            // Proxied requests may use methods that objects do not have.
            Verb::Get | Verb::None if matches!(*method, Method::HEAD | Method::OPTIONS) => {
                row.is_some_and(|row| row.name == "proxy")
            }
            Verb::Create => !named || row.is_some(),
            Verb::Update | Verb::Patch => named,
            Verb::Delete | Verb::DeleteCollection => true,
            _ => false,
        };
        let wanted = if info.verb == Verb::None { Verb::Get } else { info.verb };
        let verbs = row.map_or(self.served.verbs, |row| row.verbs);
        // Writes to a namespaced resource need its namespace.
        let reaches =
            !self.served.namespaced() || info.in_namespace || matches!(info.verb, Verb::List | Verb::Watch);
        if fits && verbs.contains(wanted) && reaches {
            return Ok(());
        }
        let kind = &self.served.kind;
        if !self.served.rules.is_custom() {
            return Err(method_not_allowed());
        }
        let resource = machinery::status::qualified(kind.group(), kind.resource());
        let message = format!("{} is not supported on resources of kind {resource:?}", info.verb.as_str());
        let details = Details {
            group: kind.group().to_owned(),
            kind: kind.resource().to_owned(),
            ..Details::default()
        };
        Err(Status::new(405, "MethodNotAllowed", message).with_details(details))
    }
}

pub fn method_not_allowed() -> Status {
    Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        .with_details(Details::default())
}

impl Rest {
    /// Handles a resource request. The accepted encoding is returned with errors, too.
    pub async fn handle(&self, context: &Context, body: RequestBody) -> (Result<Reply>, Option<Accepted>) {
        if let Some(review) = reviews::Review::find(context) {
            return Box::pin(self.review(review, context, body)).await;
        }
        let route = match self.route(context) {
            Ok(route) => route,
            Err(status) => {
                let offers =
                    Offers { cbor: self.limits.cbor, forms: Forms::All, streams: false, protobuf: true };
                return (Err(status), accept(&context.headers, None, offers).ok());
            }
        };
        let warn = || {
            if let Some(warning) = route.served.rules.deprecation() {
                context.record.warn(warning);
            }
        };
        let offers = Offers {
            cbor: self.limits.cbor,
            forms: if route.facts().is_none_or(|facts| facts.tabular) { Forms::All } else { Forms::Metadata },
            streams: matches!(context.info.verb, Verb::List | Verb::Watch) && route.subresource.is_none(),
            protobuf: !route.served.rules.is_custom(),
        };
        // The backend of a connection negotiates for itself.
        let none = http::HeaderMap::new();
        let connects = route.facts().is_some_and(|facts| facts.streaming);
        let headers = if connects { &none } else { &context.headers };
        let mut accepted = match accept(headers, context.query.get("pretty"), offers) {
            Ok(accepted) => accepted,
            Err(status) => {
                // An unsupported media type is rejected before the kind is checked, an unsupported form of one after.
                if status.details.is_none() {
                    warn();
                }
                let errors = Offers { forms: Forms::None, protobuf: true, ..offers };
                return (Err(status), accept(headers, None, errors).ok());
            }
        };
        warn();
        if connects {
            let wanted = accept(&context.headers, None, offers);
            accepted.errors = wanted.map_or(Encoding::Json, |wanted| wanted.errors);
        }
        (self.dispatch(&route, &accepted, body).await, Some(accepted))
    }

    fn route<'a>(&self, context: &'a Context) -> Result<Route<'a>> {
        let info = &context.info;
        if info.proxy_prefix {
            return Err(Status::no_such_path());
        }
        if info.watch_prefix && context.method != Method::GET {
            return Err(method_not_allowed());
        }
        if is_legacy_binding(context) {
            // Same as the pod's subresource, except for the name in the path.
            let served = Arc::clone(self.registry.builtin("", "v1", "pods")?);
            let subresource = served.subresources.iter().position(|row| row.name == "binding");
            return Ok(Route { served, subresource, context });
        }
        let served = context.catalogue.served(&info.group, &info.version, &info.resource);
        let served = served.ok_or_else(|| match is_virtual(context) {
            // Objects of these kinds cannot be read by name.
            true if path_name(context).is_empty() && reaches_scope(context) => method_not_allowed(),
            _ => Status::no_such_path(),
        })?;
        let cluster = !served.namespaced();
        if cluster && info.in_namespace {
            return Err(Status::no_such_path());
        }
        let named = !path_name(context).is_empty();
        if !cluster && !info.in_namespace && named {
            return Err(Status::no_such_path());
        }
        let subresource = match info.subresource.as_str() {
            "" => None,
            name => {
                let at = served.subresources.iter().position(|row| row.name == name);
                let at = at.filter(|_| info.rest.is_empty() || name == "proxy");
                Some(at.ok_or_else(|| match served.rules.is_custom() {
                    true => served.not_found(&info.name),
                    false => Status::no_such_path(),
                })?)
            }
        };
        let route = Route { served: Arc::clone(served), subresource, context };
        route.check_verb(named)?;
        Ok(route)
    }

    async fn dispatch(&self, route: &Route<'_>, accepted: &Accepted, body: RequestBody) -> Result<Reply> {
        // The futures of writes are large: boxing them keeps those of other requests, and the connection tasks,
        // small.
        if let Some(subresource) = route.subresource() {
            return Box::pin(self.subresource(route, subresource, accepted, body)).await;
        }
        match route.context.info.verb {
            Verb::Get if route.is_component_status() => Box::pin(self.component(route, accepted)).await,
            Verb::List if route.is_component_status() => {
                Box::pin(self.list_components(route, accepted)).await
            }
            Verb::Get => self.get(route, accepted).await,
            Verb::List => Box::pin(self.list(route, accepted)).await,
            Verb::Watch => Box::pin(self.watch(route, accepted)).await,
            Verb::Create => Box::pin(self.create(route, accepted, body)).await,
            Verb::Update => Box::pin(self.update(route, accepted, body)).await,
            Verb::Patch => Box::pin(self.patch(route, accepted, body)).await,
            Verb::Delete => Box::pin(self.delete(route, accepted, body)).await,
            Verb::DeleteCollection => Box::pin(self.delete_collection(route, accepted, body)).await,
            _ => Err(method_not_allowed()),
        }
    }

    /// Options and object of a request for a kind that is not stored.
    async fn read_unstored(
        &self,
        context: &Context,
        body: RequestBody,
        kind: WriteKind,
        expected: Expected<'_>,
    ) -> Result<(WriteOptions, Value)> {
        let encoding = content_type(&context.headers, self.limits.cbor)?;
        let bytes = self.read_body(body).await?;
        let options = WriteOptions::read(&context.query, kind)?;
        let object = decode::object(&bytes, encoding, expected, options.field_validation, &context.record)?;
        Ok((options, object))
    }

    /// Reads the whole body; 413 if it is too large.
    pub async fn read_body(&self, body: RequestBody) -> Result<Bytes> {
        use http_body::Body;
        let limit = self.limits.max_body_bytes;
        let too_large = || Status::too_large(format!("Request entity too large: limit is {limit}"));
        let mut body = body;
        if body.size_hint().lower() > limit as u64 {
            discard(body, limit).await;
            return Err(too_large());
        }
        let mut whole: Option<Bytes> = None;
        let mut gathered = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| Status::bad_request(format!("the request body ended early: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if gathered.len() + whole.as_ref().map_or(0, Bytes::len) + data.len() > limit {
                discard(body, limit).await;
                return Err(too_large());
            }
            match whole.take() {
                // Most bodies are one frame and need no copy.
                None if gathered.is_empty() => whole = Some(data),
                None => gathered.extend_from_slice(&data),
                Some(first) => {
                    gathered.extend_from_slice(&first);
                    gathered.extend_from_slice(&data);
                }
            }
        }
        Ok(whole.unwrap_or_else(|| gathered.freeze()))
    }

    fn write_context<'a>(&self, route: &Route<'a>, field_manager: &str, dry_run: bool) -> WriteContext<'a> {
        let context = route.context;
        WriteContext {
            user: &context.user,
            verb: context.info.verb.as_str(),
            manager: context.manager(field_manager),
            dry_run,
            subresource: &context.info.subresource,
            namespace: if route.served.namespaced() { &context.info.namespace } else { "" },
            record: &context.record,
            is_server: false,
        }
    }
}

/// Reads more of a rejected body: a client that is still sending would not see the response. Beyond the limit the
/// connection is closed.
async fn discard(mut body: RequestBody, limit: usize) {
    let mut left = limit.saturating_mul(2);
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        match left.checked_sub(data.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Reports whether the resource is a review, which is not stored.
fn is_virtual(context: &Context) -> bool {
    let info = &context.info;
    info.subresource.is_empty() && context.catalogue.shows(&info.group, &info.version, &info.resource)
}

/// Reports whether the path has the scope of such a resource: namespaced ones exist only in a namespace.
fn reaches_scope(context: &Context) -> bool {
    let info = &context.info;
    api::resources::RESOURCES
        .iter()
        .find(|row| (row.group, row.version, row.resource) == (&*info.group, &*info.version, &*info.resource))
        .is_some_and(|row| row.scope == Scope::Cluster || info.in_namespace)
}

/// Reports whether the path has another scope than its custom resource. Kubernetes' server of custom resources does not
/// handle such paths.
pub fn is_out_of_scope(context: &Context) -> bool {
    let info = &context.info;
    let served = context.catalogue.served(&info.group, &info.version, &info.resource);
    served.is_some_and(|served| {
        served.rules.is_custom()
            && match served.namespaced() {
                true => !info.in_namespace && !matches!(info.verb, Verb::List | Verb::Watch),
                false => info.in_namespace,
            }
    })
}

/// A binding sent to `bindings` instead of the pod.
fn is_legacy_binding(context: &Context) -> bool {
    let info = &context.info;
    (&*info.group, &*info.version, &*info.resource) == ("", "v1", "bindings")
        && context.method == Method::POST
        && info.in_namespace
        && info.name.is_empty()
        && info.subresource.is_empty()
}

/// Name in the path; a name from a field selector does not count.
fn path_name(context: &Context) -> &str {
    let info = &context.info;
    match info.verb {
        Verb::List | Verb::DeleteCollection => "",
        Verb::Watch if !info.watch_prefix => "",
        _ => &info.name,
    }
}
