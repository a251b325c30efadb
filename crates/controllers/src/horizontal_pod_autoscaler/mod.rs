//! The horizontal pod autoscaler. Watches autoscalers; every fifteen seconds it compares the usage of their pods with
//! their targets and scales the target, within the limits of their behavior.

pub mod behavior;
pub mod calculate;
mod measure;
pub mod metrics;
mod selectors;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, Dynamic};
use jiff::Timestamp;
use machinery::quantity::Quantity;
use machinery::selector::LabelSelector;
use objects::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricSpec,
};
use objects::core::v1::Pod;
use objects::meta::v1::Time;
use parking_lot::Mutex;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::shared::metrics::of as metrics_of;
use crate::{AutoscalerSettings, Settings};

use self::behavior::{Limits, Memory};
use self::calculate::Tolerance;
use self::measure::{MeasureError, Measured, Measurement, Recommendation};
use self::selectors::Selectors;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "horizontal-pod-autoscaler-controller",
    resource: "horizontalpodautoscalers.autoscaling",
    identity: "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
    workers: 5,
};

/// Labels of metrics: no action or no error, and an error of a computation or another component.
const NONE: &str = "none";
const INTERNAL: &str = "internal";

/// Attempts to write a scale under conflicts.
const WRITE_ATTEMPTS: u32 = 5;

#[derive(Debug, thiserror::Error)]
enum HpaError {
    #[error("no matches for kind {kind:?} in version {version:?}")]
    UnknownKind { kind: String, version: String },
    #[error(transparent)]
    Client(#[from] ClientError),
}

struct Autoscalers {
    autoscalers: Cache<HorizontalPodAutoscaler>,
    pods: Cache<Pod>,
    memories: Mutex<HashMap<Key, Memory>>,
    selectors: Selectors,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let autoscalers = ctx.watch::<HorizontalPodAutoscaler>(|change| match change.old() {
        Some(old) if old.spec == change.object().spec => Vec::new(),
        _ => vec![Key::of(&**change.object())],
    });
    if let Some(metrics) = metrics_of(ctx) {
        let (all, counted) = (autoscalers.clone(), autoscalers.clone());
        metrics.autoscalers.autoscalers.compute(&ctx.tasks, move |rows| {
            rows.with_label_values::<&str>(&[]).set(counted.count() as f64);
        });
        metrics.autoscalers.desired.compute(&ctx.tasks, move |rows| {
            for hpa in all.all() {
                let name = |text: &Option<String>| text.clone().unwrap_or_default();
                let labels = [name(&hpa.metadata.namespace), name(&hpa.metadata.name)];
                if let Some(status) = &hpa.status {
                    rows.with_label_values(&labels).set(f64::from(status.desired_replicas));
                }
            }
        });
    }
    Box::new(Autoscalers {
        autoscalers,
        pods: ctx.cache(),
        memories: Mutex::default(),
        selectors: Selectors::default(),
    })
}

/// Current scale of the target.
struct Scale {
    object: Value,
    resource: Dynamic,
    replicas: i32,
    observed: i32,
    selector: String,
}

#[async_trait]
impl Loop for Autoscalers {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(hpa) = self.autoscalers.get_key(key) else {
            self.memories.lock().remove(key);
            self.selectors.remove(key);
            return Ok(Action::Done);
        };
        let now = ctx.clock.now();
        let before = hpa.status.clone().unwrap_or_default();
        let mut status = before.clone();
        let started = Instant::now();
        let (action, mut error) = self.scale(key, &hpa, &mut status, ctx, now).await;
        let mut written = Ok(());
        if status != before {
            let updated = HorizontalPodAutoscaler { status: Some(status), ..hpa.as_ref().clone() };
            written = ctx.client.update_status(&updated).await.map(drop);
        }
        if let Some(metrics) = metrics_of(ctx) {
            if written.is_err() {
                error = INTERNAL;
            }
            let labels = [action, error];
            metrics.autoscalers.reconciliations.with_label_values(&labels).inc();
            let seconds = metrics.autoscalers.reconciliation_seconds.with_label_values(&labels);
            seconds.observe(started.elapsed().as_secs_f64());
        }
        written?;
        Ok(Action::RequeueAfter(Settings::of(ctx).autoscaler.period))
    }
}

