//! The horizontal pod autoscaler. Watches autoscalers; every fifteen seconds it compares what their pods use with their
//! targets and sets the size of what they scale, no faster than their behaviour allows.

pub mod behavior;
pub mod calculate;
pub mod metrics;
mod selectors;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, Dynamic};
use jiff::Timestamp;
use machinery::quantity::{Format, Quantity};
use machinery::selector::LabelSelector;
use objects::Quantity as Text;
use objects::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use objects::core::v1::Pod;
use objects::meta::v1::Time;
use parking_lot::Mutex;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::{Value, json};

use crate::{AutoscalerSettings, Settings};

use self::behavior::{Limits, Memory};
use self::calculate::{CalculationError, Proposal, Target, Tolerance};
use self::metrics::MetricsError;
use self::selectors::Selectors;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "horizontal-pod-autoscaler-controller",
    resource: "horizontalpodautoscalers.autoscaling",
    identity: "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
    workers: 5,
};

/// How often a size is written when others write the same object.
const WRITE_ATTEMPTS: u32 = 5;

#[derive(Debug, thiserror::Error)]
enum HpaError {
    #[error("no matches for kind {kind:?} in version {version:?}")]
    UnknownKind { kind: String, version: String },
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Calculation(#[from] CalculationError),
    #[error("{0}")]
    Spec(&'static str),
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
    Box::new(Autoscalers {
        autoscalers,
        pods: ctx.cache(),
        memories: Mutex::default(),
        selectors: Selectors::default(),
    })
}

/// What is scaled, as it is now.
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
        self.scale(key, &hpa, &mut status, ctx, now).await;
        if status != before {
            let updated = HorizontalPodAutoscaler { status: Some(status), ..hpa.as_ref().clone() };
            ctx.client.update_status(&updated).await?;
        }
        Ok(Action::RequeueAfter(Settings::of(ctx).autoscaler.period))
    }
}

