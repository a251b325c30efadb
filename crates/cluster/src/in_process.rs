//! Clients inside the process: the whole request chain, without TCP and TLS, each with a certificate of its own, which is
//! issued anew long before it expires.

use std::collections::HashMap;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::serve::{InProcess, RequestBody, ResponseBody, Segment};
use base::pki::Identity;
use bytes::{Buf, Bytes};
use client::{Body, Call, Client, ClientError, Transport};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::{Certificates, ClusterError, chain};

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Carries requests into the API server of this process.
struct Bridge {
    server: Arc<ApiServer>,
    certificates: Arc<Certificates>,
    user: String,
    groups: Vec<String>,
    current: Mutex<Crossing>,
}

/// A connection, and the certificate it was made with.
struct Crossing {
    connection: InProcess,
    identity: Identity,
}

impl Bridge {
    fn new(
        server: Arc<ApiServer>,
        certificates: Arc<Certificates>,
        user: &str,
        groups: Vec<String>,
    ) -> Result<Self, ClusterError> {
        let current = Mutex::new(cross(&server, &certificates, user, &groups)?);
        Ok(Self { server, certificates, user: user.to_owned(), groups, current })
    }

    /// A connection whose certificate has enough of its life left.
    fn connection(&self) -> InProcess {
        let mut current = self.current.lock();
        if self.certificates.is_due(&current.identity) {
            match cross(&self.server, &self.certificates, &self.user, &self.groups) {
                Ok(renewed) => *current = renewed,
                Err(error) => {
                    tracing::error!(user = self.user, error = chain(&error), "a certificate is not renewed");
                }
            }
        }
        current.connection.clone()
    }
}

fn cross(
    server: &ApiServer,
    certificates: &Certificates,
    user: &str,
    groups: &[String],
) -> Result<Crossing, ClusterError> {
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let identity = certificates.issue_client(user, &groups)?;
    let trust = certificates.tls.trust();
    let connection = server.in_process(identity.chain.clone(), &trust);
    Ok(Crossing { connection, identity })
}

impl Transport for Bridge {
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
        let bridge = self.bridge(user, groups_of(user))?;
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
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Ok(Client::new(self.bridge(user, groups)?, user_agent))
    }

    fn bridge(&self, user: &str, groups: Vec<String>) -> Result<Arc<Bridge>, ClusterError> {
        let (server, certificates) = (Arc::clone(&self.server), Arc::clone(&self.certificates));
        Bridge::new(server, certificates, user, groups).map(Arc::new)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ControlPlane};
    use base::clock::Clock;
    use base::tasks::TaskGroup;
    use jiff::{SignedDuration, Timestamp};
    use serde_json::{Value, json};
    use std::time::Duration;

    /// The fingerprint of the certificate a client shows.
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
