//! Figures of the server.

use base::metrics::{IntCounter, Metrics, MetricsError};

use crate::wire::{rcode, rtype};

/// Counters, one per label that matters, looked up once.
#[derive(Clone, Debug)]
pub struct DnsMetrics {
    asked: Vec<(u16, IntCounter)>,
    asked_other: IntCounter,
    answered: Vec<IntCounter>,
    pub(crate) cache_hits: IntCounter,
    pub(crate) cache_misses: IntCounter,
    pub(crate) forwarded: IntCounter,
    pub(crate) failed: IntCounter,
    pub(crate) refused: IntCounter,
}

impl DnsMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let asked = metrics.counters("ferry_dns_requests_total", "Queries, by type.", &["type"])?;
        let answered = metrics.counters("ferry_dns_responses_total", "Replies, by code.", &["rcode"])?;
        let kinds =
            [rtype::A, rtype::AAAA, rtype::SRV, rtype::PTR, rtype::CNAME, rtype::TXT, rtype::SOA, rtype::NS];
        Ok(Self {
            asked: kinds.iter().map(|kind| (*kind, asked.with_label_values(&[rtype::text(*kind)]))).collect(),
            asked_other: asked.with_label_values(&["other"]),
            answered: (0..16).map(|code| answered.with_label_values(&[rcode::text(code)])).collect(),
            cache_hits: metrics
                .counter("ferry_dns_cache_hits_total", "Answers of others that were still fresh.")?,
            cache_misses: metrics
                .counter("ferry_dns_cache_misses_total", "Queries that others had to be asked for.")?,
            forwarded: metrics
                .counter("ferry_dns_forward_requests_total", "Queries sent to other servers.")?,
            failed: metrics
                .counter("ferry_dns_forward_failures_total", "Queries that no other server answered.")?,
            refused: metrics.counter(
                "ferry_dns_forward_refused_total",
                "Queries refused because too many waited for other servers.",
            )?,
        })
    }

    pub(crate) fn asked(&self, kind: u16) {
        let counter = self.asked.iter().find(|(known, _)| *known == kind);
        counter.map_or(&self.asked_other, |(_, counter)| counter).inc();
    }

    pub(crate) fn answered(&self, reply: &[u8]) {
        if let Some(flags) = reply.get(3) {
            self.answered[usize::from(flags & 0xf)].inc();
        }
    }
}
