//! The API `metrics.k8s.io/v1beta1`: paths, selectors, representations.

mod body;
mod discovery;
mod negotiate;
mod openapi;
mod query;
mod table;
#[cfg(test)]
mod tests;

pub use discovery::{GROUP, RESOURCES, ServedResource, VERSION};
pub use query::Query;

use crate::record::{NodeRecord, PodRecord};
use crate::storage::Storage;
use base::clock::Clock;
use body::{NodeMetrics, PodMetrics};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use machinery::status::{Result, Status};
use negotiate::{Form, accepted};
use prometheus::Histogram;
use query::Selection;
use runtime::Cache;
use serde::Serialize;
use std::sync::Arc;

/// A response with its whole body.
pub type Answer = Response<Bytes>;

const JSON: &str = "application/json";

/// The API over caches and storage.
pub struct Api {
    pub storage: Arc<Storage>,
    pub pods: Cache<PodRecord>,
    pub nodes: Cache<NodeRecord>,
    pub clock: Clock,
    /// Age of the usage that is served.
    pub freshness: Histogram,
}

/// The request that a path stands for.
#[derive(Debug, PartialEq, Eq)]
enum Target<'a> {
    Nodes,
    Node(&'a str),
    /// Pods of a namespace, or of all if it is empty.
    Pods(&'a str),
    Pod(&'a str, &'a str),
}

fn target(path: &str) -> Option<Target<'_>> {
    let rest = path.strip_prefix("/apis/metrics.k8s.io/v1beta1/")?;
    let mut parts = rest.trim_end_matches('/').split('/');
    let parts = [parts.next(), parts.next(), parts.next(), parts.next(), parts.next()];
    match parts {
        [Some("nodes"), None, ..] => Some(Target::Nodes),
        [Some("nodes"), Some(name), None, ..] => Some(Target::Node(name)),
        [Some("pods"), None, ..] => Some(Target::Pods("")),
        [Some("namespaces"), Some(ns), Some("pods"), None, _] => Some(Target::Pods(ns)),
        [Some("namespaces"), Some(ns), Some("pods"), Some(name), None] => Some(Target::Pod(ns, name)),
        _ => None,
    }
}

impl Api {
    /// Answers a request whose user may make it.
    pub fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer {
        let outcome = match target(uri.path()) {
            Some(target) => self.resource(method, &target, uri, headers),
            None if !matches!(*method, Method::GET | Method::HEAD) => Err(Status::no_such_path()),
            None => discovery::document(uri.path()).or_else(|| openapi::document(uri.path())).map_or_else(
                || Err(Status::no_such_path()),
                |document| Ok(reply(StatusCode::OK, JSON, document.to_string().into())),
            ),
        };
        outcome.unwrap_or_else(|status| refusal(&status))
    }

    fn resource(
        &self,
        method: &Method,
        target: &Target<'_>,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Answer> {
        let query = Query::parse(uri.query());
        let is_list = matches!(target, Target::Nodes | Target::Pods(_));
        let resource = if matches!(target, Target::Nodes | Target::Node(_)) { "nodes" } else { "pods" };
        let verb = match *method {
            Method::GET | Method::HEAD if query.flag("watch") && is_list => "watch",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return Err(Status::no_such_path()),
        };
        if verb != "get" {
            return Err(Status::method_not_allowed(GROUP, resource, verb));
        }
        let form = accepted(headers)?;
        let now = self.clock.now();
        match *target {
            Target::Nodes => {
                let selection = Selection::of(&query)?;
                let mut nodes = self.nodes.all();
                nodes.retain(|node| selection.matches(&node.metadata, &node.labels));
                nodes.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
                let items = nodes.iter().filter_map(|node| self.node(node, now));
                let items: Vec<NodeMetrics<'_>> = items.collect();
                written(form, &query, &items, body::list("NodeMetricsList", &items), table::of_nodes)
            }
            Target::Node(name) => {
                let node = self.nodes.get("", name);
                let node = node.ok_or_else(|| Status::not_found("", "nodes", name))?;
                let found = self.node(&node, now);
                let found = found.ok_or_else(|| Status::not_found(GROUP, "nodes", name))?;
                let found = [found.typed()];
                written(form, &query, &found, &found[0], table::of_nodes)
            }
            Target::Pods(ns) => {
                let selection = Selection::of(&query)?;
                let mut pods = if ns.is_empty() { self.pods.all() } else { self.pods.list(ns) };
                pods.retain(|pod| selection.matches(&pod.metadata, &pod.labels));
                let key = |pod: &Arc<PodRecord>| {
                    let metadata = &pod.metadata;
                    (metadata.namespace.as_deref().unwrap_or_default().to_owned(), metadata.name.clone())
                };
                pods.sort_by_cached_key(key);
                let items: Vec<PodMetrics<'_>> = pods.iter().filter_map(|pod| self.pod(pod, now)).collect();
                written(form, &query, &items, body::list("PodMetricsList", &items), table::of_pods)
            }
            Target::Pod(ns, name) => {
                let pod = self.pods.get(ns, name).ok_or_else(|| Status::not_found("", "pods", name))?;
                let qualified = format!("{ns}/{name}");
                let found = self.pod(&pod, now);
                let found = found.ok_or_else(|| Status::not_found(GROUP, "pods", &qualified))?;
                let found = [found.typed()];
                written(form, &query, &found, &found[0], table::of_pods)
            }
        }
    }

    fn node<'a>(&self, node: &'a NodeRecord, now: jiff::Timestamp) -> Option<NodeMetrics<'a>> {
        let used = self.storage.node(node.metadata.name.as_deref()?)?;
        self.observe(used.at, now);
        Some(NodeMetrics::new(&node.metadata, &node.labels, &used, now))
    }

    fn pod<'a>(&self, pod: &'a PodRecord, now: jiff::Timestamp) -> Option<PodMetrics<'a>> {
        let metadata = &pod.metadata;
        let (ns, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
        let used = self.storage.pod(&pod.node, ns, name)?;
        self.observe(used.at, now);
        Some(PodMetrics::new(metadata, &pod.labels, used, now))
    }

    /// Observes the age of usage measured at `at`, in nanoseconds since the epoch.
    fn observe(&self, at: i64, now: jiff::Timestamp) {
        let measured = jiff::Timestamp::from_nanosecond(i128::from(at));
        if let Ok(measured) = measured {
            self.freshness.observe(now.duration_since(measured).as_secs_f64());
        }
    }
}

/// Writes what was found as itself or as a table.
fn written<T: Serialize>(
    form: Form,
    query: &Query,
    items: &[T],
    whole: impl Serialize,
    table: fn(&[T], Form, &Query) -> Result<serde_json::Value>,
) -> Result<Answer> {
    let text = match form {
        Form::Object => serde_json::to_vec(&whole),
        Form::Table { .. } => serde_json::to_vec(&table(items, form, query)?),
    };
    let text = text.map_err(|error| Status::internal(&error))?;
    Ok(reply(StatusCode::OK, JSON, text.into()))
}

/// A document as a response.
pub(crate) fn json_reply(body: &serde_json::Value) -> Answer {
    reply(StatusCode::OK, JSON, body.to_string().into())
}

pub(crate) fn reply(code: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// A refusal as the API writes it.
pub fn refusal(status: &Status) -> Answer {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply(code, JSON, status.to_value().to_string().into())
}