impl Autoscalers {
    /// Performs one reconciliation; failures are reported in conditions and events. Returns the labels of the action
    /// and of the first error.
    async fn scale(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        status: &mut HorizontalPodAutoscalerStatus,
        ctx: &Context,
        now: Timestamp,
    ) -> (&'static str, &'static str) {
        status.observed_generation = hpa.metadata.generation;
        let scale = match read_scale(hpa, ctx).await {
            Ok(scale) => scale,
            Err(error) => {
                ctx.recorder.warning(hpa, "FailedGetScale", error.to_string());
                let message =
                    format!("the HPA controller was unable to get the target's current scale: {error}");
                set(status, "AbleToScale", false, "FailedGetScale", &message, now);
                return (NONE, INTERNAL);
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        set(status, "AbleToScale", true, "SucceededGetScale", message, now);
        let current = scale.replicas;
        self.memories.lock().entry(key.clone()).or_default().begin(current, now);
        let min = hpa.spec.min_replicas.unwrap_or(1);
        let downscale_window = Settings::of(ctx).autoscaler.downscale_window;
        let limits = Limits { current, min, max: hpa.spec.max_replicas, downscale_window };
        status.current_replicas = Some(current);
        let mut first_error = NONE;
        let (desired, reason) = if current == 0 && min != 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            set(status, "ScalingActive", false, "ScalingDisabled", message, now);
            (0, String::new())
        } else if current > limits.max {
            (limits.max, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let (proposal, error) = self.propose(key, hpa, &scale, status, ctx, now).await;
            first_error = error;
            let Some((proposed, metric)) = proposal else { return (NONE, error) };
            let reason = rescale_reason(proposed, current, &metric);
            let behavior = hpa.spec.behavior.as_ref();
            let mut memories = self.memories.lock();
            let memory = memories.entry(key.clone()).or_default();
            let (desired, findings) = memory.follow(proposed, limits, behavior, now);
            for (kind, value, reason, message) in findings {
                set(status, kind, value, reason, message, now);
            }
            (desired, reason)
        };
        status.desired_replicas = current;
        if desired == current {
            return (NONE, first_error);
        }
        match write_scale(key, hpa, scale, desired, ctx).await {
            Ok(()) => {
                let message = format!("the HPA controller was able to update the target scale to {desired}");
                set(status, "AbleToScale", true, "SucceededRescale", &message, now);
                ctx.recorder.normal(
                    hpa,
                    "SuccessfulRescale",
                    format!("New size: {desired}; reason: {reason}"),
                );
                self.memories.lock().entry(key.clone()).or_default().changed(current, desired, now);
                status.desired_replicas = desired;
                status.last_scale_time = Some(Time(now));
                (action(current, desired), first_error)
            }
            Err(error) => {
                let note = format!("New size: {desired}; reason: {reason}; error: {error}");
                ctx.recorder.warning(hpa, "FailedRescale", note);
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                set(status, "AbleToScale", false, "FailedUpdateScale", &message, now);
                (NONE, if first_error == NONE { INTERNAL } else { first_error })
            }
        }
    }

    /// Largest recommendation of all metrics and its metric, `None` if they are unusable, and the label of the first
    /// error.
    async fn propose(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        status: &mut HorizontalPodAutoscalerStatus,
        ctx: &Context,
        now: Timestamp,
    ) -> (Option<(i32, String)>, &'static str) {
        let pods = match self.selected(key, hpa, scale, status, ctx, now) {
            Ok(pods) => pods,
            Err(why) => {
                status.current_metrics = None;
                ctx.recorder.warning(hpa, "FailedComputeMetricsReplicas", why);
                return (None, INTERNAL);
            }
        };
        let specs = hpa.spec.metrics.as_deref().unwrap_or_default();
        let measurement = Measurement {
            client: &ctx.client,
            namespace: &key.namespace,
            replicas: scale.replicas,
            observed: scale.observed,
            selector: &scale.selector,
            pods: &pods,
            tolerance: tolerance(hpa, &Settings::of(ctx).autoscaler),
            now,
        };
        let mut results = Vec::with_capacity(specs.len());
        let mut first_error = NONE;
        for spec in specs {
            let started = Instant::now();
            let result = measurement.of(spec).await;
            let labels = computation(&result, spec, hpa);
            if first_error == NONE {
                first_error = labels[1];
            }
            if let Some(metrics) = metrics_of(ctx) {
                metrics.autoscalers.computations.with_label_values(&labels).inc();
                let seconds = metrics.autoscalers.computation_seconds.with_label_values(&labels);
                seconds.observe(started.elapsed().as_secs_f64());
            }
            if let Err(error) = &result {
                ctx.recorder.warning(hpa, error.reason, error.message.clone());
            }
            results.push(result);
        }
        let Measured { statuses, outcome } = Measured::of(results, scale.replicas);
        status.current_metrics = Some(statuses).filter(|statuses| !statuses.is_empty());
        match outcome {
            Some(Ok((replicas, metric))) => {
                let message =
                    format!("the HPA was able to successfully calculate a replica count from {metric}");
                set(status, "ScalingActive", true, "ValidMetricFound", &message, now);
                (Some((replicas, metric)), first_error)
            }
            Some(Err((error, note))) => {
                let message = format!("the HPA was unable to compute the replica count: {}", error.message);
                set(status, "ScalingActive", false, error.reason, &message, now);
                ctx.recorder.warning(hpa, "FailedComputeMetricsReplicas", note);
                (None, first_error)
            }
            None => (None, NONE),
        }
    }

    /// Pods of the target's selector, provided that no other autoscaler selects any of them.
    fn selected(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        status: &mut HorizontalPodAutoscalerStatus,
        ctx: &Context,
        now: Timestamp,
    ) -> Result<Vec<Arc<Pod>>, String> {
        if scale.selector.is_empty() {
            ctx.recorder.warning(hpa, "SelectorRequired", "selector is required");
            let message = "the HPA target's scale is missing a selector";
            set(status, "ScalingActive", false, "InvalidSelector", message, now);
            return Err("selector is required".to_owned());
        }
        let mut refuse = |reason: &'static str, message: String| {
            ctx.recorder.warning(hpa, reason, message.clone());
            set(status, "ScalingActive", false, reason, &message, now);
            message
        };
        let parsed = LabelSelector::parse(&scale.selector).map_err(|error| {
            let why =
                format!("couldn't convert selector into a corresponding internal selector object: {error}");
            refuse("InvalidSelector", why)
        })?;
        let selects = |pod: &Pod| {
            let labels: Vec<_> = pod.metadata.labels.iter().flatten().collect();
            parsed.matches(labels.as_slice())
        };
        let pods: Vec<_> = self.pods.list(&key.namespace).into_iter().filter(|pod| selects(pod)).collect();
        self.selectors.record(key, &scale.selector, parsed.clone());
        let labels: BTreeSet<_> = pods.iter().filter_map(|pod| pod.metadata.labels.as_ref()).collect();
        let selecting = self.selectors.selecting(&key.namespace, &labels);
        if selecting.len() > 1 {
            let names: Vec<String> =
                selecting.iter().map(|name| format!("{}/{name}", key.namespace)).collect();
            let (selector, names) = (&scale.selector, names.join(" "));
            let why = format!("pods by selector {selector} are controlled by multiple HPAs: [{names}]");
            return Err(refuse("AmbiguousSelector", why));
        }
        Ok(pods)
    }
}

/// Reason of a rescale in events; `metric` has the largest recommendation.
fn rescale_reason(proposed: i32, current: i32, metric: &str) -> String {
    match proposed.cmp(&current) {
        std::cmp::Ordering::Greater => format!("{metric} above target"),
        std::cmp::Ordering::Less => "All metrics below target".to_owned(),
        std::cmp::Ordering::Equal => String::new(),
    }
}

/// Label of a change of the number of replicas.
fn action(from: i32, to: i32) -> &'static str {
    match to.cmp(&from) {
        std::cmp::Ordering::Greater => "scale_up",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => NONE,
    }
}

