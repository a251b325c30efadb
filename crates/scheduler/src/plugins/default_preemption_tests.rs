//! Tests of DefaultPreemption.

use super::*;
use crate::cycle::search;
use crate::profile::Profile;
use crate::testing::{PodBuilder, cluster, node, pod};
use serde_json::json;

fn run(cluster: &Cluster, pod: PodBuilder) -> Result<Vec<Candidate>, NoCandidates> {
    let profile = Profile::default_named("default-scheduler").expect("the default profile");
    let pod = pod.info();
    let found = search(&profile, cluster, &pod, &mut 0);
    assert!(found.feasible.is_empty(), "the pod fits as it is");
    let failed =
        Failed { cluster, pod: &pod, filters: &found.filters, diagnosis: &found.diagnosis, offset: 0 };
    DefaultPreemption::default().post_filter(&failed)
}

fn best(cluster: &Cluster, pod: PodBuilder) -> (String, Vec<String>) {
    let candidate = least_harm(run(cluster, pod).expect("candidates")).expect("a candidate");
    (candidate.node.to_string(), candidate.victims.iter().map(|victim| victim.name.to_string()).collect())
}

fn message(cluster: &Cluster, pod: PodBuilder) -> (String, bool) {
    let refused = run(cluster, pod).expect_err("no candidates");
    (refused.message, refused.keep_nomination)
}

fn started(pod: PodBuilder, second: u32) -> PodBuilder {
    pod.status(json!({"startTime": format!("2026-01-01T00:00:{second:02}Z")}))
}

#[test]
fn preemption_selects_least_important_sufficient_victims() {
    let cluster = cluster(
        [node("a")],
        [
            pod("low").cpu("4").priority(1).on("a"),
            pod("mid").cpu("4").priority(5).on("a"),
            pod("small").cpu("2").priority(1).on("a"),
        ],
    );
    assert_eq!(best(&cluster, pod("p").cpu("2").priority(10)), ("a".into(), vec!["small".into()]));
    assert_eq!(
        best(&cluster, pod("p").cpu("5").priority(10)),
        ("a".into(), vec!["low".into(), "small".into()])
    );
    assert_eq!(best(&cluster, pod("p").cpu("10").priority(10)).1.len(), 3);
    assert_eq!(best(&cluster, pod("p").cpu("6").priority(3)).1.len(), 2);
}

#[test]
fn preemption_impossible_returns_reason() {
    let cluster = cluster(
        [node("a"), node("tainted").taint("x", "NoSchedule")],
        [pod("equal").cpu("10").priority(10).on("a")],
    );
    assert_eq!(
        message(&cluster, pod("p").cpu("2").priority(10)),
        (
            "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, \
             1 Preemption is not helpful for scheduling."
                .into(),
            false
        )
    );
    assert_eq!(
        message(&cluster, pod("p").cpu("20").priority(100)).0,
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    );
    let meek = pod("p").cpu("2").priority(100).spec(json!({"preemptionPolicy": "Never"}));
    assert_eq!(
        message(&cluster, meek),
        ("preemption: not eligible due to preemptionPolicy=Never.".into(), true)
    );
}

#[test]
fn preemption_in_progress_keeps_nomination() {
    let leaving = pod("x")
        .cpu("10")
        .priority(1)
        .on("a")
        .metadata(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}))
        .status(json!({"conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}));
    let cluster = cluster([node("a")], [leaving]);
    let nominated = pod("p").cpu("2").priority(10).status(json!({"nominatedNodeName": "a"}));
    assert_eq!(
        message(&cluster, nominated),
        ("preemption: not eligible due to a terminating pod on the nominated node.".into(), true)
    );
}

#[test]
fn preemption_respects_budgets_where_possible() {
    let guarded = |name: &str| pod(name).cpu("5").priority(1).label("app", "guarded");
    let mut cluster = cluster([node("a")], [guarded("g").on("a"), pod("free").cpu("5").priority(2).on("a")]);
    // The less important pod would be evicted first, were it not protected by a budget.
    assert_eq!(best(&cluster, pod("p").cpu("5").priority(10)).1, ["g"]);
    let budget = json!({
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "guarded"}}}, "status": {"disruptionsAllowed": 0,
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    });
    cluster.objects.budgets.set(Arc::new(serde_json::from_value(budget).expect("a budget")));
    assert_eq!(best(&cluster, pod("p").cpu("5").priority(10)).1, ["free"]);
    let both = run(&cluster, pod("p").cpu("10").priority(10)).expect("candidates");
    assert_eq!((both[0].violations, both[0].victims.len()), (1, 2));
}

#[test]
fn preemption_chooses_node_with_least_damage() {
    let full = |name: &str, priority: i32, node: &str| pod(name).cpu("10").priority(priority).on(node);
    let half = |name: &str, priority: i32, node: &str| pod(name).cpu("5").priority(priority).on(node);
    let vip = || pod("p").cpu("10").priority(100);
    let cases = [
        ("lowest of the highest priorities", vec![full("1", 5, "a"), full("2", 3, "b")], "b"),
        ("lowest sum", vec![half("1", 3, "a"), half("2", 3, "a"), half("3", 3, "b"), half("4", 1, "b")], "b"),
        ("fewest pods", vec![half("1", 3, "a"), half("2", 3, "a"), full("3", 3, "b")], "b"),
        ("latest start", vec![started(full("1", 3, "a"), 1), started(full("2", 3, "b"), 9)], "b"),
    ];
    for (name, pods, expected) in cases {
        let cluster = cluster([node("a"), node("b")], pods);
        assert_eq!(best(&cluster, vip()).0, expected, "{name}");
    }
}

#[test]
fn preemption_resolves_anti_affinity() {
    let refusing = |name: &str| {
        pod(name).label("app", "web").spec(json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"app": "web"}}}]}}}))
    };
    let cluster = cluster([node("a")], [refusing("old").on("a"), pod("bystander").cpu("1").on("a")]);
    let (_, victims) = best(&cluster, refusing("p").spec(json!({"priority": 10})));
    assert_eq!(victims, ["old"]);
}
