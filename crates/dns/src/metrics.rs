//! Metrics of the server, with CoreDNS' names and labels.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Instant;

use base::metrics::{
    Collector, Desc, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, MetricFamily, Metrics,
    MetricsError,
};
use parking_lot::Mutex;

use crate::cache::{Cache, CachedReply};
use crate::resolver::{Source, Transport};
use crate::wire::{rcode, rtype};

/// CoreDNS labels metrics with server blocks and zones; there is one block for all zones here.
const SERVER: &str = "dns://:53";
const ZONE: &str = ".";
const VIEW: &str = "";

const SIZES: [f64; 14] =
    [0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3];

/// Powers of two from a quarter of a millisecond to eight seconds.
fn times() -> Vec<f64> {
    std::iter::successors(Some(0.000_25), |last| Some(last * 2.0)).take(16).collect()
}

const KINDS: [u16; 9] = [
    rtype::A,
    rtype::AAAA,
    rtype::SRV,
    rtype::PTR,
    rtype::CNAME,
    rtype::TXT,
    rtype::SOA,
    rtype::NS,
    rtype::ANY,
];

/// Sources of replies; CoreDNS names the plugin that wrote the reply.
const SOURCES: [(Source, &str); 4] = [
    (Source::Zone, "kubernetes"),
    (Source::Cache, "cache"),
    (Source::Upstream, "forward"),
    (Source::Error, ""),
];

/// One query, from its arrival to its reply.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub transport: Transport,
    pub client: IpAddr,
    pub begun: Instant,
}

impl Exchange {
    #[must_use]
    pub fn new(transport: Transport, client: IpAddr) -> Self {
        Self { transport, client, begun: Instant::now() }
    }
}

fn at(transport: Transport) -> usize {
    usize::from(transport == Transport::Tcp)
}

/// Counters by protocol and address family, and by type, with one for other types.
type Requests = [[Vec<IntCounter>; 2]; 2];

/// Metrics whose labels are resolved once, since they are updated for each query.
#[derive(Clone, Debug)]
pub struct DnsMetrics {
    requests: Arc<Requests>,
    /// By response code and source.
    responses: Arc<Vec<[IntCounter; 4]>>,
    duration: Histogram,
    request_size: [Histogram; 2],
    response_size: [Histogram; 2],
    panics: IntCounter,
    hits: [IntCounter; 2],
    pub(crate) cache_misses: IntCounter,
    pub(crate) cache_requests: IntCounter,
    forward_requests: IntCounterVec,
    forward_responses: IntCounterVec,
    forward_duration: HistogramVec,
    proxy_duration: HistogramVec,
    pub(crate) rejects: IntCounter,
    cache: Arc<Mutex<Weak<Cache>>>,
}

fn add_build_info(metrics: &Metrics) -> Result<(), MetricsError> {
    let build = metrics.gauges(
        "coredns_build_info",
        "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
        &["version", "revision", "goversion"],
    )?;
    build.with_label_values(&[concat!("ferry-", env!("CARGO_PKG_VERSION")), "", ""]).set(1);
    Ok(())
}

