//! Resolution of a query: the cluster's names, then the cache, then upstream.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::cache::{Cache, CachedReply, Key};
use crate::clients::Clients;
use crate::config::Config;
use crate::metrics::{DnsMetrics, Exchange};
use crate::respond::{Foreign, ResponseOutcome, refuse, respond};
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{CLASS_IN, HEADER, Name, Query, QueryError, Reply, flags, labels, rcode, rtype, skip_name};
use crate::zone::Zone;

/// Limit of concurrent upstream queries; further queries get SERVFAIL.
const MAX_WAITING: usize = 1000;

type SharedQuery = Arc<OnceCell<Result<Arc<CachedReply>, Arc<UpstreamError>>>>;

/// Resolves queries.
#[derive(Debug)]
pub struct Resolver {
    zone: Arc<Zone>,
    cache: Arc<Cache>,
    upstream: Upstream,
    stubs: Vec<(Name, Upstream)>,
    /// Pending upstream queries: equal queries share one reply.
    in_flight: Mutex<HashMap<Key, SharedQuery>>,
    waiting: Semaphore,
    /// Admitted clients.
    pub clients: Clients,
    pub metrics: DnsMetrics,
}

/// Transport of a query, which limits the size of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    fn limit(self, query: &Query<'_>) -> usize {
        match self {
            Self::Udp => query.udp_limit(),
            Self::Tcp => usize::from(u16::MAX),
        }
    }
}

/// Source of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Zone,
    Cache,
    Upstream,
    /// The query was malformed.
    Error,
}

/// Result of the synchronous part of a query.
#[derive(Debug)]
pub enum Step {
    /// No reply is sent.
    Silence,
    /// The reply is in the buffer.
    Reply(Source),
    /// Upstream is needed: [`Resolver::finish`].
    Forward,
}

impl Resolver {
    #[must_use]
    pub fn new(zone: Arc<Zone>, config: &Config, metrics: DnsMetrics) -> Self {
        let stub = |stub: &crate::config::StubDomain| {
            (stub.domain.clone(), Upstream::new(stub.servers.clone(), config.cache_ttl))
        };
        let cache = Arc::new(Cache::new(config.cache_entries));
        metrics.set_cache(&cache);
        Self {
            zone,
            cache,
            upstream: Upstream::new(config.upstreams.clone(), config.cache_ttl),
            stubs: config.stub_domains.iter().map(stub).collect(),
            in_flight: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING),
            clients: Clients::new(&config.clients, config.listen.iter().map(SocketAddr::ip)),
            metrics,
        }
    }

    /// Replaces the upstream servers of names outside the cluster and of no stub domain.
    pub fn set_upstreams(&self, servers: Vec<SocketAddr>) {
        self.upstream.set_servers(servers);
    }

    /// Resolves from the zone and the cache, without waiting.
    pub fn begin(&self, message: &[u8], exchange: &Exchange, buffer: &mut Vec<u8>) -> Step {
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(QueryError::Ignore) => return Step::Silence,
            Err(QueryError::Malformed { id, flags }) => {
                Reply::bare(buffer, id, flags, rcode::FORMAT_ERROR);
                return Step::Reply(Source::Error);
            }
            Err(QueryError::Operation { id, flags }) => {
                Reply::bare(buffer, id, flags, rcode::NOT_IMPLEMENTED);
                return Step::Reply(Source::Error);
            }
        };
        self.metrics.record_query(exchange, query.rtype, message.len());
        let limit = exchange.transport.limit(&query);
        match respond(&self.zone, &query, limit, None, buffer) {
            ResponseOutcome::Answered => Step::Reply(Source::Zone),
            ResponseOutcome::Alias { .. } => Step::Forward,
            ResponseOutcome::Elsewhere => {
                self.metrics.cache_requests.inc();
                match self.cache.get(&Key::of(&query), Instant::now()) {
                    Some((reply, age)) => {
                        self.metrics.cache_hit(&reply);
                        reply.write(&query, age, limit, buffer);
                        Step::Reply(Source::Cache)
                    }
                    None => {
                        self.metrics.cache_misses.inc();
                        Step::Forward
                    }
                }
            }
        }
    }

    /// Resolves a query that needs upstream.
    pub async fn finish(&self, message: &[u8], transport: Transport, buffer: &mut Vec<u8>) {
        let Ok(query) = Query::parse(message) else { return };
        let limit = transport.limit(&query);
        match respond(&self.zone, &query, limit, None, buffer) {
            ResponseOutcome::Answered => {}
            ResponseOutcome::Elsewhere => match self.resolve(&query).await {
                Some((reply, age)) => reply.write(&query, age, limit, buffer),
                None => refuse(&query, buffer, rcode::SERVER_FAILURE),
            },
            ResponseOutcome::Alias { target } => {
                let question = question_for(&target, query.rtype);
                let Ok(onward) = Query::parse(&question) else { return };
                // Without the target's records the client gets the alias alone and may resolve it itself.
                if let Some((reply, age)) = self.resolve(&onward).await {
                    let records = answers(reply.message(), age);
                    respond(&self.zone, &query, limit, Some(&records), buffer);
                }
            }
        }
    }

    /// From the cache, from a pending equal query, or from upstream.
    async fn resolve(&self, query: &Query<'_>) -> Option<(Arc<CachedReply>, u32)> {
        let key = Key::of(query);
        if let Some(found) = self.cache.get(&key, Instant::now()) {
            return Some(found);
        }
        let Ok(_waiting) = self.waiting.try_acquire() else {
            self.metrics.rejects.inc();
            return None;
        };
        let in_flight = Arc::clone(self.in_flight.lock().entry(key.clone()).or_default());
        let upstream = self.upstream_for(query.name());
        let outcome = in_flight
            .get_or_init(|| async {
                upstream.resolve(query, &self.metrics).await.map(Arc::new).map_err(Arc::new)
            })
            .await
            .clone();
        self.in_flight.lock().remove(&key);
        match outcome {
            Ok(reply) => {
                self.cache.put(key, Arc::clone(&reply), Instant::now());
                Some((reply, 0))
            }
            Err(error) => {
                tracing::debug!(name = query.name_text(), %error, "no upstream server responded");
                None
            }
        }
    }

    /// Stub domain with the longest match, or the default upstream.
    fn upstream_for(&self, name: &[u8]) -> &Upstream {
        let under = |domain: &Name| {
            let mut rest = name;
            loop {
                if rest == domain.wire() {
                    return true;
                }
                match labels(rest).next() {
                    Some(label) => rest = &rest[label.len() + 1..],
                    None => return false,
                }
            }
        };
        let matching = self.stubs.iter().filter(|(domain, _)| under(domain));
        matching
            .max_by_key(|(domain, _)| domain.wire().len())
            .map_or(&self.upstream, |(_, upstream)| upstream)
    }
}

