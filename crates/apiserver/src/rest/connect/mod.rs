//! Subresources that connect the caller with something else: a container's log, a command in it, a port of a pod, a
//! service or a node.
//!
//! The API server decides who may and where to; the bytes of an upgraded connection pass through it untouched.

mod admitted;
mod kubelet_certificate;
mod links;
mod node;
mod page;
mod pod;
mod proxy;
mod service;
mod socket;
mod tag;
mod upstream;

use super::{Rest, Route};
use crate::context::Context;
use crate::reply::Reply;
use crate::serve::RequestBody;
use base::tasks::TaskGroup;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
pub(super) use socket::watch_over_websocket;
pub use upstream::KubeletIdentity;
use upstream::Upstreams;
pub(crate) use upstream::{Passage, Trust, Upstream};

/// Connections to nodes, pods and services.
#[derive(Default)]
pub struct Connections {
    upstreams: Upstreams,
    streams: TaskGroup,
}

impl Connections {
    /// The certificate that kubelets know the API server by.
    pub fn set_kubelet_identity(&self, identity: KubeletIdentity) -> std::result::Result<(), rustls::Error> {
        self.upstreams.set_identity(identity)
    }

    /// Sets the authorities that sign kubelets' serving certificates, in PEM.
    pub fn set_kubelet_authorities(&self, pem: &str) {
        self.upstreams.certificates.set_authorities(pem);
    }

    /// The same, and refuses kubelets whose certificates these authorities did not sign for the address.
    pub fn require_kubelet_authorities(&self, pem: &str) {
        self.upstreams.certificates.require_authorities(pem);
    }

    /// Where connections that have switched protocols live.
    pub(super) fn streams(&self) -> &TaskGroup {
        &self.streams
    }

    /// Ends what is connected.
    pub fn stop(&self) {
        self.streams.abort();
    }
}

impl Rest {
    /// Connects; `None` if the subresource is not one of these.
    pub(super) async fn connect(
        &self,
        route: &Route<'_>,
        subresource: &str,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        self.admit(route, subresource).await?;
        match (route.served.kind.resource(), subresource) {
            ("pods", "log") => self.pod_log(context).await,
            ("pods", "exec") => self.pod_stream(context, "exec", body).await,
            ("pods", "attach") => self.pod_stream(context, "attach", body).await,
            ("pods", "portforward") => self.pod_stream(context, "portForward", body).await,
            ("pods", "proxy") => {
                let upstream = self.pod_address(context).await?;
                self.proxy(context, upstream, body).await
            }
            ("services", "proxy") => {
                let upstream = self.service_address(context).await?;
                self.proxy(context, upstream, body).await
            }
            ("nodes", "proxy") => {
                let upstream = self.node_address(context).await?;
                self.proxy(context, upstream, body).await
            }
            _ => Err(Status::no_such_path()),
        }
    }

    async fn object(&self, resource: &str, namespace: &str, name: &str) -> Result<Value> {
        let served = self.registry.builtin("", "v1", resource)?;
        Ok(self.registry.get(served, namespace, name, "").await?.value())
    }

    /// Sends the caller's request there and passes on what comes back.
    pub(crate) async fn pass(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: Passage,
        body: RequestBody,
    ) -> Result<Reply> {
        self.connections.upstreams.send(context, upstream, passage, body, &self.connections.streams).await
    }
}

/// The text at a path of an object, or nothing.
fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    path.iter().try_fold(object, |value, name| value.get(name)).and_then(Value::as_str).unwrap_or("")
}

fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    path.iter()
        .try_fold(object, |value, name| value.get(name))
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn name_of(object: &Value) -> &str {
    meta::name(object)
}

/// `name`, `name:port` or `scheme:name:port`.
fn split_name(id: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    (matches!(scheme, "" | "http" | "https") && !name.is_empty()).then_some((scheme, name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_ports() {
        for (id, want) in [
            ("a", Some(("", "a", ""))),
            ("a:80", Some(("", "a", "80"))),
            ("https:a:web", Some(("https", "a", "web"))),
            ("ftp:a:1", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(split_name(id), want, "{id}");
        }
    }
}
