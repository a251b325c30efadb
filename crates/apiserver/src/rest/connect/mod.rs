//! Subresources that connect the caller to a backend: a container's log, a command in it, a port of a pod, a service
//! or a node.
//!
//! The API server authorizes and resolves the address; the bytes of an upgraded connection pass through it untouched.

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
use crate::serve::RequestBody;
use crate::wire::reply::Reply;
use base::tasks::TaskGroup;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
pub(super) use socket::watch_over_websocket;
use std::sync::Arc;
pub use upstream::KubeletIdentity;
use upstream::Upstreams;
pub(crate) use upstream::{BackendRequest, Trust, Upstream};

/// Connections to nodes, pods and services.
#[derive(Default)]
pub struct Connections {
    upstreams: Upstreams,
    streams: TaskGroup,
}

impl Connections {
    /// Sets the client certificate of the API server for kubelets.
    pub fn set_kubelet_identity(&self, identity: KubeletIdentity) -> std::result::Result<(), rustls::Error> {
        self.upstreams.set_identity(identity)
    }

    /// TLS towards the kubelet of a node; `None` while this server has no certificate for kubelets.
    pub fn kubelet_tls(&self, node: &str) -> Option<Arc<rustls::ClientConfig>> {
        self.upstreams.kubelet_config(node)
    }

    /// Sets the CAs that sign kubelet serving certificates, in PEM.
    pub fn set_kubelet_authorities(&self, pem: &str) {
        self.upstreams.certificates.set_authorities(pem);
    }

    /// The same, and rejects kubelets whose certificates these CAs did not sign for the address.
    pub fn require_kubelet_authorities(&self, pem: &str) {
        self.upstreams.certificates.require_authorities(pem);
    }

    /// Tasks of upgraded connections.
    pub(super) fn streams(&self) -> &TaskGroup {
        &self.streams
    }

    /// Closes all upgraded connections.
    pub fn stop(&self) {
        self.streams.abort();
    }
}

impl Rest {
    /// Connects; 404 for any other subresource.
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

    /// Sends the caller's request to the upstream and returns the response.
    pub(crate) async fn pass(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: BackendRequest,
        body: RequestBody,
    ) -> Result<Reply> {
        self.connections.upstreams.send(context, upstream, passage, body, &self.connections.streams).await
    }
}

/// String at a path of an object; empty if it is missing.
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
    fn proxy_name_is_split_into_scheme_name_and_port() {
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
