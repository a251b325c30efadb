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

use crate::metrics::CONDITION_BUCKETS;

const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Names of webhooks that get series of their own; others share one.
const MAX_HOOKS: usize = 256;
const OTHER: &str = "other";
const CONDITION_LABELS: [&str; 4] = ["name", "kind", "operation", "type"];

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
    validations: PolicyMetrics<4>,
    mutations: PolicyMetrics<3>,
    condition_seconds: HistogramVec,
    condition_errors: IntCounterVec,
    condition_exclusions: IntCounterVec,
    pod_security: IntCounterVec,
    pod_security_exemptions: IntCounterVec,
}

/// Checks of policies.
struct PolicyMetrics<const LABELS: usize> {
    checks: IntCounterVec,
    seconds: HistogramVec,
}

impl<const LABELS: usize> PolicyMetrics<LABELS> {
    fn new(
        metrics: &Metrics,
        [checks, seconds]: [&str; 2],
        labels: [&str; LABELS],
    ) -> std::result::Result<Self, MetricsError> {
        Ok(Self {
            checks: metrics.counters(
                checks,
                "Admission policy check total, labeled by policy and further identified by binding.",
                &labels,
            )?,
            seconds: metrics.histograms(
                seconds,
                "Admission latency of individual policies in seconds, labeled by policy and further including binding.",
                &labels,
                &POLICY_BUCKETS,
            )?,
        })
    }

    fn record(&self, labels: [&str; LABELS], took: Duration) {
        self.checks.with_label_values(&labels).inc();
        self.seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

const POLICY_BUCKETS: [f64; 5] = [5e-7, 0.001, 0.01, 0.1, 1.0];

/// Kind of the error that a message of an evaluation reports, as a label.
pub fn error_type(message: &str) -> &'static str {
    // Several messages are in brackets.
    let message = message.trim_start_matches('[');
    match message {
        _ if message.contains(super::policies::OUT_OF_BUDGET) => "out_of_budget",
        _ if message.starts_with("compilation error: ") => "compile_error",
        _ if message.starts_with("expression '") && message.contains(" resulted in error: ") => {
            "invalid_error"
        }
        _ => "no_error",
    }
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
            validations: PolicyMetrics::new(
                metrics,
                [
                    "apiserver_validating_admission_policy_check_total",
                    "apiserver_validating_admission_policy_check_duration_seconds",
                ],
                ["policy", "policy_binding", "error_type", "enforcement_action"],
            )?,
            mutations: PolicyMetrics::new(
                metrics,
                [
                    "apiserver_mutating_admission_policy_check_total",
                    "apiserver_mutating_admission_policy_check_duration_seconds",
                ],
                ["policy", "policy_binding", "error_type"],
            )?,
            condition_seconds: metrics.histograms(
                "apiserver_admission_match_condition_evaluation_seconds",
                "Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validate or admit).",
                &CONDITION_LABELS,
                &CONDITION_BUCKETS,
            )?,
            condition_errors: metrics.counters(
                "apiserver_admission_match_condition_evaluation_errors_total",
                "Admission match condition evaluation errors count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
                &CONDITION_LABELS,
            )?,
            condition_exclusions: metrics.counters(
                "apiserver_admission_match_condition_exclusions_total",
                "Admission match condition evaluation exclusions count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
                &CONDITION_LABELS,
            )?,
            pod_security: metrics.counters(
                "pod_security_evaluations_total",
                "Number of policy evaluations that occurred, not counting ignored or exempt requests.",
                &[
                    "decision",
                    "policy_level",
                    "policy_version",
                    "mode",
                    "request_operation",
                    "resource",
                    "subresource",
                ],
            )?,
            pod_security_exemptions: metrics.counters(
                "pod_security_exemptions_total",
                "Number of exempt requests, not counting ignored or out of scope requests.",
                &["request_operation", "resource", "subresource"],
            )?,
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

    /// Records the result of a validating policy for one binding and an enforcement action.
    pub fn validated(&self, [policy, binding]: [&str; 2], error: &str, action: &str, took: Duration) {
        let (policy, binding) = (self.hook(policy), self.hook(binding));
        self.validations.record([&*policy, &*binding, error, action], took);
    }

    /// Records the result of a mutating policy for one binding.
    pub fn mutated(&self, [policy, binding]: [&str; 2], error: &str, took: Duration) {
        let (policy, binding) = (self.hook(policy), self.hook(binding));
        self.mutations.record([&*policy, &*binding, error], took);
    }

    /// Records the match conditions of a webhook.
    pub fn webhook_conditions(
        &self,
        name: &str,
        (step, operation): (Step, Operation),
        outcome: std::result::Result<bool, &str>,
        took: Duration,
    ) {
        let name = self.hook(name);
        let labels = [&*name, "webhook", operation.label(), step.label()];
        self.condition_seconds.with_label_values(&labels).observe(took.as_secs_f64());
        match outcome {
            Ok(true) => {}
            Ok(false) => self.condition_exclusions.with_label_values(&labels).inc(),
            Err(_) => self.condition_errors.with_label_values(&labels).inc(),
        }
    }

    /// Records a pod security decision: level and version of the policy, its mode, and labels of the write.
    pub fn pod_security(
        &self,
        decision: &str,
        [level, version, mode]: [&str; 3],
        [operation, resource, subresource]: [&str; 3],
    ) {
        let labels = [decision, level, version, mode, operation, resource, subresource];
        self.pod_security.with_label_values(&labels).inc();
    }

    /// Records a write that is exempt from pod security.
    pub fn pod_security_exemption(&self, written: [&str; 3]) {
        self.pod_security_exemptions.with_label_values(&written).inc();
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
    fn policy_names_are_limited() {
        let metrics = Metrics::new(&Clock::system()).expect("a registry");
        let admission = AdmissionMetrics::new(&metrics, ["A"].into_iter()).expect("metrics");
        for number in 0..2 * MAX_HOOKS {
            let names = [&*format!("policy{number}"), "binding"];
            admission.validated(names, "no_error", "deny", Duration::ZERO);
            admission.mutated(names, "no_error", Duration::ZERO);
        }
        let text = String::from_utf8(metrics.encode().expect("encoded")).expect("text");
        for family in ["validating", "mutating"] {
            let row = format!("apiserver_{family}_admission_policy_check_total{{");
            let rows = text.lines().filter(|line| line.starts_with(&row)).count();
            assert!(rows <= MAX_HOOKS + 1, "{family}: {rows} rows");
        }
    }

    #[test]
    fn errors_of_evaluations_have_types() {
        let budget = crate::admission::policies::OUT_OF_BUDGET;
        for (message, want) in [
            ("compilation error: undeclared reference", "compile_error"),
            ("expression 'object.x' resulted in error: no such key: x", "invalid_error"),
            ("[expression 'a' resulted in error: b, expression 'c' resulted in error: d]", "invalid_error"),
            (budget, "out_of_budget"),
            ("failed expression: object.spec.replicas < 5", "no_error"),
        ] {
            assert_eq!(error_type(message), want, "{message}");
        }
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