impl DnsMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        add_build_info(metrics)?;
        let requests = metrics.counters(
            "coredns_dns_requests_total",
            "Counter of DNS requests made per zone, protocol and family.",
            &["server", "zone", "view", "proto", "family", "type"],
        )?;
        let responses = metrics.counters(
            "coredns_dns_responses_total",
            "Counter of response status codes.",
            &["server", "zone", "view", "rcode", "plugin"],
        )?;
        let sizes = |name: &str, help: &str| {
            let all = metrics.histograms(name, help, &["server", "zone", "view", "proto"], &SIZES)?;
            Ok::<_, MetricsError>(
                ["udp", "tcp"].map(|proto| all.with_label_values(&[SERVER, ZONE, VIEW, proto])),
            )
        };
        let hits = metrics.counters(
            "coredns_cache_hits_total",
            "The count of cache hits.",
            &["server", "type", "zones", "view"],
        )?;
        let of_cache = |name: &str, help: &str| {
            let all = metrics.counters(name, help, &["server", "zones", "view"])?;
            Ok::<_, MetricsError>(all.with_label_values(&[SERVER, ZONE, VIEW]))
        };
        let duration = metrics.histograms(
            "coredns_dns_request_duration_seconds",
            "Histogram of the time (in seconds) each request took per zone.",
            &["server", "zone", "view"],
            &times(),
        )?;
        let cache = Arc::new(Mutex::new(Weak::new()));
        metrics.register(CacheEntries::new(Arc::clone(&cache))?)?;
        Ok(Self {
            requests: Arc::new(by_type(&requests)),
            responses: Arc::new(by_code(&responses)),
            duration: duration.with_label_values(&[SERVER, ZONE, VIEW]),
            request_size: sizes(
                "coredns_dns_request_size_bytes",
                "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
            )?,
            response_size: sizes(
                "coredns_dns_response_size_bytes",
                "Size of the returned response in bytes.",
            )?,
            panics: metrics.counter("coredns_panics_total", "A metrics that counts the number of panics.")?,
            hits: ["success", "denial"].map(|kind| hits.with_label_values(&[SERVER, kind, ZONE, VIEW])),
            cache_misses: of_cache("coredns_cache_misses_total", "The count of cache misses.")?,
            cache_requests: of_cache("coredns_cache_requests_total", "The count of cache requests.")?,
            forward_requests: metrics.counters(
                "coredns_forward_requests_total",
                "Counter of requests made per upstream.",
                &["to"],
            )?,
            forward_responses: metrics.counters(
                "coredns_forward_responses_total",
                "Counter of responses received per upstream.",
                &["to", "rcode"],
            )?,
            forward_duration: metrics.histograms(
                "coredns_forward_request_duration_seconds",
                "Histogram of the time each request took.",
                &["to", "rcode"],
                &times(),
            )?,
            proxy_duration: metrics.histograms(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                &["proxy_name", "to", "rcode"],
                &times(),
            )?,
            rejects: metrics.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
            )?,
            cache,
        })
    }

    pub(crate) fn record_query(&self, exchange: &Exchange, kind: u16, size: usize) {
        let at_kind = KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len());
        let transport = at(exchange.transport);
        self.requests[transport][usize::from(exchange.client.is_ipv6())][at_kind].inc();
        self.request_size[transport].observe(size as f64);
    }

    pub(crate) fn answered(&self, exchange: &Exchange, source: Source, reply: &[u8]) {
        let Some(flags) = reply.get(3) else { return };
        let at_source = SOURCES.iter().position(|(known, _)| *known == source).unwrap_or_default();
        self.responses[usize::from(flags & 0xf)][at_source].inc();
        self.response_size[at(exchange.transport)].observe(reply.len() as f64);
        self.duration.observe(exchange.begun.elapsed().as_secs_f64());
    }

    pub(crate) fn cache_hit(&self, cached: &CachedReply) {
        self.hits[usize::from(cached.is_denial())].inc();
    }

    /// Records an upstream query and its response code.
    pub(crate) fn forwarded(&self, server: SocketAddr, code: Option<u8>, begun: Instant) {
        let to = server.to_string();
        self.forward_requests.with_label_values(&[&to]).inc();
        let Some(code) = code.map(rcode::text) else { return };
        let seconds = begun.elapsed().as_secs_f64();
        self.forward_responses.with_label_values(&[&to, code]).inc();
        self.forward_duration.with_label_values(&[&to, code]).observe(seconds);
        self.proxy_duration.with_label_values(&["forward", &to, code]).observe(seconds);
    }

    /// Sets the cache whose entries are counted.
    pub(crate) fn set_cache(&self, cache: &Arc<Cache>) {
        *self.cache.lock() = Arc::downgrade(cache);
    }

    /// Counts a panic while the result exists.
    pub(crate) fn panic_counter(&self) -> PanicCounter {
        PanicCounter(self.panics.clone())
    }
}

fn by_type(requests: &IntCounterVec) -> Requests {
    let counters = |proto: &str, family: &str| {
        let of = |kind: &str| requests.with_label_values(&[SERVER, ZONE, VIEW, proto, family, kind]);
        KINDS.iter().map(|kind| of(rtype::text(*kind))).chain([of("other")]).collect()
    };
    ["udp", "tcp"].map(|proto| ["1", "2"].map(|family| counters(proto, family)))
}

fn by_code(responses: &IntCounterVec) -> Vec<[IntCounter; 4]> {
    let of = |code: u8, plugin: &str| {
        responses.with_label_values(&[SERVER, ZONE, VIEW, rcode::text(code), plugin])
    };
    (0..16).map(|code| SOURCES.map(|(_, plugin)| of(code, plugin))).collect()
}

/// Counts the panic of a task that holds it.
#[derive(Debug)]
pub struct PanicCounter(IntCounter);

impl Drop for PanicCounter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.inc();
        }
    }
}

/// Entries of the cache, counted when scraped.
struct CacheEntries {
    cache: Arc<Mutex<Weak<Cache>>>,
    entries: IntGaugeVec,
}

impl CacheEntries {
    fn new(cache: Arc<Mutex<Weak<Cache>>>) -> Result<Self, MetricsError> {
        let labels = ["server", "type", "zones", "view"];
        let options =
            base::metrics::Opts::new("coredns_cache_entries", "The number of elements in the cache.");
        Ok(Self { cache, entries: IntGaugeVec::new(options, &labels)? })
    }
}

impl Collector for CacheEntries {
    fn desc(&self) -> Vec<&Desc> {
        self.entries.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let cache = self.cache.lock().upgrade();
        let (success, denial) = cache.map_or((0, 0), |cache| cache.entries());
        for (kind, count) in [("success", success), ("denial", denial)] {
            let gauge = self.entries.with_label_values(&[SERVER, kind, ZONE, VIEW]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    #[test]
    fn panic_of_a_task_is_counted() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let own = DnsMetrics::new(&metrics).expect("new names");
        drop(own.panic_counter());
        let counter = own.panic_counter();
        let panicked = std::thread::spawn(move || {
            let _counter = counter;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(own.panics.get(), 1);
    }
}
