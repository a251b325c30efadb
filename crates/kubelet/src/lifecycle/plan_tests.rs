use super::*;
use objects::core::v1::PodSpec;

const FINE: Verdict = Verdict { failed: None, started: true, ready: true };

fn container(name: &str) -> Container {
    Container { name: name.to_owned(), ..Container::default() }
}

fn pod(policy: &str, init: Vec<Container>, apps: Vec<Container>) -> Pod {
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.to_owned()),
            init_containers: Some(init),
            containers: apps,
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".to_owned()), ..container(name) }
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_second(at).expect("a small number")
}

fn seen(containers: &[(&str, RunState, i32)]) -> ObservedPod {
    let containers = containers
        .iter()
        .enumerate()
        .map(|(index, (name, state, exit_code))| ObservedContainer {
            id: format!("{name}-{index}"),
            name: (*name).to_owned(),
            sandbox: "s".to_owned(),
            state: *state,
            exit_code: *exit_code,
            created_at: second(index as i64),
            finished_at: second(100),
            ..ObservedContainer::default()
        })
        .collect();
    let sandbox = ObservedSandbox {
        id: "s".to_owned(),
        ready: true,
        ips: vec!["10.1.0.5".to_owned()],
        ..ObservedSandbox::default()
    };
    let mut observed = ObservedPod { sandboxes: vec![sandbox], containers };
    observed.sort();
    observed
}

fn run(pod: &Pod, observed: &ObservedPod) -> PodPlan {
    run_with(pod, observed, FINE, &Backoff::default(), second(100))
}

fn run_with(
    pod: &Pod,
    observed: &ObservedPod,
    verdict: Verdict,
    backoff: &Backoff,
    now: Timestamp,
) -> PodPlan {
    plan(pod, observed, &|_| verdict, backoff, &|_| String::new(), now)
}

fn starts(plan: &PodPlan) -> Vec<&str> {
    plan.start.iter().map(|start| start.member.name()).collect()
}

#[test]
fn new_pod_starts_sandbox_and_containers() {
    let plan = run(&pod("Always", vec![], vec![container("a"), container("b")]), &ObservedPod::default());
    assert_eq!(plan.create_sandbox, Some(0));
    assert_eq!(starts(&plan), ["a", "b"]);
    assert!(!plan.kill_pod);
}

#[test]
fn init_containers_run_sequentially() {
    use RunState::{Exited, Running};
    let init = || vec![container("i1"), sidecar("s"), container("i2")];
    let pod = pod("Always", init(), vec![container("a")]);
    for (containers, want) in [
        (vec![], vec!["i1"]),
        (vec![("i1", Running, 0)], vec![]),
        (vec![("i1", Exited, 0)], vec!["s"]),
        (vec![("i1", Exited, 1)], vec!["i1"]),
        (vec![("i1", Exited, 0), ("s", Running, 0)], vec!["i2"]),
        (vec![("i1", Exited, 0), ("s", Running, 0), ("i2", Exited, 0)], vec!["a"]),
        (vec![("i1", Exited, 0), ("s", Exited, 3), ("i2", Exited, 0)], vec!["s"]),
        (vec![("i1", Exited, 0), ("s", Exited, 0), ("i2", Exited, 0), ("a", Running, 0)], vec!["s"]),
    ] {
        let plan = run(&pod, &seen(&containers));
        assert_eq!(starts(&plan), want, "{containers:?}");
        assert!(plan.create_sandbox.is_none() && !plan.kill_pod, "{containers:?}");
    }
}

#[test]
fn container_created_not_started_is_replaced() {
    let pod = pod("Never", vec![container("i")], vec![container("a")]);
    for (containers, name) in [
        (vec![("i", RunState::Created, 0)], "i"),
        (vec![("i", RunState::Exited, 0), ("a", RunState::Created, 0)], "a"),
    ] {
        let plan = run(&pod, &seen(&containers));
        assert_eq!(starts(&plan), [name]);
        assert_eq!(
            (plan.start[0].restarts, plan.kill[0].reason),
            (0, KillReason::NeverRan),
            "{containers:?}"
        );
    }
    let plan = run(&pod, &seen(&[("i", RunState::Unknown, 0)]));
    assert_eq!((plan.start[0].restarts, plan.kill[0].reason), (1, KillReason::Unknown));
}

#[test]
fn init_container_failed_permanently_ends_pod() {
    let pod = pod("Never", vec![container("i")], vec![container("a")]);
    let plan = run(&pod, &seen(&[("i", RunState::Exited, 1)]));
    assert!(plan.kill_pod && plan.start.is_empty());
}

