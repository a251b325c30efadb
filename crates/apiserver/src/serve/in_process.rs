//! The transport of components compiled into this process: the whole request chain without TCP and TLS.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;

use super::{ClientTrust, Connection, RequestBody, ResponseBody, Service};

/// A client of a [`Service`] in the same process, with an identity of its own.
#[derive(Debug)]
pub struct InProcess<S> {
    service: Arc<S>,
    connection: Arc<Connection>,
}

impl<S> Clone for InProcess<S> {
    fn clone(&self) -> Self {
        Self { service: Arc::clone(&self.service), connection: Arc::clone(&self.connection) }
    }
}

impl<S: Service> InProcess<S> {
    /// `chain` is the component's client certificate; it is verified against `trust` like anybody's.
    pub fn new(service: Arc<S>, chain: Vec<CertificateDer<'static>>, trust: &ClientTrust) -> Self {
        Self { service, connection: Arc::new(Connection::in_process(chain, trust)) }
    }

    pub async fn call(&self, request: http::Request<RequestBody>) -> http::Response<ResponseBody> {
        self.service.call(request, Arc::clone(&self.connection)).await
    }
}
