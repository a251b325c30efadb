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

fn seen(containers: &[(&str, RunState, i32)]) -> Observed {
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
    let mut observed = Observed { sandboxes: vec![sandbox], containers };
    observed.sort();
    observed
}

fn run(pod: &Pod, observed: &Observed) -> Plan {
    run_with(pod, observed, FINE, &Backoff::default(), second(100))
}

fn run_with(pod: &Pod, observed: &Observed, verdict: Verdict, backoff: &Backoff, now: Timestamp) -> Plan {
    plan(pod, observed, &|_| verdict, backoff, &|_| String::new(), now)
}

fn starts(plan: &Plan) -> Vec<&str> {
    plan.start.iter().map(|start| start.member.name()).collect()
}

#[test]
fn a_new_pod_gets_a_sandbox_and_all_its_containers() {
    let plan = run(&pod("Always", vec![], vec![container("a"), container("b")]), &Observed::default());
    assert_eq!(plan.create_sandbox, Some(0));
    assert_eq!(starts(&plan), ["a", "b"]);
    assert!(!plan.kill_pod);
}

#[test]
fn init_containers_go_one_by_one() {
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
fn what_was_created_and_never_started_is_replaced_as_if_it_had_not_been() {
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
fn an_init_container_that_fails_for_good_ends_the_pod() {
    let pod = pod("Never", vec![container("i")], vec![container("a")]);
    let plan = run(&pod, &seen(&[("i", RunState::Exited, 1)]));
    assert!(plan.kill_pod && plan.start.is_empty());
}

#[test]
fn a_finished_pod_ends_with_its_sidecars() {
    use RunState::{Exited, Running};
    let pod = pod("OnFailure", vec![sidecar("s")], vec![container("a"), container("b")]);
    let plan = run(&pod, &seen(&[("s", Running, 0), ("a", Exited, 0), ("b", Exited, 0)]));
    assert!(plan.kill_pod && plan.start.is_empty());
    let plan = run(&pod, &seen(&[("s", Running, 0), ("a", Exited, 0), ("b", Exited, 1)]));
    assert!(!plan.kill_pod);
    assert_eq!(starts(&plan), ["b"]);
}

#[test]
fn restarts_back_off() {
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
fn a_failed_probe_ends_the_container() {
    let pod = pod("Always", vec![], vec![container("a")]);
    let verdict = Verdict { failed: Some(KillReason::LivenessFailed), ..FINE };
    let observed = seen(&[("a", RunState::Running, 0)]);
    let plan = run_with(&pod, &observed, verdict, &Backoff::default(), second(0));
    assert_eq!(plan.kill.len(), 1);
    assert_eq!(plan.kill[0].message, "Container a failed liveness probe, will be restarted");
    assert!(plan.start.is_empty());
}

#[test]
fn a_dead_sandbox_is_replaced_unless_the_pod_never_restarts() {
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
fn a_changed_image_replaces_the_container() {
    let pod = pod("Always", vec![], vec![container("a")]);
    let mut observed = seen(&[("a", RunState::Running, 0)]);
    observed.containers[0].hash = "old".to_owned();
    let plan = plan(&pod, &observed, &|_| FINE, &Backoff::default(), &|_| "new".to_owned(), second(0));
    assert_eq!(plan.kill[0].reason, KillReason::SpecChanged);
    assert_eq!(starts(&plan), ["a"]);
}

#[test]
fn durations_look_like_kubernetes() {
    for (seconds, want) in [(10, "10s"), (160, "2m40s"), (300, "5m0s"), (3600, "1h0m0s")] {
        assert_eq!(go_duration(seconds), want);
    }
}

#[test]
fn one_container_may_let_all_begin_anew() {
    let rule = r#"{"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]}"#;
    let asking: Container = serde_json::from_str(rule).expect("a container");
    let pod = pod("Never", vec![container("i"), sidecar("s")], vec![asking, container("b")]);
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
    // When all are gone, it begins with the first.
    let plan = run(&pod, &seen(&[]));
    assert_eq!(plan.start.iter().map(|start| start.member.name()).collect::<Vec<_>>(), ["i"]);
    let other = run(
        &pod,
        &seen(&[("i", RunState::Exited, 0), ("s", RunState::Running, 0), ("a", RunState::Exited, 1)]),
    );
    assert!(other.reset.is_empty());
}
