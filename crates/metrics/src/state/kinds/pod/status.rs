//! Series of pods as a whole.

use crate::state::object::{amount, at, entries, flag, list, seconds, text, whole};
use crate::state::series::Series;
use serde_json::Value;
use std::net::IpAddr;

pub fn completion(pod: &Value, series: &mut Series<'_>) {
    let statuses = list(pod, "status.containerStatuses").iter();
    let times = statuses.filter_map(|status| seconds(status, "state.terminated.finishedAt"));
    series.add_some(times.reduce(f64::max).filter(|time| *time > 0.0));
}

pub fn info(pod: &Value, series: &mut Series<'_>) {
    let mut owners = list(pod, "metadata.ownerReferences").iter();
    let controller = owners.find(|owner| flag(owner, "controller") == Some(true));
    let of_controller = |path: &str| controller.map_or("", |owner| text(owner, path));
    let is_on_host = flag(pod, "spec.hostNetwork").unwrap_or(false);
    let labels = [
        ("host_ip", text(pod, "status.hostIP")),
        ("pod_ip", text(pod, "status.podIP")),
        ("node", text(pod, "spec.nodeName")),
        ("created_by_kind", of_controller("kind")),
        ("created_by_name", of_controller("name")),
        ("priority_class", text(pod, "spec.priorityClassName")),
        ("host_network", if is_on_host { "true" } else { "false" }),
    ];
    series.add(&labels, 1.0);
}

pub fn ips(pod: &Value, series: &mut Series<'_>) {
    for ip in list(pod, "status.podIPs").iter().map(|one| text(one, "ip")) {
        if let Ok(address) = ip.parse::<IpAddr>() {
            let family = if address.to_canonical().is_ipv4() { "4" } else { "6" };
            series.add(&[("ip", ip), ("ip_family", family)], 1.0);
        }
    }
}

pub fn overhead_cpu(pod: &Value, series: &mut Series<'_>) {
    series.add_some(at(pod, "spec.overhead.cpu").and_then(amount));
}

pub fn overhead_memory(pod: &Value, series: &mut Series<'_>) {
    series.add_some(at(pod, "spec.overhead.memory").and_then(whole));
}

pub fn runtime_class(pod: &Value, series: &mut Series<'_>) {
    if let Some(class) = at(pod, "spec.runtimeClassName").and_then(Value::as_str) {
        series.add(&[("runtimeclass_name", class)], 1.0);
    }
}

fn claims(pod: &Value, series: &mut Series<'_>, value: fn(&Value) -> f64) {
    for volume in list(pod, "spec.volumes") {
        if let Some(claim) = at(volume, "persistentVolumeClaim") {
            let labels =
                [("volume", text(volume, "name")), ("persistentvolumeclaim", text(claim, "claimName"))];
            series.add(&labels, value(claim));
        }
    }
}

pub fn claim_info(pod: &Value, series: &mut Series<'_>) {
    claims(pod, series, |_| 1.0);
}

pub fn claim_is_read_only(pod: &Value, series: &mut Series<'_>) {
    claims(pod, series, |claim| flag(claim, "readOnly").unwrap_or(false).into());
}

/// Conditions of a type, with a status if one is given.
fn conditions<'a>(pod: &'a Value, kind: &str, status: &str) -> Vec<&'a Value> {
    let all = list(pod, "status.conditions").iter().filter(|one| text(one, "type") == kind);
    all.filter(|one| status.is_empty() || text(one, "status") == status).collect()
}

fn transition(pod: &Value, series: &mut Series<'_>, kind: &str, status: &str) {
    for condition in conditions(pod, kind, status) {
        series.add_some(seconds(condition, "lastTransitionTime"));
    }
}

pub fn ready(pod: &Value, series: &mut Series<'_>) {
    for condition in conditions(pod, "Ready", "") {
        series.add_statuses(&[], "condition", text(condition, "status"));
    }
}

pub fn scheduled(pod: &Value, series: &mut Series<'_>) {
    for condition in conditions(pod, "PodScheduled", "") {
        series.add_statuses(&[], "condition", text(condition, "status"));
    }
}

pub fn unschedulable(pod: &Value, series: &mut Series<'_>) {
    for _ in conditions(pod, "PodScheduled", "False") {
        series.add(&[], 1.0);
    }
}

pub fn ready_time(pod: &Value, series: &mut Series<'_>) {
    transition(pod, series, "Ready", "True");
}

pub fn initialized_time(pod: &Value, series: &mut Series<'_>) {
    transition(pod, series, "Initialized", "True");
}

pub fn containers_ready_time(pod: &Value, series: &mut Series<'_>) {
    transition(pod, series, "ContainersReady", "True");
}

pub fn scheduled_time(pod: &Value, series: &mut Series<'_>) {
    transition(pod, series, "PodScheduled", "True");
}

pub fn unscheduled_time(pod: &Value, series: &mut Series<'_>) {
    transition(pod, series, "PodScheduled", "False");
}

const REASONS: [&str; 8] = [
    "Evicted",
    "NodeAffinity",
    "NodeLost",
    "PreemptionByScheduler",
    "SchedulingGated",
    "Shutdown",
    "TerminationByKubelet",
    "UnexpectedAdmissionError",
];

pub fn reasons(pod: &Value, series: &mut Series<'_>) {
    for reason in REASONS {
        let is_of_pod = text(pod, "status.reason") == reason;
        let of = |list: &[Value], path: &str| list.iter().any(|one| text(one, path) == reason);
        let is_present = is_of_pod
            || of(list(pod, "status.conditions"), "reason")
            || of(list(pod, "status.containerStatuses"), "state.terminated.reason");
        series.add(&[("reason", reason)], is_present.into());
    }
}

pub fn tolerations(pod: &Value, series: &mut Series<'_>) {
    let mut seen: Vec<[String; 5]> = Vec::new();
    for toleration in list(pod, "spec.tolerations") {
        let seconds = at(toleration, "tolerationSeconds").map(Value::to_string).unwrap_or_default();
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|path| text(toleration, path).to_owned());
        let one = [key, operator, value, effect, seconds];
        if seen.contains(&one) {
            continue;
        }
        let names = ["key", "operator", "value", "effect", "toleration_seconds"];
        let labels: Vec<_> = names.into_iter().zip(one.iter().map(String::as_str)).collect();
        series.add(&labels, 1.0);
        seen.push(one);
    }
}

pub fn node_selectors(pod: &Value, series: &mut Series<'_>) {
    series.add_map("nodeselector", entries(pod, "spec.nodeSelector"));
}
