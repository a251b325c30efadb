//! In-process clients: the whole request chain, without TCP and TLS, each with its own certificate, which is renewed
//! long before it expires.

use std::collections::HashMap;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::serve::{InProcess, RequestBody, ResponseBody, Segment};
use base::pki::Identity;
use bytes::{Buf, Bytes};
use client::{Body, Call, Client, ClientError, Transport};
use http_body_util::BodyExt;
use kubelet::CertificateStatus;
use parking_lot::Mutex;

use crate::{Certificates, ClusterError, chain};

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Sends requests to the API server of this process.
struct InProcessTransport {
    server: Arc<ApiServer>,
    certificates: Arc<Certificates>,
    user: String,
    groups: Vec<String>,
    current: Mutex<AuthenticatedConnection>,
    status: CertificateStatus,
}

/// A connection and its client certificate.
struct AuthenticatedConnection {
    connection: InProcess,
    identity: Identity,
}

impl InProcessTransport {
    fn new(
        server: Arc<ApiServer>,
        certificates: Arc<Certificates>,
        user: &str,
        groups: Vec<String>,
        status: CertificateStatus,
    ) -> Result<Self, ClusterError> {
        let current = connect(&server, &certificates, user, &groups)?;
        status.set_client_expires(current.identity.expires());
        Ok(Self { server, certificates, user: user.to_owned(), groups, current: Mutex::new(current), status })
    }

    /// Connection with a certificate that is not due for renewal.
    fn connection(&self) -> InProcess {
        let mut current = self.current.lock();
        if self.certificates.is_due(&current.identity) {
            match connect(&self.server, &self.certificates, &self.user, &self.groups) {
                Ok(renewed) => {
                    self.status.set_client_expires(renewed.identity.expires());
                    *current = renewed;
                }
                Err(error) => {
                    self.status.client_failed();
                    tracing::error!(
                        user = self.user,
                        error = chain(&error),
                        "failed to renew client certificate"
                    );
                }
            }
        }
        current.connection.clone()
    }
}

fn connect(
    server: &ApiServer,
    certificates: &Certificates,
    user: &str,
    groups: &[String],
) -> Result<AuthenticatedConnection, ClusterError> {
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let identity = certificates.issue_client(user, &groups)?;
    let trust = certificates.tls.trust();
    let connection = server.in_process(identity.chain.clone(), &trust);
    Ok(AuthenticatedConnection { connection, identity })
}

impl Transport for InProcessTransport {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(async move {
            let response = self.connection().call(request.map(RequestBody::from)).await;
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

/// Creates clients for components of this process. A component is authenticated by its certificate like any client,
/// and has the permissions of the bootstrap policy for that user.
pub struct InProcessClients {
    server: Arc<ApiServer>,
    certificates: Arc<Certificates>,
    transports: Mutex<HashMap<String, Arc<InProcessTransport>>>,
}

impl InProcessClients {
    pub(crate) fn new(server: Arc<ApiServer>, certificates: Arc<Certificates>) -> Self {
        Self { server, certificates, transports: Mutex::default() }
    }

    /// Client of `user`.
    pub fn client_as(&self, user: &str, user_agent: &str) -> Result<Client, ClusterError> {
        let mut transports = self.transports.lock();
        if let Some(transport) = transports.get(user) {
            return Ok(Client::new(Arc::clone(transport) as Arc<dyn Transport>, user_agent));
        }
        let transport = self.transport(user, groups_of(user), CertificateStatus::default())?;
        transports.insert(user.to_owned(), Arc::clone(&transport));
        Ok(Client::new(transport, user_agent))
    }

    /// Client of `user` with these groups.
    pub(crate) fn client_in(
        &self,
        user: &str,
        groups: &[&str],
        user_agent: &str,
    ) -> Result<Client, ClusterError> {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Ok(Client::new(self.transport(user, groups, CertificateStatus::default())?, user_agent))
    }

    /// Client of a node's kubelet, which reports the state of its certificate.
    pub(crate) fn client_of_node(
        &self,
        user: &str,
        user_agent: &str,
        status: CertificateStatus,
    ) -> Result<Client, ClusterError> {
        Ok(Client::new(self.transport(user, groups_of(user), status)?, user_agent))
    }

    fn transport(
        &self,
        user: &str,
        groups: Vec<String>,
        status: CertificateStatus,
    ) -> Result<Arc<InProcessTransport>, ClusterError> {
        let (server, certificates) = (Arc::clone(&self.server), Arc::clone(&self.certificates));
        InProcessTransport::new(server, certificates, user, groups, status).map(Arc::new)
    }
}

/// Default groups of a service account or node; other components have none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ControlPlane};
    use base::clock::Clock;
    use base::tasks::TaskGroup;
    use jiff::{SignedDuration, Timestamp};
    use serde_json::{Value, json};
    use std::time::Duration;

    /// Fingerprint of a client's certificate.
    async fn credential(client: &Client) -> Value {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let review: Value = client.post(path, &body).await.expect("a review");
        assert_eq!(review["status"]["userInfo"]["username"], "somebody");
        review["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"].clone()
    }

    #[tokio::test]
    async fn certificates_of_components_are_renewed() {
        let directory = tempfile::tempdir().expect("a directory");
        let past = Timestamp::now().checked_sub(SignedDuration::from_hours(250 * 24)).expect("a time");
        let mut config = Config::new(directory.path());
        config.listen = ([127, 0, 0, 1], 0).into();
        config.clock = Clock::held_at(past);
        let clock = config.clock.clone();
        let tasks = TaskGroup::new();
        let plane = ControlPlane::build(config, tasks.clone()).await.expect("a control plane");
        let clients = plane.in_process_clients();
        let client = clients.client_in("somebody", &["system:masters"], "test").expect("a client");
        let first = credential(&client).await;
        assert_eq!(credential(&client).await, first, "one will do for a while");
        clock.advance(SignedDuration::from_hours(250 * 24));
        assert_ne!(credential(&client).await, first);
        let _ = tasks.drain(Duration::from_secs(5)).await;
    }
}