/// Labels of the computation of one metric: action, error and type.
fn computation(
    result: &Result<Recommendation, MeasureError>,
    spec: &MetricSpec,
    hpa: &HorizontalPodAutoscaler,
) -> [&'static str; 3] {
    let types = ["Object", "Pods", "Resource", "ContainerResource", "External"];
    let kind = types.into_iter().find(|kind| spec.type_ == *kind);
    let current = hpa.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0);
    match (result, kind) {
        (Ok(found), _) => [action(current, found.replicas), NONE, kind.unwrap_or_default()],
        (Err(_), Some(kind)) => [NONE, INTERNAL, kind],
        (Err(_), None) => [NONE, "spec", "unknown"],
    }
}

async fn read_scale(hpa: &HorizontalPodAutoscaler, ctx: &Context) -> Result<Scale, HpaError> {
    let target = &hpa.spec.scale_target_ref;
    let version = target.api_version.clone().unwrap_or_else(|| "v1".to_owned());
    let discovery = ctx.client.discover().await?;
    let info = discovery.find(&version, &target.kind);
    let info =
        info.ok_or_else(|| HpaError::UnknownKind { kind: target.kind.clone(), version: version.clone() })?;
    let namespace = hpa.metadata.namespace.as_deref().unwrap_or_default();
    let object: Value = ctx.client.read(&info.key.path(namespace, &target.name, Some("scale"))).await?;
    let number = |pointer: &str| {
        let found = object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        i32::try_from(found).unwrap_or(i32::MAX)
    };
    let selector = object.pointer("/status/selector").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Scale {
        replicas: number("/spec/replicas"),
        observed: number("/status/replicas"),
        resource: ctx.client.dynamic(&info.key),
        selector,
        object,
    })
}

