//! Series of containers and init containers.

use crate::state::object::{amount, at, entries, flag, list, number, seconds, text, unit, whole};
use crate::state::series::{Series, sanitize};
use serde_json::Value;

/// Lists of containers and of their statuses.
const CONTAINERS: (&str, &str) = ("spec.containers", "status.containerStatuses");
const INIT_CONTAINERS: (&str, &str) = ("spec.initContainers", "status.initContainerStatuses");

fn name(status: &Value) -> (&'static str, &str) {
    ("container", text(status, "name"))
}

pub fn info(pod: &Value, series: &mut Series<'_>) {
    infos(pod, CONTAINERS, false, series);
}

pub fn init_info(pod: &Value, series: &mut Series<'_>) {
    infos(pod, INIT_CONTAINERS, true, series);
}

fn infos(pod: &Value, (containers, statuses): (&str, &str), is_init: bool, series: &mut Series<'_>) {
    for container in list(pod, containers) {
        let of_container = |status: &&Value| text(status, "name") == text(container, "name");
        for status in list(pod, statuses).iter().filter(of_container) {
            let labels = [
                name(status),
                ("image_spec", text(container, "image")),
                ("image", text(status, "image")),
                ("image_id", text(status, "imageID")),
                ("container_id", text(status, "containerID")),
                ("restart_policy", text(container, "restartPolicy")),
            ];
            series.add(if is_init { &labels } else { &labels[..5] }, 1.0);
        }
    }
}

pub fn limits(pod: &Value, series: &mut Series<'_>) {
    resources(pod, CONTAINERS.0, "resources.limits", series);
}

pub fn requests(pod: &Value, series: &mut Series<'_>) {
    resources(pod, CONTAINERS.0, "resources.requests", series);
}

pub fn init_limits(pod: &Value, series: &mut Series<'_>) {
    resources(pod, INIT_CONTAINERS.0, "resources.limits", series);
}

pub fn init_requests(pod: &Value, series: &mut Series<'_>) {
    resources(pod, INIT_CONTAINERS.0, "resources.requests", series);
}

fn resources(pod: &Value, containers: &str, path: &str, series: &mut Series<'_>) {
    for container in list(pod, containers) {
        for (resource, value) in entries(container, path) {
            let convert = if resource == "cpu" { amount } else { whole };
            if let Some((unit, value)) = unit(resource).zip(convert(value)) {
                let node = ("node", text(pod, "spec.nodeName"));
                let labels = [name(container), node, ("resource", &sanitize(resource)), ("unit", unit)];
                series.add(&labels, value);
            }
        }
    }
}

/// kube-state-metrics shows the year 1 for an ended container without a start time; here it has no series.
pub fn started(pod: &Value, series: &mut Series<'_>) {
    for status in list(pod, CONTAINERS.1) {
        let state = at(status, "state.running").or_else(|| at(status, "state.terminated"));
        if let Some(time) = state.and_then(|state| seconds(state, "startedAt")) {
            series.add(&[name(status)], time);
        }
    }
}

pub fn last_exit_code(pod: &Value, series: &mut Series<'_>) {
    for status in list(pod, CONTAINERS.1) {
        if let Some(last) = at(status, "lastState.terminated") {
            series.add(&[name(status)], number(last, "exitCode").unwrap_or(0.0));
        }
    }
}

pub fn last_finish(pod: &Value, series: &mut Series<'_>) {
    for status in list(pod, CONTAINERS.1) {
        if let Some(time) = seconds(status, "lastState.terminated.finishedAt") {
            series.add(&[name(status)], time);
        }
    }
}

fn reasons(pod: &Value, statuses: &str, state: &str, series: &mut Series<'_>) {
    for status in list(pod, statuses) {
        if let Some(state) = at(status, state) {
            series.add(&[name(status), ("reason", text(state, "reason"))], 1.0);
        }
    }
}

fn states(pod: &Value, statuses: &str, state: &str, series: &mut Series<'_>) {
    for status in list(pod, statuses) {
        series.add(&[name(status)], at(status, state).is_some().into());
    }
}

fn readiness(pod: &Value, statuses: &str, series: &mut Series<'_>) {
    for status in list(pod, statuses) {
        series.add(&[name(status)], flag(status, "ready").unwrap_or(false).into());
    }
}

fn restart_counts(pod: &Value, statuses: &str, series: &mut Series<'_>) {
    for status in list(pod, statuses) {
        series.add(&[name(status)], number(status, "restartCount").unwrap_or(0.0));
    }
}

/// Series that containers and init containers have alike.
macro_rules! alike {
    ($($name:ident, $init:ident: $series:ident($($state:literal)?);)+) => {
        $(
            pub fn $name(pod: &Value, series: &mut Series<'_>) {
                $series(pod, CONTAINERS.1, $($state,)? series);
            }

            pub fn $init(pod: &Value, series: &mut Series<'_>) {
                $series(pod, INIT_CONTAINERS.1, $($state,)? series);
            }
        )+
    };
}

alike! {
    last_reason, init_last_reason: reasons("lastState.terminated");
    terminated_reason, init_terminated_reason: reasons("state.terminated");
    waiting_reason, init_waiting_reason: reasons("state.waiting");
    running, init_running: states("state.running");
    terminated, init_terminated: states("state.terminated");
    waiting, init_waiting: states("state.waiting");
    ready, init_ready: readiness();
    restarts, init_restarts: restart_counts();
}
