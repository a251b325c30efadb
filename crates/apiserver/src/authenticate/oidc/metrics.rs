//! `apiserver_authentication_jwt_authenticator_*`.

use crate::reload::{hash, server_id_hash};
use base::clock::Clock;
use base::metrics::{HistogramVec, IntGaugeVec, Metrics, MetricsError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;

pub struct JwtMetrics {
    latency: HistogramVec,
    last_fetch: IntGaugeVec,
    key_sets: IntGaugeVec,
    /// Hashes of key sets, by hash of their issuer.
    known: Mutex<HashMap<String, String>>,
    server: String,
    clock: Clock,
}

impl JwtMetrics {
    pub fn new(metrics: &Metrics, clock: &Clock) -> Result<Self, MetricsError> {
        const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
        Ok(Self {
            latency: metrics.histograms(
                "apiserver_authentication_jwt_authenticator_latency_seconds",
                "Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
                &["result", "jwt_issuer_hash"],
                &SECONDS,
            )?,
            last_fetch: metrics.gauges(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
                "Timestamp of the last successful or failed JWKS fetch split by result, api server identity and jwt issuer for the JWT authenticator.",
                &["result", "jwt_issuer_hash", "apiserver_id_hash"],
            )?,
            key_sets: metrics.gauges(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
                "Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api server identity and jwt issuer.",
                &["jwt_issuer_hash", "apiserver_id_hash", "hash"],
            )?,
            known: Mutex::default(),
            server: server_id_hash(),
            clock: clock.clone(),
        })
    }

    pub fn authenticated(&self, issuer: &str, accepted: bool, time: Duration) {
        let result = if accepted { "success" } else { "failure" };
        self.latency.with_label_values(&[result, &hash(issuer.as_bytes())]).observe(time.as_secs_f64());
    }

    /// Records a fetch of an issuer's key set; `None`: it failed.
    pub fn fetched(&self, issuer: &str, key_set: Option<&[u8]>) {
        let issuer = hash(issuer.as_bytes());
        let result = if key_set.is_some() { "success" } else { "failure" };
        let labels = [result, issuer.as_str(), self.server.as_str()];
        self.last_fetch.with_label_values(&labels).set(self.clock.now().as_second());
        if let Some(key_set) = key_set {
            let hash = hash(key_set);
            self.key_sets.with_label_values(&[issuer.as_str(), &self.server, &hash]).set(1);
            let old = self.known.lock().insert(issuer.clone(), hash.clone());
            if let Some(old) = old.filter(|old| *old != hash) {
                // The series exists.
                let _ = self.key_sets.remove_label_values(&[issuer.as_str(), &self.server, &old]);
            }
        }
    }

    /// Removes the series of an issuer that is no longer configured.
    pub fn forget(&self, issuer: &str) {
        let issuer = hash(issuer.as_bytes());
        // Fails only for absent series.
        for result in ["success", "failure"] {
            let _ = self.last_fetch.remove_label_values(&[result, &issuer, &self.server]);
        }
        if let Some(old) = self.known.lock().remove(&issuer) {
            let _ = self.key_sets.remove_label_values(&[issuer.as_str(), &self.server, &old]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_set_metrics_are_labelled_by_hash() {
        let clock = Clock::system();
        let metrics = Metrics::new(&clock).expect("metrics");
        let jwt = JwtMetrics::new(&metrics, &clock).expect("new names");
        let shown = |text: &str| {
            let all = String::from_utf8(metrics.encode().expect("encoded")).expect("UTF-8");
            all.lines().filter(|line| !line.starts_with('#') && line.contains(text)).count()
        };
        jwt.fetched("https://a.example.com", Some(b"one"));
        jwt.fetched("https://b.example.com", Some(b"one"));
        jwt.fetched("https://a.example.com", None);
        assert_eq!((shown("key_set_info{"), shown("last_timestamp_seconds{")), (2, 3));
        // Another key set replaces the first.
        jwt.fetched("https://a.example.com", Some(b"two"));
        assert_eq!((shown("key_set_info{"), shown(&hash(b"two"))), (2, 1));
        jwt.forget("https://a.example.com");
        assert_eq!((shown("key_set_info{"), shown("last_timestamp_seconds{")), (1, 1));
    }
}
