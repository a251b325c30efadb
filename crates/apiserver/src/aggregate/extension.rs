//! Extension servers inside this process.

use crate::discovery::GroupVersion;
use crate::serve::{RequestBody, ResponseBody};
use futures_util::future::BoxFuture;

/// A group version served by a component of this process. An APIService with a service of its own overrides it.
///
/// Requests have passed authentication, authorization and fairness; the user is in `X-Remote-*` headers, as for an
/// external extension server.
pub trait Extension: Send + Sync {
    /// The group version, its rank and its resources.
    fn discovery(&self) -> GroupVersion;

    fn call(&self, request: http::Request<RequestBody>) -> BoxFuture<'_, http::Response<ResponseBody>>;
}
