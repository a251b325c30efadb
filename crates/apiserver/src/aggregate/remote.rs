//! Requests of the aggregator itself: the availability check and discovery.

use super::resolve::Address;
use super::target::Target;
use super::{discovery, user_headers};
use crate::discovery::{AGGREGATED_PARAMETERS, ApiResource};
use crate::user::UserInfo;
use base::egress::Network;
use base::http::{Client, Limits, Origin, Trust};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request};
use http_body_util::Full;
use machinery::Value;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;

/// Time that a server has to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest discovery document that is read.
const MAX_DOCUMENT: usize = 8 << 20;

/// TLS towards one extension server.
#[derive(Debug)]
pub struct Secured {
    pub config: Arc<rustls::ClientConfig>,
    pub name: ServerName<'static>,
}

impl Secured {
    /// The server must have a certificate for `SERVICE.NAMESPACE.svc`; `identity` is the front proxy's, PEM.
    pub fn new(target: &Target, identity: Option<&(Vec<u8>, Vec<u8>)>) -> Result<Self, String> {
        let name = target.server_name();
        let trust = Trust {
            authorities: target.authorities(),
            identity: identity.cloned(),
            server_name: Some(name.clone()),
        };
        let config = trust.config().map_err(|error| base::errors::chain(&error))?;
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        Ok(Self { config, name })
    }
}

/// Resources of a group version, as its server lists them.
#[derive(Clone, Debug)]
pub struct Discovered {
    pub resources: Vec<ApiResource>,
}

/// The client of the aggregator.
pub struct RemoteClient {
    client: Client,
}

impl RemoteClient {
    pub fn new() -> Self {
        let limits = Limits { connect: TIMEOUT, response: TIMEOUT, silence: TIMEOUT, ..Limits::default() };
        Self { client: Client::new(limits) }
    }

    /// Reads the target's APIResourceList, which every extension server has to serve; an error is the message of the
    /// `Available` condition.
    pub async fn check(&self, target: &Target, address: &Address, secured: &Secured) -> Result<(), String> {
        let path = target.discovery_path();
        let url = format!("https://{}{path}", authority(address));
        let get = self.get(address, secured, &path, "application/json");
        match tokio::time::timeout(TIMEOUT, get).await {
            Err(_) => Err(format!("timed out waiting for {url}")),
            Ok(Err(reason)) => Err(format!("failing or missing response from {url}: Get {url:?}: {reason}")),
            Ok(Ok((status, ..))) if !status.is_success() => Err(format!(
                "failing or missing response from {url}: bad status from {url}: {}",
                status.as_u16()
            )),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// Reads the resources of the target's group version, from the aggregated form if the server has it.
    pub async fn discover(
        &self,
        target: &Target,
        address: &Address,
        secured: &Secured,
    ) -> Result<Discovered, String> {
        let v2beta1 = AGGREGATED_PARAMETERS.replace("v=v2;", "v=v2beta1;");
        let accept = format!("application/json;{AGGREGATED_PARAMETERS},application/json;{v2beta1}");
        let (status, kind, body) = self.get(address, secured, "/apis", &accept).await?;
        if status.is_success() && kind.contains("as=APIGroupDiscoveryList") {
            let document = parse(&body)?;
            let resources = discovery::aggregated(&document, target).unwrap_or_default();
            return Ok(Discovered { resources });
        }
        let path = target.discovery_path();
        let (status, _, body) = self.get(address, secured, &path, "application/json").await?;
        if !status.is_success() {
            return Err(format!("failed to download legacy discovery for {path}: {status}"));
        }
        Ok(Discovered { resources: discovery::listed(&parse(&body)?, target) })
    }

    async fn get(
        &self,
        address: &Address,
        secured: &Secured,
        path: &str,
        accept: &str,
    ) -> Result<(http::StatusCode, String, Bytes), String> {
        let origin =
            Origin::secured(&address.0, address.1, Arc::clone(&secured.config), Some(&secured.name.to_str()));
        let origin = origin.map_err(|error| error.to_string())?.on(Network::Cluster);
        // Servers refuse HTTP/1.1 requests without a host.
        let request = Request::get(path).header(HOST, authority(address));
        let mut request = request.body(Full::default()).map_err(|error| error.to_string())?;
        // The identity that is always allowed to read discovery.
        let user = UserInfo {
            name: "system:kube-aggregator".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        user_headers::set(request.headers_mut(), &user);
        if let Ok(accept) = HeaderValue::from_str(accept) {
            request.headers_mut().insert(ACCEPT, accept);
        }
        let fetch = async {
            let response = self.client.send(&origin, request).await?;
            let kind = response.header(CONTENT_TYPE).unwrap_or_default().to_owned();
            Ok((response.status, kind, response.bytes(MAX_DOCUMENT).await?))
        };
        fetch.await.map_err(|error: base::http::HttpError| base::errors::chain(&error))
    }
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn authority((host, port): &Address) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
