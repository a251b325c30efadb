//! The phase of a pod, from the states of its containers.

use objects::core::v1::{Container, ContainerStatus, Pod};

use super::members::is_sidecar;
use super::restart;

/// Returns true if the status of the pod has a terminal phase.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Status of the named container.
#[must_use]
pub fn find<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == name)
}

/// Exit code of the current state or, while waiting, of the last state.
fn exit_code(status: &ContainerStatus) -> Option<i32> {
    let code = |state: Option<&objects::core::v1::ContainerState>| {
        state.and_then(|state| state.terminated.as_ref()).map(|terminated| terminated.exit_code)
    };
    code(status.state.as_ref())
        .or_else(|| is_waiting(status).then(|| code(status.last_state.as_ref())).flatten())
}

#[must_use]
pub fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

#[must_use]
pub fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}

#[derive(Default)]
struct Count {
    pending_init: usize,
    pending_sidecars: usize,
    failed_permanently: bool,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_permanently: usize,
    succeeded: usize,
}

/// Returns true if a container that exited with `code` will not restart. Containers removed by RestartAllContainers
/// do restart.
fn is_done_permanently(pod: &Pod, container: &Container, status: &ContainerStatus, code: i32) -> bool {
    let states = [status.state.as_ref(), status.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
    let removed = ended.and_then(|ended| ended.reason.as_deref()) == Some(restart::RESTARTING_ALL);
    !removed && !restart::on_exit(pod, container, code)
}

/// Pod phase. `terminal`: nothing will be started any more; `initialised`: regular containers have run.
#[must_use]
pub fn phase(pod: &Pod, statuses: &[ContainerStatus], terminal: bool, initialised: bool) -> &'static str {
    let Some(spec) = &pod.spec else { return "Pending" };
    let mut count = Count::default();
    for container in spec.init_containers.iter().flatten() {
        let status = find(statuses, &container.name);
        if is_sidecar(container) {
            match status {
                None => count.unknown += 1,
                Some(status) if is_running(status) => {
                    count.pending_sidecars += usize::from(status.started != Some(true));
                    count.running += 1;
                }
                Some(status) if exit_code(status).is_some() => {}
                Some(status) if is_waiting(status) => {
                    count.pending_sidecars += 1;
                    count.waiting += 1;
                }
                Some(_) => {
                    count.pending_sidecars += 1;
                    count.unknown += 1;
                }
            }
            continue;
        }
        match status.and_then(|status| Some((status, exit_code(status)?))) {
            Some((status, 0)) if !is_running(status) => {}
            Some((status, code)) => {
                count.failed_permanently |= is_done_permanently(pod, container, status, code)
            }
            None => count.pending_init += 1,
        }
    }
    for container in &spec.containers {
        match find(statuses, &container.name) {
            None => count.unknown += 1,
            Some(status) if is_running(status) => count.running += 1,
            Some(status) => match exit_code(status) {
                Some(code) => {
                    count.stopped += 1;
                    count.stopped_permanently +=
                        usize::from(is_done_permanently(pod, container, status, code));
                    count.succeeded += usize::from(code == 0 && !is_waiting(status));
                }
                None if is_waiting(status) => count.waiting += 1,
                None => count.unknown += 1,
            },
        }
    }
    judge(&count, terminal, initialised)
}

fn judge(count: &Count, terminal: bool, initialised: bool) -> &'static str {
    if count.failed_permanently {
        return "Failed";
    }
    let pending = count.pending_init > 0 || (count.pending_sidecars > 0 && !initialised) || count.waiting > 0;
    if pending || count.unknown > 0 {
        return "Pending";
    }
    if count.running > 0 {
        return "Running";
    }
    if count.stopped == 0 {
        return "Pending";
    }
    if !terminal && count.stopped != count.stopped_permanently {
        return "Running";
    }
    if count.stopped == count.succeeded { "Succeeded" } else { "Failed" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_phases_match_vectors() {
        for (phase, finished) in vectors::PHASES {
            let mut pod = Pod::default();
            pod.status.get_or_insert_default().phase = Some(phase.to_owned());
            assert_eq!(has_ended(&pod), finished, "{phase}");
        }
        assert!(!has_ended(&Pod::default()));
    }
}
