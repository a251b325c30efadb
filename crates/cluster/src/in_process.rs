//! Clients inside the process: the whole request chain, without TCP and TLS, each with a certificate of its own.

use std::collections::HashMap;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::Chain;
use apiserver::serve::{InProcess, RequestBody, ResponseBody, Segment};
use bytes::{Buf, Bytes};
use client::{Body, Call, Client, ClientError, Transport};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::{Certificates, ClusterError};

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Carries requests into the API server of this process.
struct Bridge(InProcess<Chain>);

impl Transport for Bridge {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(async move {
            let response = self.0.call(request.map(RequestBody::from)).await;
            Ok(response.map(into_body))
        })
    }
}

fn into_body(body: ResponseBody) -> Body {
    body.map_frame(|frame| frame.map_data(into_bytes)).map_err(|never| match never {}).boxed_unsync()
}

fn into_bytes(segment: Segment) -> Bytes {
    match segment {
        Segment::One(bytes) => bytes,
        mut many @ Segment::Many { .. } => many.copy_to_bytes(many.remaining()),
    }
}

/// Gives components of this process clients of their own. A component is who its certificate says, like anybody, and
/// may do what the policy of a new cluster allows that user.
pub struct InProcessClients {
    server: Arc<ApiServer>,
    certificates: Arc<Certificates>,
    bridges: Mutex<HashMap<String, Arc<Bridge>>>,
}

impl InProcessClients {
    pub(crate) fn new(server: Arc<ApiServer>, certificates: Arc<Certificates>) -> Self {
        Self { server, certificates, bridges: Mutex::default() }
    }

    /// A client that is `user`.
    pub fn client_as(&self, user: &str, user_agent: &str) -> Result<Client, ClusterError> {
        let mut bridges = self.bridges.lock();
        if let Some(bridge) = bridges.get(user) {
            return Ok(Client::new(Arc::clone(bridge) as Arc<dyn Transport>, user_agent));
        }
        let groups = groups_of(user);
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        let bridge = self.bridge(user, &groups)?;
        bridges.insert(user.to_owned(), Arc::clone(&bridge));
        Ok(Client::new(bridge, user_agent))
    }

    /// A client that is `user` in these groups.
    pub(crate) fn client_in(
        &self,
        user: &str,
        groups: &[&str],
        user_agent: &str,
    ) -> Result<Client, ClusterError> {
        Ok(Client::new(self.bridge(user, groups)?, user_agent))
    }

    fn bridge(&self, user: &str, groups: &[&str]) -> Result<Arc<Bridge>, ClusterError> {
        let identity = self.certificates.issue_client(user, groups)?;
        let chain =
            InProcess::new(Arc::clone(&self.server.chain), identity.chain, &self.certificates.tls.trust());
        Ok(Arc::new(Bridge(chain)))
    }
}

/// The groups a service account or a node has wherever it shows up; other components have none.
fn groups_of(user: &str) -> Vec<String> {
    if user.starts_with("system:node:") {
        return vec!["system:nodes".to_owned()];
    }
    let account = user.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
    match account {
        Some((namespace, _)) => {
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
        }
        None => Vec::new(),
    }
}

impl runtime::Identities for InProcessClients {
    fn client(&self, identity: &str, user_agent: &str) -> Result<Client, ClientError> {
        self.client_as(identity, user_agent).map_err(|error| ClientError::Identity(Box::new(error)))
    }
}
