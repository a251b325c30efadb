//! Pods: the status column combines phase, reasons and the states of all containers.

use super::cell::{NONE, age, condition, flag, get, int, list, name, or, seconds, since, text};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::{CellContext, Table};
use machinery::{Value, meta};
use serde_json::json;

pub(crate) static POD: Table = Table {
    conditions: Some(row_conditions),
    ..plain(
        &[
            NAME,
            column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic."),
            column("Status", "string", "The aggregate status of the containers in this pod."),
            column(
                "Restarts",
                "string",
                "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
            ),
            AGE,
            wide("IP", "string", doc::POD_STATUS_POD_IP),
            wide("Node", "string", doc::POD_SPEC_NODE_NAME),
            wide("Nominated Node", "string", doc::POD_STATUS_NOMINATED_NODE_NAME),
            wide("Readiness Gates", "string", doc::POD_SPEC_READINESS_GATES),
        ],
        cells,
    )
};

/// Row condition of a finished pod.
fn row_conditions(pod: &Value) -> Vec<Value> {
    let phase = text(pod, &["status", "phase"]);
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return Vec::new(),
    };
    vec![json!({"type": "Completed", "status": "True", "reason": phase, "message": message})]
}

fn cells(pod: &Value, context: CellContext) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some((_, moment)) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, since(moment, context))
        }
        _ => summary.restarts.to_string(),
    };
    let ip = list(pod, &["status", "podIPs"]).first().map_or("", |ip| text(ip, &["ip"]));
    vec![
        name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, context),
        or(ip, NONE).into(),
        or(text(pod, &["spec", "nodeName"]), NONE).into(),
        or(text(pod, &["status", "nominatedNodeName"]), NONE).into(),
        readiness_gates(pod),
    ]
}

fn readiness_gates(pod: &Value) -> Value {
    let gates = list(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return NONE.into();
    }
    let passed = gates.iter().filter(|gate| is_true(pod, text(gate, &["conditionType"]))).count();
    format!("{passed}/{}", gates.len()).into()
}

fn is_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| text(condition, &["status"]) == "True")
}

/// Number of restarts and time of the last one.
#[derive(Clone, Copy, Default)]
struct Restarts<'a> {
    count: i64,
    last: Option<(i64, &'a str)>,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, status: &'a Value) {
        self.count += int(status, &["restartCount"]);
        let finished = text(status, &["lastState", "terminated", "finishedAt"]);
        if let Some(moment) = seconds(finished)
            && self.last.is_none_or(|(last, _)| last < moment)
        {
            self.last = Some((moment, finished));
        }
    }
}

struct Summary<'a> {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<(i64, &'a str)>,
}

impl<'a> Summary<'a> {
    fn of(pod: &'a Value) -> Self {
        let phase = text(pod, &["status", "phase"]);
        let mut reason = or(text(pod, &["status", "reason"]), phase).to_owned();
        let gated = list(pod, &["status", "conditions"]).iter().any(|condition| {
            text(condition, &["type"]) == "PodScheduled" && text(condition, &["reason"]) == "SchedulingGated"
        });
        if gated {
            reason = "SchedulingGated".to_owned();
        }
        let sidecars = list(pod, &["spec", "initContainers"]).iter().filter(|one| is_sidecar(one)).count();
        let total = list(pod, &["spec", "containers"]).len() + sidecars;
        let init = InitContainers::of(pod);
        let (mut ready, mut restarts) = (init.ready, init.restarts);
        let initializing = init.waits_for.is_some();
        reason = init.waits_for.unwrap_or(reason);
        if !initializing || is_true(pod, "Initialized") {
            restarts = init.sidecar_restarts;
            ready += add_containers(pod, &mut reason, &mut restarts);
        }
        if meta::deletion_timestamp(pod).is_some() {
            if text(pod, &["status", "reason"]) == "NodeLost" {
                reason = "Unknown".to_owned();
            } else if phase != "Succeeded" && phase != "Failed" {
                reason = "Terminating".to_owned();
            }
        }
        Summary { reason, ready, total, restarts: restarts.count, last_restart: restarts.last }
    }
}

/// A sidecar is an init container that keeps running; it counts as one of the pod's containers.
fn is_sidecar(container: &Value) -> bool {
    text(container, &["restartPolicy"]) == "Always"
}

/// Init containers up to the first that is not done.
#[derive(Default)]
struct InitContainers<'a> {
    /// Ready sidecars.
    ready: usize,
    restarts: Restarts<'a>,
    sidecar_restarts: Restarts<'a>,
    /// Reason to show while one of them is not done.
    waits_for: Option<String>,
}

impl<'a> InitContainers<'a> {
    fn of(pod: &'a Value) -> Self {
        let containers = list(pod, &["spec", "initContainers"]);
        let mut init = Self::default();
        for (index, status) in list(pod, &["status", "initContainerStatuses"]).iter().enumerate() {
            init.restarts.add(status);
            let container_name = text(status, &["name"]);
            // The last of several containers with the same name wins.
            let sidecar = containers
                .iter()
                .rfind(|container| text(container, &["name"]) == container_name)
                .is_some_and(is_sidecar);
            if sidecar {
                init.sidecar_restarts.add(status);
            }
            let terminated = get(status, &["state", "terminated"]);
            if terminated.is_some_and(|terminated| int(terminated, &["exitCode"]) == 0) {
                continue;
            }
            if sidecar && flag(status, &["started"]) {
                init.ready += usize::from(flag(status, &["ready"]));
                continue;
            }
            let waiting = text(status, &["state", "waiting", "reason"]);
            init.waits_for = Some(match terminated {
                Some(terminated) => format!("Init:{}", termination_reason(terminated)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
                None => format!("Init:{index}/{}", containers.len()),
            });
            break;
        }
        init
    }
}

/// Adds the restarts of the containers and sets the reason; returns the number of ready ones.
fn add_containers<'a>(pod: &'a Value, reason: &mut String, restarts: &mut Restarts<'a>) -> usize {
    let mut ready = 0;
    let mut failure = None;
    for status in list(pod, &["status", "containerStatuses"]).iter().rev() {
        restarts.add(status);
        let waiting = text(status, &["state", "waiting", "reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(reason);
        } else if let Some(terminated) = get(status, &["state", "terminated"]) {
            *reason = termination_reason(terminated);
            if int(terminated, &["exitCode"]) != 0 {
                failure = Some(reason.clone());
            }
        } else if flag(status, &["ready"]) && get(status, &["state", "running"]).is_some() {
            ready += 1;
        }
    }
    // One finished container does not make the pod Completed while others still run or have failed.
    let running = ready > 0;
    if reason == "Completed" {
        if running && is_true(pod, "Ready") {
            "Running".clone_into(reason);
        } else if let Some(failure) = failure {
            *reason = failure;
        } else if running {
            "NotReady".clone_into(reason);
        }
    }
    ready
}

/// Termination reason of a container: its reason, else its signal, else its exit code.
fn termination_reason(terminated: &Value) -> String {
    let reason = text(terminated, &["reason"]);
    let signal = int(terminated, &["signal"]);
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int(terminated, &["exitCode"]))
    }
}
