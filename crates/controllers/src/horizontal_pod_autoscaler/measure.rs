//! Recommendations of the metrics of an autoscaler, with the names, statuses and messages that Kubernetes gives them.

use std::sync::Arc;

use client::Client;
use jiff::Timestamp;
use machinery::quantity::{Format, Quantity};
use objects::Quantity as Text;
use objects::autoscaling::v2::{
    ContainerResourceMetricSource, ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus,
    MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricSource, ObjectMetricStatus,
    PodsMetricSource, PodsMetricStatus, ResourceMetricSource, ResourceMetricStatus,
};
use objects::core::v1::Pod;

use super::calculate::{self, CalculationError, Proposal, Target, Tolerance};
use super::metrics::{self, printed};

/// Recommendation of one metric.
#[derive(Debug, PartialEq)]
pub(super) struct Recommendation {
    pub replicas: i32,
    /// The metric in events and conditions.
    pub name: String,
    pub status: MetricStatus,
}

/// Reason why a metric gives no recommendation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MeasureError {
    /// Reason of the condition and of the event.
    pub reason: &'static str,
    /// Text of both.
    pub message: String,
    /// Text among the failures of all metrics.
    pub summary: String,
}

/// All metrics of an autoscaler together.
#[derive(Debug, PartialEq)]
pub(super) struct Measured {
    /// One for each metric; that of a failed one is empty.
    pub statuses: Vec<MetricStatus>,
    /// The largest recommendation and its metric, or the first failure and a text about all; `None` without metrics.
    pub outcome: Option<Result<(i32, String), (MeasureError, String)>>,
}

impl Measured {
    /// A missing metric might recommend more: with one, scaling up is allowed, scaling down is not.
    pub fn of(results: Vec<Result<Recommendation, MeasureError>>, current: i32) -> Self {
        let (all, mut failed, mut first) = (results.len(), 0_usize, None);
        let (mut statuses, mut best) = (Vec::with_capacity(all), None::<(i32, String)>);
        for result in results {
            match result {
                Ok(found) => {
                    statuses.push(found.status);
                    if best.as_ref().is_none_or(|(known, _)| *known == 0 || found.replicas > *known) {
                        best = Some((found.replicas, found.name));
                    }
                }
                Err(error) => {
                    statuses.push(MetricStatus::default());
                    failed = failed.saturating_add(1);
                    first.get_or_insert(error);
                }
            }
        }
        let trusted = best.filter(|(replicas, _)| failed == 0 || *replicas >= current);
        let outcome = match (trusted, first) {
            (Some(best), _) => Some(Ok(best)),
            (None, Some(error)) => {
                let note = format!(
                    "invalid metrics ({failed} invalid out of {all}), first error is: {}",
                    error.summary
                );
                Some(Err((error, note)))
            }
            (None, None) => None,
        };
        Self { statuses, outcome }
    }
}

/// Everything that the recommendation of a metric depends on.
pub(super) struct Measurement<'a> {
    pub client: &'a Client,
    /// Namespace of the autoscaler.
    pub namespace: &'a str,
    /// Replicas in the specification of the scale, and in its status.
    pub replicas: i32,
    pub observed: i32,
    pub selector: &'a str,
    pub pods: &'a [Arc<Pod>],
    pub tolerance: Tolerance,
    pub now: Timestamp,
}