/// Writes the scale. Unrelated concurrent changes are retried; if another client changed the size, on which the
/// decision was based, the next reconciliation decides.
async fn write_scale(
    key: &Key,
    hpa: &HorizontalPodAutoscaler,
    scale: Scale,
    replicas: i32,
    ctx: &Context,
) -> Result<(), HpaError> {
    let (decided_on, mut scale) = (scale.replicas, scale);
    let mut attempts = 0;
    loop {
        scale.object["spec"]["replicas"] = json!(replicas);
        let name = &hpa.spec.scale_target_ref.name;
        let updated = scale.resource.update(&key.namespace, name, Some("scale"), &scale.object).await;
        let Err(error) = updated else { return Ok(()) };
        attempts += 1;
        if !error.is_conflict() || attempts == WRITE_ATTEMPTS {
            return Err(error.into());
        }
        scale = read_scale(hpa, ctx).await?;
        if scale.replicas != decided_on {
            return Err(error.into());
        }
    }
}

fn tolerance(hpa: &HorizontalPodAutoscaler, settings: &AutoscalerSettings) -> Tolerance {
    let behavior = hpa.spec.behavior.as_ref();
    let of = |rules: Option<&objects::autoscaling::v2::HPAScalingRules>| {
        let given = rules.and_then(|rules| Quantity::parse(&rules.tolerance.as_ref()?.0).ok());
        given.map_or(settings.tolerance, |given| given.as_f64())
    };
    Tolerance {
        down: of(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
        up: of(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        cpu_initialization: settings.cpu_initialization,
        readiness_delay: settings.readiness_delay,
    }
}

fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    value: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let value = if value { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter_mut().find(|condition| condition.type_ == kind);
    let since = known
        .as_ref()
        .filter(|known| known.status == value)
        .and_then(|known| known.last_transition_time.clone());
    let wanted = HorizontalPodAutoscalerCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: since.or(Some(Time(now))),
    };
    match known {
        Some(known) => *known = wanted,
        None => conditions.push(wanted),
    }
}
