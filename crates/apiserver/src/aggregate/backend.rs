//! Sends requests to the server behind a group version.

use super::extension::Extension;
use super::remote::ServerTls;
use super::resolve::Routing;
use super::run::service_and_slices;
use super::target::Target;
use super::{resolve, user_headers};
use crate::context::Context;
use crate::rest::Rest;
use crate::rest::connect::{BackendRequest, Trust, Upstream};
use crate::serve::{RequestBody, ResponseBody};
use crate::wire::reply::Reply;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, Response, StatusCode};
use std::sync::Arc;

/// The server behind a group version.
#[derive(Clone)]
pub enum Backend {
    /// A service of the cluster.
    Remote(Arc<Remote>),
    /// A component of this process.
    InProcess(Arc<dyn Extension>),
}

/// A service of the cluster that serves a group version.
pub struct Remote {
    pub target: Target,
    pub routing: Routing,
    /// The `Available` condition of its APIService.
    pub available: bool,
    /// TLS configuration, or the reason for its absence.
    pub secured: Result<Arc<ServerTls>, String>,
}

impl Rest {
    /// Forwards a request to the server of its group version.
    pub async fn delegate(&self, context: &Context, backend: &Backend, body: RequestBody) -> Reply {
        match backend {
            Backend::InProcess(extension) => in_process(context, extension.as_ref(), body).await,
            Backend::Remote(remote) => self.delegate_remote(context, remote, body).await,
        }
    }

    async fn delegate_remote(&self, context: &Context, remote: &Remote, body: RequestBody) -> Reply {
        if !remote.available {
            return failed(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
        }
        let secured = match &remote.secured {
            Ok(secured) => Arc::clone(secured),
            Err(reason) => return failed(StatusCode::INTERNAL_SERVER_ERROR, reason),
        };
        let target = &remote.target;
        let address = match service_and_slices(&self.registry, &target.service).await {
            Ok((Some(service), slices)) => {
                resolve::resolve(&target.service, &service, &slices, remote.routing)
            }
            Ok((None, _)) => Err("service not found".to_owned()),
            Err(status) => Err(status.to_string()),
        };
        let (host, port) = match address {
            Ok(address) => address,
            Err(reason) => {
                tracing::warn!(
                    api_service = target.name,
                    reason,
                    "failed to resolve the service of an APIService"
                );
                return failed(StatusCode::SERVICE_UNAVAILABLE, "service unavailable");
            }
        };
        let upstream =
            Upstream { host, port, tls: true, trust: Trust::Extension(secured), node: String::new() };
        let passage = BackendRequest { target: path_and_query(context).to_owned(), links: None };
        match self.pass(context, &upstream, passage, body).await {
            Ok(reply) => reply,
            Err(status) => failed(StatusCode::SERVICE_UNAVAILABLE, &status.message),
        }
    }
}

async fn in_process(context: &Context, extension: &dyn Extension, body: RequestBody) -> Reply {
    let mut request = Request::new(body);
    *request.method_mut() = context.method.clone();
    *request.uri_mut() = context.uri.clone();
    *request.headers_mut() = context.headers.clone();
    request.headers_mut().remove(http::header::AUTHORIZATION);
    user_headers::set(request.headers_mut(), &context.user);
    base::trace::inject(request.headers_mut());
    extension.call(request).await
}

fn path_and_query(context: &Context) -> &str {
    context.uri.path_and_query().map_or(&context.path, |target| target.as_str())
}

/// Error response in the form of Go's `http.Error`: clients show its text.
fn failed(code: StatusCode, message: &str) -> Reply {
    let mut reply = Response::new(ResponseBody::Full(format!("{message}\n").into()));
    *reply.status_mut() = code;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    reply
}
