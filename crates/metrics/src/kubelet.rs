//! Requests to kubelets.

use crate::record::{BoundPod, NodeRecord};
use crate::resource::{DecodeError, Decoder};
use crate::stats::{NodeStats, SummaryDecoder, SummaryError};
use crate::storage::NodeBatch;
use base::clock::Clock;
use base::http::{Client, HttpError, Limits, Origin, OriginError, Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::Full;
use parking_lot::Mutex;
use rustls::ClientConfig;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

const PATH: &str = "/metrics/resource";
const SUMMARY: &str = "/stats/summary";
/// Length of a page, at most.
const LONGEST_PAGE: usize = 16 << 20;
/// Bytes of a page that are read ahead; all nodes are read at once.
const READ_BUFFER: usize = 32 << 10;
/// Size of the statistics of one pod that any summary may have; summaries with larger ones wait for one of few permits.
const SMALL_OBJECT: usize = 64 << 10;
const LARGE_OBJECTS: usize = 4;
/// Connections that are kept open between scrapes, at most.
const KEPT: usize = 256;
/// Time for which an origin is used: certificates and trust may change while the process runs.
const ORIGIN_LIFE: Duration = Duration::from_secs(600);

/// TLS towards kubelets.
pub trait KubeletTls: Send + Sync {
    /// The configuration of connections to the kubelet of a node; `None` for plain HTTP.
    fn config(&self, node: &str) -> Result<Option<Arc<ClientConfig>>, String>;

    /// The bearer token that requests carry, if the client certificate is not the credential.
    fn token(&self) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// The port of kubelets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletPort {
    /// The port in the status of the node.
    OfStatus,
    Fixed(u16),
}

/// The addresses by which kubelets are reached.
#[derive(Clone, Debug)]
pub struct KubeletAddressing {
    /// Types of node addresses, the preferred one first.
    pub types: Vec<String>,
    pub port: KubeletPort,
}

impl Default for KubeletAddressing {
    /// The order of the API server; the port of the status.
    fn default() -> Self {
        let types = ["InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP"];
        Self { types: types.map(str::to_owned).to_vec(), port: KubeletPort::OfStatus }
    }
}

impl KubeletAddressing {
    /// Host and port of the kubelet of a node.
    fn of(&self, node: &NodeRecord) -> Result<(String, u16), ScrapeError> {
        let of_type = |kind: &String| node.addresses.iter().find(|(own, _)| own == kind);
        let (_, host) = self.types.iter().find_map(of_type).ok_or(ScrapeError::NoAddress)?;
        match self.port {
            KubeletPort::Fixed(port) => Ok((host.clone(), port)),
            KubeletPort::OfStatus if node.kubelet_port == 0 => Err(ScrapeError::NoPort),
            KubeletPort::OfStatus => Ok((host.clone(), node.kubelet_port)),
        }
    }
}

/// Reason why a node was not scraped.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    #[error("the node has no address of a preferred type")]
    NoAddress,
    #[error("the status of the node has no port of its kubelet")]
    NoPort,
    #[error("failed to prepare the request: {0}")]
    Credentials(String),
    #[error("the address of the node is not usable")]
    Origin(#[from] OriginError),
    #[error("request failed")]
    Http(#[from] HttpError),
    #[error("request failed, status: {0}")]
    Status(StatusCode),
    #[error("the page is longer than {LONGEST_PAGE} bytes")]
    TooLong,
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("failed to decode the summary")]
    Summary(#[source] SummaryError),
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
}

/// A client of all kubelets.
pub struct Kubelets {
    http: Client,
    addressing: KubeletAddressing,
    tls: Arc<dyn KubeletTls>,
    clock: Clock,
    timeout: Duration,
    origins: Mutex<HashMap<String, KnownOrigin>>,
    /// Permits for summaries with objects that take much memory.
    large_objects: Semaphore,
}

struct KnownOrigin {
    host: String,
    port: u16,
    origin: Origin,
    until: Instant,
}

impl Kubelets {
    pub fn new(
        addressing: KubeletAddressing,
        tls: Arc<dyn KubeletTls>,
        timeout: Duration,
        clock: Clock,
    ) -> Self {
        let limits = Limits {
            connect: timeout,
            response: timeout,
            silence: timeout,
            max_idle: KEPT,
            read_buffer: READ_BUFFER,
            ..Limits::default()
        };
        let (http, origins) = (Client::new(limits), Mutex::default());
        Self { http, addressing, tls, clock, timeout, origins, large_objects: Semaphore::new(LARGE_OBJECTS) }
    }

    /// Fetches and decodes the page of a node.
    pub async fn scrape(&self, node: &NodeRecord, bound: BoundPod<'_>) -> Result<NodeBatch, ScrapeError> {
        match tokio::time::timeout(self.timeout, self.fetch(node, bound)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ScrapeError::Timeout(self.timeout)),
        }
    }

    /// Forgets nodes that are no longer part of the cluster.
    pub fn retain(&self, is_present: impl Fn(&str) -> bool) {
        self.origins.lock().retain(|name, _| is_present(name));
    }

    /// Fetches and decodes the statistics of a node.
    pub async fn stats(&self, node: &NodeRecord, bound: BoundPod<'_>) -> Result<NodeStats, ScrapeError> {
        let fetch = async {
            let now = self.clock.now().as_millisecond();
            let mut response = self.get(node, SUMMARY).await?;
            let (mut decoder, mut length, mut place) = (SummaryDecoder::new(now), 0_usize, None);
            while let Some(piece) = response.piece().await? {
                length = length.saturating_add(piece.len());
                if length > LONGEST_PAGE {
                    return Err(ScrapeError::TooLong);
                }
                for part in piece.chunks(READ_BUFFER) {
                    decoder.push(part, bound).map_err(ScrapeError::Summary)?;
                    if place.is_none() && decoder.buffered() > SMALL_OBJECT {
                        place = self.large_objects.acquire().await.ok();
                    }
                }
            }
            decoder.finish().map_err(ScrapeError::Summary)
        };
        match tokio::time::timeout(self.timeout, fetch).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ScrapeError::Timeout(self.timeout)),
        }
    }

    async fn fetch(&self, node: &NodeRecord, bound: BoundPod<'_>) -> Result<NodeBatch, ScrapeError> {
        let now = self.clock.now().as_millisecond();
        let mut response = self.get(node, PATH).await?;
        let (mut decoder, mut length) = (Decoder::new(now), 0_usize);
        while let Some(piece) = response.piece().await? {
            length = length.saturating_add(piece.len());
            if length > LONGEST_PAGE {
                return Err(ScrapeError::TooLong);
            }
            decoder.push(&piece, bound)?;
        }
        Ok(decoder.finish(bound)?)
    }

    /// Requests a page of a kubelet.
    async fn get(&self, node: &NodeRecord, path: &str) -> Result<Response, ScrapeError> {
        let origin = self.origin(node)?;
        let mut request = Request::get(path).body(Full::<Bytes>::default());
        if let Ok(request) = &mut request
            && let Some(token) = self.tls.token().map_err(ScrapeError::Credentials)?
        {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|error| ScrapeError::Credentials(error.to_string()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let request = request.map_err(|error| ScrapeError::Credentials(error.to_string()))?;
        let response = self.http.send(&origin, request).await?;
        if response.status != StatusCode::OK {
            return Err(ScrapeError::Status(response.status));
        }
        Ok(response)
    }

    /// The origin of a node's kubelet; the same one while it is valid, so that its connections are used again.
    fn origin(&self, node: &NodeRecord) -> Result<Origin, ScrapeError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let (host, port) = self.addressing.of(node)?;
        let mut origins = self.origins.lock();
        if let Some(known) = origins.get(name)
            && known.host == host
            && known.port == port
            && Instant::now() < known.until
        {
            return Ok(known.origin.clone());
        }
        let origin = match self.tls.config(name).map_err(ScrapeError::Credentials)? {
            Some(config) => Origin::secured(&host, port, config, None)?,
            None => Origin::plain(&host, port),
        };
        let until = base::clock::deadline_after(ORIGIN_LIFE);
        origins.insert(name.to_owned(), KnownOrigin { host, port, origin: origin.clone(), until });
        Ok(origin)
    }
}

#[cfg(test)]
mod tests;