fn question_for(name: &Name, kind: u16) -> Vec<u8> {
    let mut message = vec![0, 0];
    message.extend(flags::RECURSION_DESIRED.to_be_bytes());
    message.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    message.extend(name.wire());
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    message
}

/// Addresses and aliases in the answer section of a reply accepted by [`CachedReply::read`].
fn answers(message: &[u8], age: u32) -> Vec<Foreign> {
    let mut out = Vec::new();
    let count = u16::from_be_bytes([message[6], message[7]]);
    let Some(mut at) = skip_name(message, HEADER).map(|end| end + 4) else { return out };
    for _ in 0..count {
        let Some(record) =
            skip_name(message, at).and_then(|fixed| Some((fixed, message.get(fixed..fixed + 10)?)))
        else {
            return out;
        };
        let (fixed, head) = record;
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let ttl = u32::from_be_bytes([head[4], head[5], head[6], head[7]]).saturating_sub(age);
        let end = fixed + 10 + usize::from(u16::from_be_bytes([head[8], head[9]]));
        let data = match kind {
            rtype::A | rtype::AAAA => message.get(fixed + 10..end).map(<[u8]>::to_vec),
            rtype::CNAME => expand(message, fixed + 10),
            _ => None,
        };
        if let (Some(owner), Some(data)) = (expand(message, at), data) {
            out.push(Foreign { owner, kind, ttl, data });
        }
        at = end;
    }
    out
}

/// The name at `at`, uncompressed. Pointers only lead backwards, so this terminates.
fn expand(message: &[u8], mut at: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut before = at;
    loop {
        match *message.get(at)? {
            0 => {
                out.push(0);
                return (out.len() <= 255).then_some(out);
            }
            length @ 1..=63 => {
                let end = at + 1 + usize::from(length);
                out.extend(message.get(at..end)?);
                at = end;
            }
            high @ 0xc0..=0xff => {
                let target = usize::from(u16::from_be_bytes([high & 0x3f, *message.get(at + 1)?]));
                if target >= before {
                    return None;
                }
                (at, before) = (target, target);
            }
            _ => return None,
        }
        if out.len() > 255 {
            return None;
        }
    }
}
