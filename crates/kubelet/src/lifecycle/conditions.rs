//! Pod conditions owned by the kubelet.

use objects::core::v1::{ContainerStatus, Pod, PodCondition};
use objects::meta::v1::Time;

use super::members::is_sidecar;
use super::phase::{find, is_running};

/// Condition types that the kubelet writes; all others are preserved.
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

/// Condition of a pod whose containers all restart.
pub const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Condition of a disrupted pod; reason for terminations by the kubelet.
pub const DISRUPTION: &str = "DisruptionTarget";
pub const BY_KUBELET: &str = "TerminationByKubelet";

/// Status, reason and message of a condition.
#[derive(Clone, Debug, PartialEq)]
struct ConditionState {
    status: bool,
    reason: &'static str,
    message: String,
}

impl ConditionState {
    const TRUE: Self = Self { status: true, reason: "", message: String::new() };

    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason, message }
    }
}

fn joined(parts: [(&str, Vec<&str>); 2]) -> String {
    let texts = parts.iter().filter(|(_, names)| !names.is_empty());
    texts.map(|(what, names)| format!("{what}: [{}]", names.join(" "))).collect::<Vec<_>>().join(", ")
}

/// All conditions owned by the kubelet, in Kubernetes' order. Transition times are taken from `old` where the status
/// is unchanged.
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
        true => ConditionState {
            reason: "RestartAllContainersStarted",
            message: "container exited with restart policy rule".to_owned(),
            ..ConditionState::TRUE
        },
        false => ConditionState::no("", String::new()),
    });
    let sandbox = ConditionState { status: sandbox_is_up, ..ConditionState::TRUE };
    let containers = containers_ready(pod, statuses, phase);
    let ready = ready(pod, &containers);
    let findings = [
        ("PodReadyToStartContainers", sandbox),
        ("Initialized", initialised(pod, statuses, phase)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", ConditionState::TRUE),
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

fn containers_ready(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> ConditionState {
    let Some(spec) = &pod.spec else { return ConditionState::TRUE };
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
        "Succeeded" if unknown.is_empty() => return ConditionState::no("PodCompleted", String::new()),
        "Failed" => return ConditionState::no("PodFailed", String::new()),
        _ => {}
    }
    let message =
        joined([("containers with unknown status", unknown), ("containers with unready status", unready)]);
    if message.is_empty() { ConditionState::TRUE } else { ConditionState::no("ContainersNotReady", message) }
}

fn ready(pod: &Pod, containers: &ConditionState) -> ConditionState {
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
    if missing.is_empty() {
        ConditionState::TRUE
    } else {
        ConditionState::no("ReadinessGatesNotReady", missing.join(", "))
    }
}

fn initialised(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> ConditionState {
    let Some(spec) = &pod.spec else { return ConditionState::TRUE };
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
        return ConditionState { reason: "PodCompleted", ..ConditionState::TRUE };
    }
    let began = spec.containers.iter().filter_map(|container| find(statuses, &container.name));
    if began.clone().any(has_run) {
        return ConditionState::TRUE;
    }
    let message = joined([
        ("containers with unknown status", unknown),
        ("containers with incomplete status", incomplete),
    ]);
    if message.is_empty() {
        ConditionState::TRUE
    } else {
        ConditionState::no("ContainersNotInitialized", message)
    }
}

/// Returns true if a container is running or has run.
#[must_use]
pub fn has_run(status: &ContainerStatus) -> bool {
    let ended = |state: &Option<objects::core::v1::ContainerState>| {
        state.as_ref().is_some_and(|state| state.terminated.is_some())
    };
    is_running(status) || ended(&status.state) || ended(&status.last_state)
}
