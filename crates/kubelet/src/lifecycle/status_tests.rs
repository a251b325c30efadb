use super::*;
use crate::lifecycle::observed::ObservedSandbox;
use crate::lifecycle::plan::Verdict;
use objects::core::v1::{PodReadinessGate, PodSpec};

fn container(name: &str) -> Container {
    Container { name: name.to_owned(), image: Some("i".to_owned()), ..Container::default() }
}

fn pod(policy: &str, init: &[&str], apps: &[&str]) -> Pod {
    let all = |names: &[&str]| names.iter().map(|name| container(name)).collect::<Vec<_>>();
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.to_owned()),
            init_containers: (!init.is_empty()).then(|| all(init)),
            containers: all(apps),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn seen(containers: &[(&str, RunState, i32)]) -> ObservedPod {
    let containers = containers
        .iter()
        .map(|(name, state, exit_code)| ObservedContainer {
            id: format!("id-{name}"),
            name: (*name).to_owned(),
            sandbox: "s".to_owned(),
            state: *state,
            exit_code: *exit_code,
            reason: if *exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
            ..ObservedContainer::default()
        })
        .collect();
    let sandbox = ObservedSandbox {
        id: "s".to_owned(),
        ready: true,
        ips: vec!["10.0.0.9".to_owned()],
        ..Default::default()
    };
    ObservedPod { sandboxes: vec![sandbox], containers }
}

fn status_of(
    pod: &Pod,
    observed: &ObservedPod,
    waiting: &BTreeMap<String, Waiting>,
    terminal: bool,
) -> PodStatus {
    let probes = |_: &str| Verdict { failed: None, started: true, ready: true };
    status(
        pod,
        observed,
        &StatusContext {
            runtime: "ferry",
            host_ips: &["192.0.2.1".to_owned()],
            probes: &probes,
            waiting,
            terminal,
            verdict: None,
            resize: None,
            resizing: None,
            in_effect: &|_| None,
            recursive_read_only: false,
            now: Timestamp::UNIX_EPOCH,
        },
    )
}

#[test]
fn pod_phases_by_container_states() {
    use RunState::{Exited, Running};
    for (policy, init, containers, terminal, want) in [
        ("Always", &[][..], vec![], false, "Pending"),
        ("Always", &[], vec![("a", Running, 0)], false, "Running"),
        ("Always", &[], vec![("a", Exited, 0)], false, "Running"),
        ("Always", &[], vec![("a", Exited, 0)], true, "Succeeded"),
        ("Always", &[], vec![("a", Exited, 137)], true, "Failed"),
        ("OnFailure", &[], vec![("a", Exited, 0)], false, "Succeeded"),
        ("OnFailure", &[], vec![("a", Exited, 1)], false, "Running"),
        ("Never", &[], vec![("a", Exited, 1)], false, "Failed"),
        ("Never", &["i"], vec![("i", Exited, 1)], false, "Failed"),
        ("Always", &["i"], vec![("i", Exited, 1)], false, "Pending"),
        ("Always", &["i"], vec![("i", Running, 0)], false, "Pending"),
        ("Always", &["i"], vec![("i", Exited, 0), ("a", Running, 0)], false, "Running"),
    ] {
        let got = status_of(&pod(policy, init, &["a"]), &seen(&containers), &BTreeMap::new(), terminal);
        assert_eq!(got.phase.as_deref(), Some(want), "{policy} {containers:?}");
    }
}

#[test]
fn running_pod_is_ready_with_address_and_ids() {
    let got = status_of(
        &pod("Always", &[], &["a"]),
        &seen(&[("a", RunState::Running, 0)]),
        &BTreeMap::new(),
        false,
    );
    let conditions: Vec<_> = got
        .conditions
        .iter()
        .flatten()
        .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
        .collect();
    assert_eq!(
        conditions,
        [
            ("PodReadyToStartContainers", "True"),
            ("Initialized", "True"),
            ("Ready", "True"),
            ("ContainersReady", "True"),
            ("PodScheduled", "True")
        ]
    );
    assert_eq!(got.pod_ip.as_deref(), Some("10.0.0.9"));
    assert_eq!(got.host_ip.as_deref(), Some("192.0.2.1"));
    let container = &got.container_statuses.expect("statuses")[0];
    assert_eq!(container.container_id.as_deref(), Some("ferry://id-a"));
    assert!(container.ready && container.started == Some(true));
}

#[test]
fn crash_loop_keeps_last_state() {
    let waiting = BTreeMap::from([(
        "a".to_owned(),
        Waiting { reason: "CrashLoopBackOff".to_owned(), message: "back-off".to_owned() },
    )]);
    let got = status_of(&pod("Always", &[], &["a"]), &seen(&[("a", RunState::Exited, 3)]), &waiting, false);
    assert_eq!(got.phase.as_deref(), Some("Running"));
    let container = &got.container_statuses.as_ref().expect("statuses")[0];
    let state = container.state.as_ref().and_then(|state| state.waiting.as_ref()).expect("waits");
    assert_eq!(state.reason.as_deref(), Some("CrashLoopBackOff"));
    let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref()).expect("ended");
    assert_eq!(last.exit_code, 3);
    let ready = got.conditions.iter().flatten().find(|c| c.type_ == "Ready").expect("Ready");
    assert_eq!(ready.message.as_deref(), Some("containers with unready status: [a]"));
}

#[test]
fn readiness_gate_unset_keeps_pod_unready() {
    let mut pod = pod("Always", &[], &["a"]);
    if let Some(spec) = &mut pod.spec {
        spec.readiness_gates = Some(vec![PodReadinessGate { condition_type: "x/y".to_owned() }]);
    }
    let got = status_of(&pod, &seen(&[("a", RunState::Running, 0)]), &BTreeMap::new(), false);
    let ready = got.conditions.iter().flatten().find(|c| c.type_ == "Ready").expect("Ready");
    assert_eq!(ready.status, "False");
    assert_eq!(
        ready.message.as_deref(),
        Some(r#"corresponding condition of pod readiness gate "x/y" does not exist."#)
    );
}
