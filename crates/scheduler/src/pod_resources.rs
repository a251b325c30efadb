//! The metrics of `/metrics/resources`: requests and limits of each pod, as the scheduler counts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::metrics::{GaugeVec, MetricsError, Opts, encode_collectors};
use machinery::quantity::Quantity;
use objects::Quantity as Text;
use objects::core::v1::{Container, Pod, ResourceRequirements};

const LABELS: [&str; 7] = ["namespace", "pod", "node", "scheduler", "priority", "resource", "unit"];

/// The page with the requests and limits of pods that have not ended.
pub fn pod_resources_page(pods: &[Arc<Pod>]) -> Result<Vec<u8>, MetricsError> {
    let gauges = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &LABELS);
    let requests = gauges(
        "kube_pod_resource_request",
        "Resources requested by workloads on the cluster, broken down by pod.",
    )?;
    let limits = gauges(
        "kube_pod_resource_limit",
        "Resources limit for workloads on the cluster, broken down by pod.",
    )?;
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        show(&requests, pod, &totals(pod, |resources| resources.requests.as_ref(), true));
        show(&limits, pod, &totals(pod, |resources| resources.limits.as_ref(), false));
    }
    Ok(encode_collectors(&[&requests, &limits]))
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !node_of(pod).is_empty() && matches!(phase, Some("Succeeded" | "Failed"))
}

fn show(gauges: &GaugeVec, pod: &Pod, totals: &BTreeMap<&str, f64>) {
    let spec = pod.spec.as_ref();
    let priority =
        spec.and_then(|spec| spec.priority).map(|priority| priority.to_string()).unwrap_or_default();
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    for (resource, total) in totals.iter().filter(|(_, total)| **total != 0.0) {
        let unit = match *resource {
            "cpu" => "cores",
            "memory" | "storage" | "ephemeral-storage" => "bytes",
            other if other.starts_with("hugepages-") => "bytes",
            other if other.starts_with("attachable-volumes-") => "integer",
            _ => "",
        };
        let labels = [namespace, name, node_of(pod), scheduler, &priority, *resource, unit];
        // Sums of fractions of a core.
        let total = if total.fract() == 0.0 { *total } else { (total * 1e9).round() / 1e9 };
        gauges.with_label_values(&labels).set(total);
    }
}

type Amounts = BTreeMap<String, Text>;
type Pick = fn(&ResourceRequirements) -> Option<&Amounts>;
type Totals<'a> = BTreeMap<&'a str, f64>;

/// Sums over the containers, at least what init containers need, with those of the pod as a whole and its overhead.
fn totals(pod: &Pod, pick: Pick, is_request: bool) -> Totals<'_> {
    let Some(spec) = &pod.spec else { return Totals::new() };
    let mut sum = Totals::new();
    spec.containers.iter().for_each(|container| add(&mut sum, of(container, pick)));
    let (mut sidecars, mut highest) = (Totals::new(), Totals::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needed = sidecars.clone();
        add(&mut needed, of(container, pick));
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sum, of(container, pick));
            sidecars.clone_from(&needed);
        }
        raise(&mut highest, &needed);
    }
    raise(&mut sum, &highest);
    for (name, amount) in spec.resources.as_ref().and_then(pick).into_iter().flatten() {
        if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
            sum.insert(name, value(&amount.0));
        }
    }
    for (name, amount) in spec.overhead.iter().flatten() {
        let known = sum.get(name.as_str()).copied();
        if is_request || known.is_some_and(|known| known != 0.0) {
            sum.insert(name, known.unwrap_or(0.0) + value(&amount.0));
        }
    }
    sum
}

fn of(container: &Container, pick: Pick) -> Option<&Amounts> {
    container.resources.as_ref().and_then(pick)
}

fn add<'a>(sum: &mut Totals<'a>, amounts: Option<&'a Amounts>) {
    for (name, amount) in amounts.into_iter().flatten() {
        *sum.entry(name).or_default() += value(&amount.0);
    }
}

fn raise<'a>(sum: &mut Totals<'a>, at_least: &Totals<'a>) {
    for (name, amount) in at_least {
        let known = sum.entry(*name).or_default();
        *known = known.max(*amount);
    }
}

fn value(text: &str) -> f64 {
    Quantity::parse(text).map_or(0.0, |quantity| quantity.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn page_has_requests_and_limits_of_pods_that_have_not_ended() {
        let pod = |name: &str, phase: &str| -> Arc<Pod> {
            let pod = json!({
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {
                    "nodeName": "n", "schedulerName": "s", "priority": 7,
                    "overhead": {"cpu": "50m", "memory": "1Mi"},
                    "initContainers": [
                        {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                        {"name": "init", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
                    ],
                    "containers": [{"name": "c", "resources": {
                        "requests": {"cpu": "250m", "nvidia.com/gpu": "1"}, "limits": {"hugepages-2Mi": "2Mi"}}}],
                },
                "status": {"phase": phase},
            });
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        let page = pod_resources_page(&[pod("a", "Running"), pod("b", "Succeeded")]).expect("a page");
        let page = String::from_utf8(page).expect("text");
        let row = |kind: &str, resource: &str, unit: &str, value: &str| {
            format!(
                "kube_pod_resource_{kind}{{namespace=\"ns\",node=\"n\",pod=\"a\",priority=\"7\",\
                 resource=\"{resource}\",scheduler=\"s\",unit=\"{unit}\"}} {value}"
            )
        };
        let want = [
            row("limit", "cpu", "cores", "2.05"),
            row("limit", "hugepages-2Mi", "bytes", "2097152"),
            row("request", "cpu", "cores", "1.15"),
            row("request", "memory", "bytes", "1048576"),
            row("request", "nvidia.com/gpu", "", "1"),
        ];
        let mut rows: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        rows.sort_unstable();
        assert_eq!(rows, want);
    }
}
