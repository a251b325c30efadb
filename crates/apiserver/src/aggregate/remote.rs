//! Requests of the aggregator itself: the availability check and discovery.

use super::resolve::Address;
use super::target::Target;
use super::{discovery, user_headers};
use crate::discovery::{AGGREGATED_PARAMETERS, ApiResource};
use crate::user::UserInfo;
use base::egress::Network;
use base::http::{Client, Limits, Origin, Trust};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use machinery::Value;
use rustls_pki_types::ServerName;
use sha2::{Digest, Sha512};
use std::sync::Arc;
use std::time::Duration;

/// Response time limit.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Size limit of a discovery document.
const MAX_DOCUMENT: usize = 8 << 20;

/// Size and time limits of an OpenAPI v2 document.
const MAX_SPEC: usize = 16 << 20;
const SPEC_TIMEOUT: Duration = Duration::from_secs(60);

/// Prefix of generated tags for documents without one, as in Kubernetes.
const LOCAL_TAG: &str = "\"6E8F849B434D4B98A569B9D7718876E9-";

/// TLS towards one extension server.
#[derive(Debug)]
pub struct ServerTls {
    pub config: Arc<rustls::ClientConfig>,
    pub name: ServerName<'static>,
}

impl ServerTls {
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

/// Resources of a group version, as listed by its server.
#[derive(Clone, Debug)]
pub struct Discovered {
    pub resources: Vec<ApiResource>,
}

/// HTTP client of the aggregator.
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
    pub async fn check(&self, target: &Target, address: &Address, secured: &ServerTls) -> Result<(), String> {
        let path = target.discovery_path();
        let url = format!("https://{}{path}", authority(address));
        let fetch = Fetch::new(&path, "application/json");
        let get = self.get(address, secured, &fetch);
        match tokio::time::timeout(TIMEOUT, get).await {
            Err(_) => Err(format!("timed out waiting for {url}")),
            Ok(Err(reason)) => Err(format!("failing or missing response from {url}: Get {url:?}: {reason}")),
            Ok(Ok(answer)) if !answer.status.is_success() => Err(format!(
                "failing or missing response from {url}: bad status from {url}: {}",
                answer.status.as_u16()
            )),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// Reads the resources of the target's group version, from the aggregated form if the server supports it.
    pub async fn discover(
        &self,
        target: &Target,
        address: &Address,
        secured: &ServerTls,
    ) -> Result<Discovered, String> {
        let v2beta1 = AGGREGATED_PARAMETERS.replace("v=v2;", "v=v2beta1;");
        let accept = format!("application/json;{AGGREGATED_PARAMETERS},application/json;{v2beta1}");
        let FetchResponse { status, kind, body, .. } =
            self.get(address, secured, &Fetch::new("/apis", &accept)).await?;
        if status.is_success() && kind.contains("as=APIGroupDiscoveryList") {
            let document = parse(&body)?;
            let resources = discovery::aggregated(&document, target).unwrap_or_default();
            return Ok(Discovered { resources });
        }
        let path = target.discovery_path();
        let FetchResponse { status, body, .. } =
            self.get(address, secured, &Fetch::new(&path, "application/json")).await?;
        if !status.is_success() {
            return Err(format!("failed to download legacy discovery for {path}: {status}"));
        }
        Ok(Discovered { resources: discovery::listed(&parse(&body)?, target) })
    }

    /// Reads the target's OpenAPI v2 document, unless its tag is the known one.
    pub async fn fetch_spec(
        &self,
        address: &Address,
        secured: &ServerTls,
        known: Option<&str>,
    ) -> Result<Option<FetchedSpec>, String> {
        let fetch = Fetch {
            user: UserInfo { name: "system:aggregator".to_owned(), ..UserInfo::default() },
            // The server does not know tags generated here.
            tag: known.filter(|tag| !tag.starts_with(LOCAL_TAG)),
            longest: MAX_SPEC,
            ..Fetch::new("/openapi/v2", "application/json")
        };
        let answer = tokio::time::timeout(SPEC_TIMEOUT, self.get(address, secured, &fetch)).await;
        let answer = answer.map_err(|_| "request timed out".to_owned())??;
        let is_conditional = fetch.tag.is_some();
        match answer.status {
            StatusCode::NOT_MODIFIED if is_conditional => Ok(None),
            StatusCode::OK => {
                let tag = match answer.tag {
                    tag if tag.is_empty() => {
                        format!("{LOCAL_TAG}{}\"", hex::encode_upper(Sha512::digest(&answer.body)))
                    }
                    tag => tag,
                };
                let is_new = known != Some(&*tag);
                Ok(is_new.then_some(FetchedSpec { tag, json: answer.body }))
            }
            status => Err(format!("failed to retrieve openAPI spec, http error: {status}")),
        }
    }

    async fn get(
        &self,
        address: &Address,
        secured: &ServerTls,
        fetch: &Fetch<'_>,
    ) -> Result<FetchResponse, String> {
        let origin =
            Origin::secured(&address.0, address.1, Arc::clone(&secured.config), Some(&secured.name.to_str()));
        let origin = origin.map_err(|error| error.to_string())?.on(Network::Cluster);
        let request = Request::get(fetch.path).body(Full::default());
        let mut request = request.map_err(|error| error.to_string())?;
        user_headers::set(request.headers_mut(), &fetch.user);
        let headers = [(ACCEPT, Some(fetch.accept)), (IF_NONE_MATCH, fetch.tag)];
        for (name, value) in headers {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                request.headers_mut().insert(name, value);
            }
        }
        let fetched = async {
            let response = self.client.send(&origin, request).await?;
            let header = |name| response.header(name).unwrap_or_default().to_owned();
            let (status, kind, tag) = (response.status, header(CONTENT_TYPE), header(ETAG));
            Ok(FetchResponse { status, kind, tag, body: response.bytes(fetch.longest).await? })
        };
        fetched.await.map_err(|error: base::http::HttpError| base::errors::chain(&error))
    }
}

/// A request for a document.
struct Fetch<'a> {
    path: &'a str,
    accept: &'a str,
    user: UserInfo,
    /// Tag of the known document.
    tag: Option<&'a str>,
    longest: usize,
}

impl<'a> Fetch<'a> {
    /// A request with the identity that is always allowed to read discovery.
    fn new(path: &'a str, accept: &'a str) -> Self {
        let user = UserInfo {
            name: "system:kube-aggregator".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        Self { path, accept, user, tag: None, longest: MAX_DOCUMENT }
    }
}

struct FetchResponse {
    status: StatusCode,
    /// `Content-Type`.
    kind: String,
    /// `ETag`, or empty.
    tag: String,
    body: Bytes,
}

/// An OpenAPI v2 document and its tag.
#[derive(Debug)]
pub struct FetchedSpec {
    pub tag: String,
    pub json: Bytes,
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn authority((host, port): &Address) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