impl Measurement<'_> {
    /// Recommendation of one metric.
    pub async fn of(&self, spec: &MetricSpec) -> Result<Recommendation, MeasureError> {
        let found = if let Some(source) = &spec.resource {
            self.resource(source).await
        } else if let Some(source) = &spec.container_resource {
            self.container_resource(source).await
        } else if let Some(source) = &spec.pods {
            self.pods(source).await
        } else if let Some(source) = &spec.object {
            self.object(source).await
        } else if let Some(source) = &spec.external {
            self.external(source).await
        } else {
            let message = format!("unknown metric source type {:?}", spec.type_);
            return Err(MeasureError {
                reason: "InvalidMetricSourceType",
                summary: message.clone(),
                message,
            });
        };
        found.map(|mut found| {
            found.status.type_ = spec.type_.clone();
            found
        })
    }

    async fn resource(&self, source: &ResourceMetricSource) -> Result<Recommendation, MeasureError> {
        let found = self.usage(&source.name, None, &source.target).await;
        let found = found.map_err(|message| MeasureError {
            reason: "FailedGetResourceMetric",
            summary: format!("failed to get {} resource metric value: {message}", source.name),
            message,
        })?;
        let current = value_status(&found, &source.name);
        let status = MetricStatus {
            resource: Some(ResourceMetricStatus { name: source.name.clone(), current }),
            ..MetricStatus::default()
        };
        Ok(Recommendation { replicas: found.replicas, name: resource_name(&source.name, &found, ""), status })
    }

    async fn container_resource(
        &self,
        source: &ContainerResourceMetricSource,
    ) -> Result<Recommendation, MeasureError> {
        let found = self.usage(&source.name, Some(&source.container), &source.target).await;
        let found = found.map_err(|message| MeasureError {
            reason: "FailedGetContainerResourceMetric",
            summary: format!("failed to get {} container metric value: {message}", source.container),
            message,
        })?;
        let current = value_status(&found, &source.name);
        let (name, container) = (source.name.clone(), source.container.clone());
        let status = MetricStatus {
            container_resource: Some(ContainerResourceMetricStatus { name, container, current }),
            ..MetricStatus::default()
        };
        let name = resource_name(&source.name, &found, "container ");
        Ok(Recommendation { replicas: found.replicas, name, status })
    }

    async fn pods(&self, source: &PodsMetricSource) -> Result<Recommendation, MeasureError> {
        let measure = async {
            let samples = metrics::of_pods(self.client, self.namespace, self.selector, &source.metric).await;
            let samples =
                samples.map_err(|error| format!("unable to get metric {}: {error}", source.metric.name))?;
            let target = Target::Average(milli(source.target.average_value.as_ref()).unwrap_or(0));
            self.by_pods(target, samples, None).map_err(|error| error.to_string())
        };
        let found = measure.await.map_err(|message| MeasureError {
            reason: "FailedGetPodsMetric",
            summary: format!("failed to get pods metric value: {message}"),
            message,
        })?;
        let current = value_status(&found, "");
        let status = MetricStatus {
            pods: Some(PodsMetricStatus { metric: source.metric.clone(), current }),
            ..MetricStatus::default()
        };
        let name = format!("pods metric {}", source.metric.name);
        Ok(Recommendation { replicas: found.replicas, name, status })
    }

    async fn object(&self, source: &ObjectMetricSource) -> Result<Recommendation, MeasureError> {
        let (described, metric) = (&source.described_object, &source.metric);
        let average = is_average(&source.target);
        let measure = async {
            let usage = metrics::of_object(self.client, self.namespace, described, metric).await;
            // The order of the parts is Kubernetes'.
            let usage = usage.map_err(|error| {
                let (kind, name, ns) = (&described.kind, &described.name, self.namespace);
                format!("unable to get metric {}: {kind} on {ns} {name}/{error}", metric.name)
            })?;
            self.whole(usage, &source.target, "object")
        };
        let (found, current) = measure.await.map_err(|message| {
            let part = if average {
                format!("failed to get {} object metric: ", metric.name)
            } else {
                String::new()
            };
            MeasureError {
                reason: "FailedGetObjectMetric",
                summary: format!("failed to get object metric value: {part}{message}"),
                message,
            }
        })?;
        let name = if average {
            format!("external metric {}({})", metric.name, printed(metric.selector.as_ref()))
        } else {
            format!("{} metric {}", described.kind, metric.name)
        };
        let (described_object, metric) = (described.clone(), metric.clone());
        let status = MetricStatus {
            object: Some(ObjectMetricStatus { described_object, metric, current }),
            ..MetricStatus::default()
        };
        Ok(Recommendation { replicas: found.replicas, name, status })
    }

    async fn external(&self, source: &ExternalMetricSource) -> Result<Recommendation, MeasureError> {
        let metric = &source.metric;
        let selector = printed(metric.selector.as_ref());
        let measure = async {
            let usage = metrics::external(self.client, self.namespace, metric).await;
            let usage = usage.map_err(|error| {
                format!(
                    "unable to get external metric {}/{}/{selector}: {error}",
                    self.namespace, metric.name
                )
            })?;
            self.whole(usage, &source.target, "external")
        };
        let (found, current) = measure.await.map_err(|message| {
            let part = if is_average(&source.target) {
                format!("failed to get {} external metric: ", metric.name)
            } else {
                format!("failed to get external metric {}: ", metric.name)
            };
            MeasureError {
                reason: "FailedGetExternalMetric",
                summary: format!("failed to get {} external metric value: {part}{message}", metric.name),
                message,
            }
        })?;
        let name = format!("external metric {}({selector})", metric.name);
        let status = MetricStatus {
            external: Some(ExternalMetricStatus { metric: metric.clone(), current }),
            ..MetricStatus::default()
        };
        Ok(Recommendation { replicas: found.replicas, name, status })
    }

    /// Recommendation by the usage of a resource.
    async fn usage(
        &self,
        name: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<Proposal, String> {
        let (wanted, what) = match (milli(target.average_value.as_ref()), target.average_utilization) {
            (Some(value), _) => (Target::Average(value), "usage"),
            (None, Some(percent)) => (Target::Utilization(percent), "utilization"),
            (None, None) => {
                return Err("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".to_owned());
            }
        };
        let failed = |error: String| format!("failed to get {name} {what}: {error}");
        let samples = metrics::of_resource(self.client, self.namespace, self.selector, name, container).await;
        let samples =
            samples.map_err(|error| failed(format!("unable to get metrics for resource {name}: {error}")))?;
        self.by_pods(wanted, samples, Some((name, container))).map_err(|error| failed(error.to_string()))
    }

    fn by_pods(
        &self,
        target: Target,
        samples: calculate::Samples,
        resource: Option<(&str, Option<&str>)>,
    ) -> Result<Proposal, CalculationError> {
        calculate::by_pods(self.replicas, target, samples, self.pods, resource, self.tolerance, self.now)
    }

    /// Recommendation by the value of all pods together.
    fn whole(
        &self,
        usage: i64,
        target: &MetricTarget,
        source: &str,
    ) -> Result<(Proposal, MetricValueStatus), String> {
        let text = |milli| Some(Text(Quantity::from_milli(milli).to_string()));
        if let Some(average) = milli(target.average_value.as_ref()) {
            let found = calculate::by_part(self.observed, usage, average, self.tolerance);
            return Ok((found, MetricValueStatus { average_value: text(found.usage), ..Default::default() }));
        }
        let Some(value) = milli(target.value.as_ref()) else {
            return Err(format!(
                "invalid {source} metric source: neither a value target nor an average value target was set"
            ));
        };
        let found = calculate::by_total(self.replicas, usage, value, self.pods, self.tolerance);
        let found = found.map_err(|error| match error {
            CalculationError::NoPods => format!("unable to calculate ready pods: {error}"),
            other => other.to_string(),
        })?;
        Ok((found, MetricValueStatus { value: text(found.usage), ..Default::default() }))
    }
}

fn is_average(target: &MetricTarget) -> bool {
    target.average_value.is_some()
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

#[cfg(test)]
mod tests;
