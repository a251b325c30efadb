//! The whole way of a query: the cluster's names, then the cache, then the server that may know.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::cache::{Cache, Kept, Key};
use crate::clients::Clients;
use crate::config::Config;
use crate::metrics::DnsMetrics;
use crate::respond::{Foreign, Outcome, refuse, respond};
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{CLASS_IN, HEADER, Name, Query, QueryError, Reply, flags, labels, rcode, rtype, skip_name};
use crate::zone::Zone;

/// How many questions may wait for others at a time; more are told to come back.
const MAX_WAITING: usize = 1000;

type Asking = Arc<OnceCell<Result<Arc<Kept>, Arc<UpstreamError>>>>;

/// Answers queries.
#[derive(Debug)]
pub struct Resolver {
    zone: Arc<Zone>,
    cache: Cache,
    upstream: Upstream,
    stubs: Vec<(Name, Upstream)>,
    /// Questions on their way to others: who asks the same waits for the same answer.
    asking: Mutex<HashMap<Key, Asking>>,
    waiting: Semaphore,
    /// Admitted clients.
    pub clients: Clients,
    pub metrics: DnsMetrics,
}

/// How a query came, which says how large the reply may be.
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

/// What became of a query at first sight.
#[derive(Debug)]
pub enum Step {
    /// Nothing is to be sent.
    Silence,
    /// The reply is in the buffer.
    Reply,
    /// Others have to be asked: [`Resolver::finish`].
    Ask,
}

impl Resolver {
    #[must_use]
    pub fn new(zone: Arc<Zone>, config: &Config, metrics: DnsMetrics) -> Self {
        let stub = |stub: &crate::config::StubDomain| {
            (stub.domain.clone(), Upstream::new(stub.servers.clone(), config.cache_ttl))
        };
        Self {
            zone,
            cache: Cache::new(config.cache_entries),
            upstream: Upstream::new(config.upstreams.clone(), config.cache_ttl),
            stubs: config.stub_domains.iter().map(stub).collect(),
            asking: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING),
            clients: Clients::new(&config.clients, config.listen.iter().map(SocketAddr::ip)),
            metrics,
        }
    }

    /// Answers at once what can be.
    pub fn begin(&self, message: &[u8], transport: Transport, buffer: &mut Vec<u8>) -> Step {
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(QueryError::Ignore) => return Step::Silence,
            Err(QueryError::Malformed { id, flags }) => {
                Reply::bare(buffer, id, flags, rcode::FORMAT_ERROR);
                return Step::Reply;
            }
            Err(QueryError::Operation { id, flags }) => {
                Reply::bare(buffer, id, flags, rcode::NOT_IMPLEMENTED);
                return Step::Reply;
            }
        };
        self.metrics.asked(query.rtype);
        let limit = transport.limit(&query);
        match respond(&self.zone, &query, limit, None, buffer) {
            Outcome::Answered => Step::Reply,
            Outcome::Alias { .. } => Step::Ask,
            Outcome::Elsewhere => match self.cache.get(&Key::of(&query), Instant::now()) {
                Some((kept, age)) => {
                    self.metrics.cache_hits.inc();
                    kept.write(&query, age, limit, buffer);
                    Step::Reply
                }
                None => {
                    self.metrics.cache_misses.inc();
                    Step::Ask
                }
            },
        }
    }

    /// Answers what others had to be asked for.
    pub async fn finish(&self, message: &[u8], transport: Transport, buffer: &mut Vec<u8>) {
        let Ok(query) = Query::parse(message) else { return };
        let limit = transport.limit(&query);
        match respond(&self.zone, &query, limit, None, buffer) {
            Outcome::Answered => {}
            Outcome::Elsewhere => match self.ask(&query).await {
                Some((kept, age)) => kept.write(&query, age, limit, buffer),
                None => refuse(&query, buffer, rcode::SERVER_FAILURE),
            },
            Outcome::Alias { target } => {
                let question = question_for(&target, query.rtype);
                let Ok(onward) = Query::parse(&question) else { return };
                // Without the target's records the client has the alias and may follow it itself.
                if let Some((kept, age)) = self.ask(&onward).await {
                    let records = answers(kept.message(), age);
                    respond(&self.zone, &query, limit, Some(&records), buffer);
                }
            }
        }
    }

    /// From the cache, from somebody who is asking already, or from the server that may know.
    async fn ask(&self, query: &Query<'_>) -> Option<(Arc<Kept>, u32)> {
        let key = Key::of(query);
        if let Some(found) = self.cache.get(&key, Instant::now()) {
            return Some(found);
        }
        let Ok(_waiting) = self.waiting.try_acquire() else {
            self.metrics.refused.inc();
            return None;
        };
        let asking = Arc::clone(self.asking.lock().entry(key.clone()).or_default());
        let upstream = self.upstream_for(query.name());
        let outcome = asking
            .get_or_init(|| async {
                self.metrics.forwarded.inc();
                upstream.ask(query).await.map(Arc::new).map_err(Arc::new)
            })
            .await
            .clone();
        self.asking.lock().remove(&key);
        match outcome {
            Ok(kept) => {
                self.cache.put(key, Arc::clone(&kept), Instant::now());
                Some((kept, 0))
            }
            Err(error) => {
                self.metrics.failed.inc();
                tracing::debug!(name = query.name_text(), %error, "nobody answers");
                None
            }
        }
    }

    /// The stub domain with the longest match, or everybody's upstream.
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

/// The addresses and aliases in the answer section of a reply that [`Kept::read`] has accepted.
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

/// The name at `at`, without compression. Pointers only lead backwards, so it ends.
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
