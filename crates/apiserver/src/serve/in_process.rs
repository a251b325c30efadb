//! In-process transport of built-in components: the whole request chain without TCP and TLS.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use rustls_pki_types::CertificateDer;

use super::{ClientTrust, Connection, RequestBody, ResponseBody, Service};

/// A type-erased [`Service`]: its requests are compiled in the crate that creates it.
trait AnyService: Send + Sync {
    fn call(
        &self,
        request: http::Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> BoxFuture<'_, http::Response<ResponseBody>>;
}

impl<S: Service> AnyService for S {
    fn call(
        &self,
        request: http::Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> BoxFuture<'_, http::Response<ResponseBody>> {
        Box::pin(Service::call(self, request, connection))
    }
}

/// A client of a [`Service`] in the same process, with an identity of its own.
#[derive(Clone)]
pub struct InProcess {
    service: Arc<dyn AnyService>,
    connection: Arc<Connection>,
}

impl InProcess {
    /// `chain` is the component's client certificate; it is verified against `trust` as for any client.
    pub fn new<S: Service>(
        service: Arc<S>,
        chain: Vec<CertificateDer<'static>>,
        trust: &ClientTrust,
    ) -> Self {
        Self { service, connection: Arc::new(Connection::in_process(chain, trust)) }
    }

    pub fn call(&self, request: http::Request<RequestBody>) -> BoxFuture<'_, http::Response<ResponseBody>> {
        self.service.call(request, Arc::clone(&self.connection))
    }
}
