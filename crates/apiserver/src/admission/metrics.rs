//! Metrics of admission plugins and webhooks, with Kubernetes' names.

use super::Operation;
use super::webhooks::call::WebhookOutcome;
use base::metrics::{HistogramVec, IntCounterVec, Metrics, MetricsError};
use machinery::status::Result;
use parking_lot::Mutex;
use prometheus::Histogram;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Names of webhooks that get series of their own; others share one.
const MAX_HOOKS: usize = 256;
const OTHER: &str = "other";

/// The step of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Admit,
    Validate,
}

impl Step {
    pub fn label(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// Durations by step, operation and outcome, resolved on first use.
#[derive(Default)]
struct Durations([OnceLock<Histogram>; 16]);

impl Durations {
    fn observe(
        &self,
        (step, operation, is_rejected): (Step, Operation, bool),
        took: Duration,
        resolve: impl FnOnce([&str; 3]) -> Histogram,
    ) {
        let index = (step as usize) << 3 | (operation as usize) << 1 | usize::from(is_rejected);
        let labels = || resolve([step.label(), operation.label(), flag(is_rejected)]);
        self.0[index].get_or_init(labels).observe(took.as_secs_f64());
    }
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

pub struct AdmissionMetrics {
    steps: HistogramVec,
    controllers: HistogramVec,
    webhooks: HistogramVec,
    webhook_requests: IntCounterVec,
    webhook_rejections: IntCounterVec,
    webhook_fail_open: IntCounterVec,
    step_durations: Durations,
    /// By plugin.
    durations: Vec<(&'static str, Durations)>,
    hooks: Mutex<HashSet<Arc<str>>>,
}

impl AdmissionMetrics {
    pub fn new(
        metrics: &Metrics,
        plugins: impl Iterator<Item = &'static str>,
    ) -> std::result::Result<Self, MetricsError> {
        Ok(Self {
            steps: metrics.histograms(
                "apiserver_admission_step_admission_duration_seconds",
                "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
                &["type", "operation", "rejected"],
                &BUCKETS[..6],
            )?,
            controllers: metrics.histograms(
                "apiserver_admission_controller_admission_duration_seconds",
                "Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
                &["name", "type", "operation", "rejected"],
                &BUCKETS[..6],
            )?,
            webhooks: metrics.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
                &["name", "type", "operation", "rejected"],
                &BUCKETS,
            )?,
            webhook_requests: metrics.counters(
                "apiserver_admission_webhook_request_total",
                "Admission webhook request total, identified by name and broken out for each admission type (validating or admit) and operation, with the HTTP status code and whether the request was rejected.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
            webhook_rejections: metrics.counters(
                "apiserver_admission_webhook_rejection_count",
                "Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation, with the type of the error and the code of the rejection.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            webhook_fail_open: metrics.counters(
                "apiserver_admission_webhook_fail_open_count",
                "Admission webhook fail open count, identified by name and broken out for each admission type (validating or admit).",
                &["name", "type"],
            )?,
            step_durations: Durations::default(),
            durations: plugins.map(|name| (name, Durations::default())).collect(),
            hooks: Mutex::default(),
        })
    }

    /// Records a plugin; `index` is its place in the chain.
    pub fn plugin(&self, index: usize, what: (Step, Operation, bool), took: Duration) {
        if let Some((name, durations)) = self.durations.get(index) {
            durations.observe(what, took, |[step, operation, rejected]| {
                self.controllers.with_label_values(&[*name, step, operation, rejected])
            });
        }
    }

    /// Records the whole chain.
    pub fn step(&self, what: (Step, Operation, bool), took: Duration) {
        self.step_durations.observe(what, took, |labels| self.steps.with_label_values(&labels));
    }

    /// Records a call of a webhook.
    pub fn webhook(
        &self,
        name: &str,
        (step, operation): (Step, Operation),
        outcome: &Result<WebhookOutcome>,
        is_denied: bool,
        took: Duration,
    ) {
        let (name, step, operation) = (self.hook(name), step.label(), operation.label());
        let rejected = flag(outcome.is_err());
        let code = match outcome {
            Ok(WebhookOutcome::FailedOpen) => 0,
            Ok(_) => 200,
            Err(status) => status.code.min(600),
        };
        let mut buffer = itoa::Buffer::new();
        let code = buffer.format(code);
        self.webhooks.with_label_values(&[&*name, step, operation, rejected]).observe(took.as_secs_f64());
        self.webhook_requests.with_label_values(&[&*name, step, operation, code, rejected]).inc();
        match outcome {
            Ok(WebhookOutcome::FailedOpen) => self.webhook_fail_open.with_label_values(&[&*name, step]).inc(),
            Ok(_) => {}
            Err(_) => {
                let (error, code) =
                    if is_denied { ("no_error", code) } else { ("calling_webhook_error", "0") };
                self.webhook_rejections.with_label_values(&[&*name, step, operation, error, code]).inc();
            }
        }
    }

    /// The label of a webhook. Names of configurations are chosen by their authors, so their number is limited.
    fn hook(&self, name: &str) -> Arc<str> {
        let mut hooks = self.hooks.lock();
        match hooks.get(name) {
            Some(known) => Arc::clone(known),
            None if hooks.len() >= MAX_HOOKS => Arc::from(OTHER),
            None => {
                let name: Arc<str> = Arc::from(name);
                hooks.insert(Arc::clone(&name));
                name
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;

    #[test]
    fn webhook_names_are_limited() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let admission = AdmissionMetrics::new(&metrics, ["A"].into_iter()).expect("metrics");
        for number in 0..2 * MAX_HOOKS {
            let outcome = Ok(WebhookOutcome::FailedOpen);
            let at = (Step::Admit, Operation::Create);
            admission.webhook(&format!("hook{number}"), at, &outcome, false, Duration::ZERO);
        }
        let text = String::from_utf8(metrics.encode().expect("encoded")).expect("text");
        let rows =
            text.lines().filter(|line| line.starts_with("apiserver_admission_webhook_fail_open_count{"));
        assert_eq!(rows.count(), MAX_HOOKS + 1);
        assert!(text.contains(&format!("fail_open_count{{name=\"other\",type=\"admit\"}} {MAX_HOOKS}")));
    }

    #[test]
    fn durations_are_recorded_by_plugin_and_step() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let admission = AdmissionMetrics::new(&metrics, ["A", "B"].into_iter()).expect("metrics");
        admission.plugin(1, (Step::Validate, Operation::Delete, true), Duration::from_millis(10));
        admission.plugin(1, (Step::Admit, Operation::Connect, false), Duration::from_millis(10));
        admission.step((Step::Admit, Operation::Update, false), Duration::from_secs(2));
        let text = String::from_utf8(metrics.encode().expect("encoded")).expect("text");
        for line in [
            r#"apiserver_admission_controller_admission_duration_seconds_bucket{name="B",operation="DELETE",rejected="true",type="validate",le="0.025"} 1"#,
            r#"apiserver_admission_controller_admission_duration_seconds_count{name="B",operation="CONNECT",rejected="false",type="admit"} 1"#,
            r#"apiserver_admission_step_admission_duration_seconds_bucket{operation="UPDATE",rejected="false",type="admit",le="1"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