impl Autoscalers {
    /// Does what is to be done now; what went wrong is in the conditions and events.
    async fn scale(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        status: &mut HorizontalPodAutoscalerStatus,
        ctx: &Context,
        now: Timestamp,
    ) {
        status.observed_generation = hpa.metadata.generation;
        let scale = match read_scale(hpa, ctx).await {
            Ok(scale) => scale,
            Err(error) => {
                ctx.recorder.warning(hpa, "FailedGetScale", error.to_string());
                let message =
                    format!("the HPA controller was unable to get the target's current scale: {error}");
                return set(status, "AbleToScale", false, "FailedGetScale", &message, now);
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
        let (desired, reason) = if current == 0 && min != 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            set(status, "ScalingActive", false, "ScalingDisabled", message, now);
            (0, String::new())
        } else if current > limits.max {
            (limits.max, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let Some((proposed, metric)) = self.propose(key, hpa, &scale, status, ctx, now).await else {
                return;
            };
            let reason = match proposed.cmp(&current) {
                std::cmp::Ordering::Greater => format!("{metric} above target"),
                std::cmp::Ordering::Less => "All metrics below target".to_owned(),
                std::cmp::Ordering::Equal => String::new(),
            };
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
            return;
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
            }
            Err(error) => {
                let note = format!("New size: {desired}; reason: {reason}; error: {error}");
                ctx.recorder.warning(hpa, "FailedRescale", note);
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                set(status, "AbleToScale", false, "FailedUpdateScale", &message, now);
            }
        }
    }

    /// The largest of what the metrics ask for, and which one it was; none if they cannot be trusted.
    async fn propose(
        &self,
        key: &Key,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        status: &mut HorizontalPodAutoscalerStatus,
        ctx: &Context,
        now: Timestamp,
    ) -> Option<(i32, String)> {
        let pods = match self.selected(key, hpa, scale, status, ctx, now) {
            Ok(pods) => pods,
            Err(why) => {
                status.current_metrics = None;
                ctx.recorder.warning(hpa, "FailedComputeMetricsReplicas", why);
                return None;
            }
        };
        let specs = hpa.spec.metrics.clone().unwrap_or_default();
        let mut best: Option<(i32, String)> = None;
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        for spec in &specs {
            match measure(hpa, spec, scale, &pods, ctx, now).await {
                Ok((replicas, name, found)) => {
                    statuses.push(found);
                    if best.as_ref().is_none_or(|(known, _)| replicas > *known) {
                        best = Some((replicas, name));
                    }
                }
                Err((reason, error)) => {
                    ctx.recorder.warning(hpa, reason, error.clone());
                    failures.push((reason, error));
                }
            }
        }
        status.current_metrics = Some(statuses).filter(|statuses| !statuses.is_empty());
        // What is not known might ask for more: it may grow, not shrink.
        let trusted = best.filter(|(replicas, _)| failures.is_empty() || *replicas >= scale.replicas);
        if let (None, Some((reason, error))) = (&trusted, failures.first()) {
            let message = format!("the HPA was unable to compute the replica count: {error}");
            set(status, "ScalingActive", false, reason, &message, now);
            let (count, all) = (failures.len(), specs.len());
            let note = format!("invalid metrics ({count} invalid out of {all}), first error is: {error}");
            ctx.recorder.warning(hpa, "FailedComputeMetricsReplicas", note);
        }
        if let Some((_, metric)) = &trusted {
            let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
            set(status, "ScalingActive", true, "ValidMetricFound", &message, now);
        }
        trusted
    }

    /// The pods that the target's selector selects, provided that no other autoscaler selects any of them.
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

/// Sets the size. Whatever else changed in the meantime, the decision stands; but not if somebody set another size, on
/// which it was not made: then the next look decides.
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

/// What one metric asks for, its name, and its status.
async fn measure(
    hpa: &HorizontalPodAutoscaler,
    spec: &MetricSpec,
    scale: &Scale,
    pods: &[Arc<Pod>],
    ctx: &Context,
    now: Timestamp,
) -> Result<(i32, String, MetricStatus), (&'static str, String)> {
    let namespace = hpa.metadata.namespace.as_deref().unwrap_or_default();
    let tolerance = tolerance(hpa, &Settings::of(ctx).autoscaler);
    let mut status = MetricStatus { type_: spec.type_.clone(), ..MetricStatus::default() };
    let client = &ctx.client;
    if let Some(source) = &spec.resource {
        let found =
            resource(client, namespace, scale, &source.name, None, &source.target, pods, tolerance, now)
                .await;
        let found = found.map_err(|error| {
            let why = format!("failed to get {} utilization: {error}", source.name);
            ("FailedGetResourceMetric", why)
        })?;
        let current = value_status(&found, &source.name);
        status.resource = Some(ResourceMetricStatus { name: source.name.clone(), current });
        return Ok((found.replicas, resource_name(&source.name, &found, ""), status));
    }
    if let Some(source) = &spec.container_resource {
        let container = Some(source.container.as_str());
        let found =
            resource(client, namespace, scale, &source.name, container, &source.target, pods, tolerance, now)
                .await;
        let found = found.map_err(|error| {
            let why = format!("failed to get {} utilization: {error}", source.name);
            ("FailedGetContainerResourceMetric", why)
        })?;
        let current = value_status(&found, &source.name);
        let (name, container) = (source.name.clone(), source.container.clone());
        status.container_resource = Some(ContainerResourceMetricStatus { name, container, current });
        return Ok((found.replicas, resource_name(&source.name, &found, "container "), status));
    }
    if let Some(source) = &spec.pods {
        let failed = |error: &dyn std::fmt::Display| ("FailedGetPodsMetric", error.to_string());
        let samples = metrics::of_pods(client, namespace, &scale.selector, &source.metric).await;
        let samples = samples.map_err(|error| failed(&error))?;
        let target = Target::Average(milli(source.target.average_value.as_ref()).unwrap_or(0));
        let found = calculate::by_pods(scale.replicas, target, samples, pods, None, tolerance, now);
        let found = found.map_err(|error| failed(&error))?;
        let current = value_status(&found, "");
        status.pods = Some(PodsMetricStatus { metric: source.metric.clone(), current });
        return Ok((found.replicas, format!("pods metric {}", source.metric.name), status));
    }
    if let Some(source) = &spec.object {
        let failed = |error: &dyn std::fmt::Display| ("FailedGetObjectMetric", error.to_string());
        let usage = metrics::of_object(client, namespace, &source.described_object, &source.metric).await;
        let usage = usage.map_err(|error| failed(&error))?;
        let (found, current) =
            whole(usage, &source.target, scale, pods, tolerance).map_err(|error| failed(&error))?;
        let (described_object, metric) = (source.described_object.clone(), source.metric.clone());
        let name = format!("{} metric {}", described_object.kind, metric.name);
        status.object = Some(ObjectMetricStatus { described_object, metric, current });
        return Ok((found.replicas, name, status));
    }
    if let Some(source) = &spec.external {
        let failed = |error: &dyn std::fmt::Display| ("FailedGetExternalMetric", error.to_string());
        let usage =
            metrics::external(client, namespace, &source.metric).await.map_err(|error| failed(&error))?;
        let (found, current) =
            whole(usage, &source.target, scale, pods, tolerance).map_err(|error| failed(&error))?;
        let metric = source.metric.clone();
        let name = format!("external metric {}(nil)", metric.name);
        status.external = Some(ExternalMetricStatus { metric, current });
        return Ok((found.replicas, name, status));
    }
    Err(("InvalidMetricSourceType", format!("unknown metric source type {:?}", spec.type_)))
}

#[expect(clippy::too_many_arguments, reason = "what a resource metric is made of")]
async fn resource(
    client: &client::Client,
    namespace: &str,
    scale: &Scale,
    name: &str,
    container: Option<&str>,
    target: &MetricTarget,
    pods: &[Arc<Pod>],
    tolerance: Tolerance,
    now: Timestamp,
) -> Result<Proposal, HpaError> {
    let wanted = match (milli(target.average_value.as_ref()), target.average_utilization) {
        (Some(value), _) => Target::Average(value),
        (None, Some(percent)) => Target::Utilization(percent),
        (None, None) => {
            return Err(HpaError::Spec(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set",
            ));
        }
    };
    let samples = metrics::of_resource(client, namespace, &scale.selector, name, container).await?;
    Ok(calculate::by_pods(scale.replicas, wanted, samples, pods, Some((name, container)), tolerance, now)?)
}

/// For metrics that belong to all pods together.
fn whole(
    usage: i64,
    target: &MetricTarget,
    scale: &Scale,
    pods: &[Arc<Pod>],
    tolerance: Tolerance,
) -> Result<(Proposal, MetricValueStatus), HpaError> {
    let text = |milli| Some(Text(Quantity::from_milli(milli).to_string()));
    if let Some(average) = milli(target.average_value.as_ref()) {
        let found = calculate::by_part(scale.observed, usage, average, tolerance);
        return Ok((found, MetricValueStatus { average_value: text(found.usage), ..Default::default() }));
    }
    let Some(value) = milli(target.value.as_ref()) else {
        return Err(HpaError::Spec("neither a value target nor an average value target was set"));
    };
    let found = calculate::by_total(scale.replicas, usage, value, pods, tolerance)?;
    Ok((found, MetricValueStatus { value: text(found.usage), ..Default::default() }))
}

fn milli(text: Option<&Text>) -> Option<i64> {
    Some(Quantity::parse(&text?.0).ok()?.milli_value())
}

fn resource_name(name: &str, found: &Proposal, what: &str) -> String {
    match found.utilization {
        Some(_) => format!("{name} {what}resource utilization (percentage of request)"),
        None => format!("{name} resource"),
    }
}

fn value_status(found: &Proposal, resource: &str) -> MetricValueStatus {
    let format = if resource == "memory" { Format::Binary } else { Format::Decimal };
    let average = Quantity::from_milli(found.usage).with_format(format);
    MetricValueStatus {
        average_utilization: found.utilization,
        average_value: Some(Text(average.to_string())),
        value: None,
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
