//! Metrics of authentication and authorization.

use crate::authorize::Decision;
use crate::user::UserInfo;
use base::metrics::{Metrics, MetricsError};
use machinery::status::Status;
use prometheus::{Histogram, IntCounter, IntCounterVec};
use std::time::Duration;

/// 1 ms to 16 s by powers of two.
fn buckets() -> Vec<f64> {
    (0..15).map(|power| 0.001 * f64::from(1_u32 << power)).collect()
}

/// Count and durations of one result.
#[derive(Clone)]
struct ResultMetrics {
    count: IntCounter,
    duration: Histogram,
}

impl ResultMetrics {
    fn observe(&self, took: Duration) {
        self.count.inc();
        self.duration.observe(took.as_secs_f64());
    }
}

/// Results of authentication and authorization, resolved once.
#[derive(Clone)]
pub struct AuthenticationMetrics {
    success: ResultMetrics,
    failure: ResultMetrics,
    error: ResultMetrics,
    users: IntCounterVec,
    allowed: ResultMetrics,
    denied: ResultMetrics,
    no_opinion: ResultMetrics,
    authorization_error: ResultMetrics,
    filters: [Histogram; 3],
}

/// Filters of requests whose own time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFilter {
    Authentication,
    PriorityAndFairness,
    Authorization,
}

const FILTER_BUCKETS: [f64; 13] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];

impl AuthenticationMetrics {
    pub fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        let result = &["result"];
        let attempts =
            metrics.counters("authentication_attempts", "Counter of authenticated attempts.", result)?;
        let duration = metrics.histograms(
            "authentication_duration_seconds",
            "Authentication duration in seconds broken out by result.",
            result,
            &buckets(),
        )?;
        let decisions = metrics.counters(
            "authorization_attempts_total",
            "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
            result,
        )?;
        let decided = metrics.histograms(
            "authorization_duration_seconds",
            "Authorization duration in seconds broken out by result.",
            result,
            &buckets(),
        )?;
        let filters = metrics.histograms(
            "apiserver_request_filter_duration_seconds",
            "Request filter latency distribution in seconds, for each filter type",
            &["filter"],
            &FILTER_BUCKETS,
        )?;
        let authentication = |result: &str| ResultMetrics {
            count: attempts.with_label_values(&[result]),
            duration: duration.with_label_values(&[result]),
        };
        let authorization = |result: &str| ResultMetrics {
            count: decisions.with_label_values(&[result]),
            duration: decided.with_label_values(&[result]),
        };
        Ok(Self {
            success: authentication("success"),
            failure: authentication("failure"),
            error: authentication("error"),
            users: metrics.counters(
                "authenticated_user_requests",
                "Counter of authenticated requests broken out by username.",
                &["username"],
            )?,
            allowed: authorization("allowed"),
            denied: authorization("denied"),
            no_opinion: authorization("no-opinion"),
            authorization_error: authorization("error"),
            filters: ["authentication", "priorityandfairness", "authorization"]
                .map(|filter| filters.with_label_values(&[filter])),
        })
    }

    /// Records the time of a filter.
    pub fn filtered(&self, filter: RequestFilter, took: Duration) {
        self.filters[filter as usize].observe(took.as_secs_f64());
    }

    /// Records an attempt; `has_credentials` distinguishes rejected credentials from none.
    pub fn authenticated(&self, user: Option<&UserInfo>, has_credentials: bool, took: Duration) {
        self.filtered(RequestFilter::Authentication, took);
        match user {
            Some(user) => {
                self.users.with_label_values(&[category(&user.name)]).inc();
                self.success.observe(took);
            }
            None if has_credentials => self.error.observe(took),
            None => self.failure.observe(took),
        }
    }

    pub fn authorized(&self, decision: &Result<Decision, Status>, took: Duration) {
        self.filtered(RequestFilter::Authorization, took);
        let result = match decision {
            Ok(Decision::Allowed(_)) => &self.allowed,
            Ok(Decision::Denied(_)) => &self.denied,
            Ok(Decision::NoOpinion(_)) => &self.no_opinion,
            Err(_) => &self.authorization_error,
        };
        result.observe(took);
    }
}

/// Kubernetes' categories of user names.
fn category(name: &str) -> &str {
    match name {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => name,
        _ if name.contains('@') => "email_id",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_become_categories() {
        for (name, want) in [
            ("admin", "admin"),
            ("alice@example.com", "email_id"),
            ("system:node:n1", "other"),
            ("", "other"),
        ] {
            assert_eq!(category(name), want);
        }
    }
}