#[test]
fn finished_pod_stops_sidecars() {
    use RunState::{Exited, Running};
    let pod = pod("OnFailure", vec![sidecar("s")], vec![container("a"), container("b")]);
    let plan = run(&pod, &seen(&[("s", Running, 0), ("a", Exited, 0), ("b", Exited, 0)]));
    assert!(plan.kill_pod && plan.start.is_empty());
    let plan = run(&pod, &seen(&[("s", Running, 0), ("a", Exited, 0), ("b", Exited, 1)]));
    assert!(!plan.kill_pod);
    assert_eq!(starts(&plan), ["b"]);
}

#[test]
fn restart_waits_for_backoff() {
    let pod = pod("Always", vec![], vec![container("a")]);
    let observed = seen(&[("a", RunState::Exited, 1)]);
    let mut backoff = Backoff::default();
    backoff.step("a", second(90), second(90));
    let plan = run_with(&pod, &observed, FINE, &backoff, second(105));
    assert!(plan.start.is_empty() && !plan.kill_pod);
    assert_eq!(plan.wake_at, Some(second(110)));
    assert_eq!(plan.backing_off["a"], "back-off 10s restarting failed container=a pod=_()");
    let plan = run_with(&pod, &observed, FINE, &backoff, second(110));
    assert_eq!(starts(&plan), ["a"]);
    assert_eq!(plan.start[0].restarts, 1);
}

#[test]
fn failed_probe_kills_container() {
    let pod = pod("Always", vec![], vec![container("a")]);
    let verdict = Verdict { failed: Some(KillReason::LivenessFailed), ..FINE };
    let observed = seen(&[("a", RunState::Running, 0)]);
    let plan = run_with(&pod, &observed, verdict, &Backoff::default(), second(0));
    assert_eq!(plan.kill.len(), 1);
    assert_eq!(plan.kill[0].message, "Container a failed liveness probe, will be restarted");
    assert!(plan.start.is_empty());
}

#[test]
fn dead_sandbox_is_replaced_unless_restart_never() {
    let mut observed = seen(&[("a", RunState::Exited, 1)]);
    observed.sandboxes[0].ready = false;
    let always = run(&pod("Always", vec![], vec![container("a")]), &observed);
    assert_eq!(always.create_sandbox, Some(1));
    assert_eq!(starts(&always), ["a"]);
    let never = run(&pod("Never", vec![], vec![container("a")]), &observed);
    assert_eq!(never.create_sandbox, None);
    assert!(never.is_idle());
}

#[test]
fn changed_image_replaces_container() {
    let pod = pod("Always", vec![], vec![container("a")]);
    let mut observed = seen(&[("a", RunState::Running, 0)]);
    observed.containers[0].hash = "old".to_owned();
    let plan = plan(&pod, &observed, &|_| FINE, &Backoff::default(), &|_| "new".to_owned(), second(0));
    assert_eq!(plan.kill[0].reason, KillReason::SpecChanged);
    assert_eq!(starts(&plan), ["a"]);
}

#[test]
fn durations_format_like_go() {
    for (seconds, want) in [(10, "10s"), (160, "2m40s"), (300, "5m0s"), (3600, "1h0m0s")] {
        assert_eq!(go_duration(seconds), want);
    }
}

#[test]
fn restart_all_containers_rule_resets_pod() {
    let rule = r#"{"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}"#;
    let with_rule: Container = serde_json::from_str(rule).expect("a container");
    let pod = pod("Never", vec![container("i"), sidecar("s")], vec![with_rule, container("b")]);
    let all = [
        ("i", RunState::Exited, 0),
        ("s", RunState::Running, 0),
        ("a", RunState::Exited, 42),
        ("b", RunState::Running, 0),
    ];
    let plan = run(&pod, &seen(&all));
    let order: Vec<_> = plan.reset.iter().map(|one| (one.name.as_str(), one.running)).collect();
    assert_eq!(order, [("b", true), ("s", true), ("i", false), ("a", false)]);
    assert!(plan.start.is_empty() && plan.kill.is_empty() && !plan.is_idle());
    // After all are removed, the pod starts with the first init container.
    let plan = run(&pod, &seen(&[]));
    assert_eq!(plan.start.iter().map(|start| start.member.name()).collect::<Vec<_>>(), ["i"]);
    let other = run(
        &pod,
        &seen(&[("i", RunState::Exited, 0), ("s", RunState::Running, 0), ("a", RunState::Exited, 1)]),
    );
    assert!(other.reset.is_empty());
}
