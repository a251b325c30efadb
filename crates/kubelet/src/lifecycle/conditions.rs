//! The conditions of a pod that the kubelet owns.

use objects::core::v1::{ContainerStatus, Pod, PodCondition};
use objects::meta::v1::Time;

use super::members::is_sidecar;
use super::phase::{find, is_running};

/// Types of conditions that the kubelet writes; all others are left as they are.
pub const OWNED: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
    ALL_RESTARTING,
];

/// The condition of a pod whose containers all begin anew.
pub const ALL_RESTARTING: &str = "AllContainersRestarting";

/// The condition of a pod that others end; the kubelet writes it when it is the one, for this reason.
pub const DISRUPTION: &str = "DisruptionTarget";
pub const BY_KUBELET: &str = "TerminationByKubelet";

/// A condition's status, reason and message.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    status: bool,
    reason: &'static str,
    message: String,
}

impl Finding {
    const TRUE: Self = Self { status: true, reason: "", message: String::new() };

    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason, message }
    }
}

fn joined(parts: [(&str, Vec<&str>); 2]) -> String {
    let texts = parts.iter().filter(|(_, names)| !names.is_empty());
    texts.map(|(what, names)| format!("{what}: [{}]", names.join(" "))).collect::<Vec<_>>().join(", ")
}

/// All conditions the kubelet owns, in Kubernetes' order. Transition times are those of `old` where the status is the
/// same.
#[must_use]
pub fn conditions(
    pod: &Pod,
    statuses: &[ContainerStatus],
    phase: &str,
    sandbox_is_up: bool,
    restarting_all: Option<bool>,
    now: &Time,
) -> Vec<PodCondition> {
    let restarting = restarting_all.map(|is| match is {
        true => Finding {
            reason: "RestartAllContainersStarted",
            message: "container exited with restart policy rule".to_owned(),
            ..Finding::TRUE
        },
        false => Finding::no("", String::new()),
    });
    let sandbox = Finding { status: sandbox_is_up, ..Finding::TRUE };
    let containers = containers_ready(pod, statuses, phase);
    let ready = ready(pod, &containers);
    let findings = [
        ("PodReadyToStartContainers", sandbox),
        ("Initialized", initialised(pod, statuses, phase)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Finding::TRUE),
    ];
    let findings = findings.into_iter().chain(restarting.map(|finding| (ALL_RESTARTING, finding)));
    let old = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    findings
        .map(|(name, finding)| {
            let status = if finding.status { "True" } else { "False" };
            let before = old.iter().find(|condition| condition.type_ == name);
            let since = before
                .filter(|before| before.status == status)
                .and_then(|before| before.last_transition_time.clone());
            let text = |text: String| (!text.is_empty()).then_some(text);
            PodCondition {
                type_: name.to_owned(),
                status: status.to_owned(),
                reason: text(finding.reason.to_owned()),
                message: text(finding.message),
                observed_generation: pod.metadata.generation,
                last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
                last_probe_time: None,
            }
        })
        .collect()
}

fn containers_ready(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> Finding {
    let Some(spec) = &pod.spec else { return Finding::TRUE };
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    for container in sidecars.chain(&spec.containers) {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match phase {
        "Succeeded" if unknown.is_empty() => return Finding::no("PodCompleted", String::new()),
        "Failed" => return Finding::no("PodFailed", String::new()),
        _ => {}
    }
    let message =
        joined([("containers with unknown status", unknown), ("containers with unready status", unready)]);
    if message.is_empty() { Finding::TRUE } else { Finding::no("ContainersNotReady", message) }
}

fn ready(pod: &Pod, containers: &Finding) -> Finding {
    if !containers.status {
        return containers.clone();
    }
    let present = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let mut missing = Vec::new();
    for gate in gates {
        let name = &gate.condition_type;
        match present.iter().find(|condition| condition.type_ == *name) {
            None => missing
                .push(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
            Some(found) if found.status != "True" => missing.push(format!(
                "the status of pod readiness gate {name:?} is not \"True\", but {}",
                found.status
            )),
            Some(_) => {}
        }
    }
    if missing.is_empty() { Finding::TRUE } else { Finding::no("ReadinessGatesNotReady", missing.join(", ")) }
}

fn initialised(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> Finding {
    let Some(spec) = &pod.spec else { return Finding::TRUE };
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in spec.init_containers.iter().flatten() {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) => {
                let done = if is_sidecar(container) { status.started == Some(true) } else { status.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Finding { reason: "PodCompleted", ..Finding::TRUE };
    }
    let began = spec.containers.iter().filter_map(|container| find(statuses, &container.name));
    if began.clone().any(has_run) {
        return Finding::TRUE;
    }
    let message = joined([
        ("containers with unknown status", unknown),
        ("containers with incomplete status", incomplete),
    ]);
    if message.is_empty() { Finding::TRUE } else { Finding::no("ContainersNotInitialized", message) }
}

/// Whether a container runs or ever ran.
#[must_use]
pub fn has_run(status: &ContainerStatus) -> bool {
    let ended = |state: &Option<objects::core::v1::ContainerState>| {
        state.as_ref().is_some_and(|state| state.terminated.is_some())
    };
    is_running(status) || ended(&status.state) || ended(&status.last_state)
}
