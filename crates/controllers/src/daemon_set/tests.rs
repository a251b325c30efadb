//! Tests of the pure part of the daemon set loop.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::SignedDuration;
use objects::IntOrString;
use objects::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use objects::core::v1::{Node, NodeSpec, Pod, PodSpec, PodStatus, PodTemplateSpec, Taint};
use objects::meta::v1::{ObjectMeta, OwnerReference};

use super::plan::{
    DaemonSetPlan, HASH_LABEL, ObservedDaemonSet, belongs, make_pod, manage, node_of, roll, status,
};
use crate::shared::fixture::{at, meta, ready_at, time};

fn node(name: &str, taints: &[(&str, &str)]) -> Node {
    let taint = |(key, effect): &(&str, &str)| Taint {
        key: (*key).into(),
        effect: (*effect).into(),
        ..Taint::default()
    };
    Node {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        spec: Some(NodeSpec { taints: Some(taints.iter().map(taint).collect()), ..NodeSpec::default() }),
        status: None,
    }
}

fn set(unavailable: i32, surge: i32) -> DaemonSet {
    let spec = DaemonSetSpec {
        template: PodTemplateSpec { spec: Some(PodSpec::default()), ..PodTemplateSpec::default() },
        update_strategy: Some(DaemonSetUpdateStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(RollingUpdateDaemonSet {
                max_surge: Some(IntOrString::Int(surge)),
                max_unavailable: Some(IntOrString::Int(unavailable)),
            }),
        }),
        ..DaemonSetSpec::default()
    };
    DaemonSet { metadata: meta("d"), spec: Some(spec), status: None }
}

fn pod(name: &str, node: &str, hash: &str, ready: bool) -> Pod {
    let mut pod = make_pod(&set(1, 0), node, hash, OwnerReference::default());
    pod.metadata.name = Some(name.into());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.metadata.creation_timestamp = Some(time(5));
    pod.spec.get_or_insert_default().node_name = Some(node.into());
    pod.status = Some(PodStatus { phase: Some("Running".into()), ..PodStatus::default() });
    if ready { ready_at(pod, 10) } else { pod }
}

fn observe(set: DaemonSet, nodes: Vec<Node>, pods: Vec<Pod>) -> ObservedDaemonSet {
    ObservedDaemonSet {
        set: Arc::new(set),
        nodes: nodes.into_iter().map(Arc::new).collect(),
        pods: pods.into_iter().map(Arc::new).collect(),
        hash: "new".into(),
        backing_off: HashMap::new(),
        now: at(1000),
    }
}

fn nodes(count: usize) -> Vec<Node> {
    (0..count).map(|n| node(&format!("n{n}"), &[])).collect()
}

fn deleted(plan: &DaemonSetPlan) -> Vec<&str> {
    plan.delete.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect()
}

#[test]
fn eligible_nodes_match_scheduler_rules() {
    let daemon = set(1, 0);
    for (taint, expected) in [
        (None, (true, true)),
        (Some(("node.kubernetes.io/unschedulable", "NoSchedule")), (true, true)),
        (Some(("node.kubernetes.io/not-ready", "NoExecute")), (true, true)),
        (Some(("dedicated", "NoSchedule")), (false, true)),
        (Some(("dedicated", "NoExecute")), (false, false)),
        (Some(("dedicated", "PreferNoSchedule")), (true, true)),
    ] {
        assert_eq!(belongs(&daemon, &node("n", taint.as_slice())), expected, "{taint:?}");
    }
    let mut picky = daemon;
    let spec = picky.spec.get_or_insert_default().template.spec.get_or_insert_default();
    spec.node_selector = Some([("disk".to_owned(), "ssd".to_owned())].into());
    assert_eq!(belongs(&picky, &node("n", &[])), (false, false));
}

#[test]
fn every_eligible_node_gets_one_pod() {
    let pods = vec![pod("a", "n0", "new", true), pod("b", "n1", "new", true), {
        let mut later = pod("c", "n1", "new", true);
        later.metadata.creation_timestamp = Some(time(9));
        later
    }];
    let observed = observe(set(1, 0), nodes(3), pods);
    let plan = manage(&observed);
    assert_eq!((plan.create.as_slice(), deleted(&plan)), (["n2".to_owned()].as_slice(), vec!["c"]));
    let made = make_pod(&observed.set, "n2", "new", OwnerReference::default());
    assert_eq!(node_of(&made), Some("n2"));
    assert_eq!(made.metadata.labels.expect("labels")[HASH_LABEL], "new");
    let status = status(&observed);
    assert_eq!(
        (status.desired_number_scheduled, status.current_number_scheduled, status.number_ready),
        (3, 2, 2)
    );
    assert_eq!(status.number_unavailable, Some(1));
}

#[test]
fn pods_on_ineligible_nodes_are_deleted() {
    let nodes = vec![node("n0", &[("x", "NoExecute")]), node("n1", &[("x", "NoSchedule")])];
    let mut waiting = pod("c", "gone", "new", false);
    waiting.spec.get_or_insert_default().node_name = None;
    let pods = vec![pod("a", "n0", "new", true), pod("b", "n1", "new", true), waiting];
    let observed = observe(set(1, 0), nodes, pods);
    assert_eq!(deleted(&manage(&observed)), ["a", "c"]);
    assert_eq!(status(&observed).number_misscheduled, 2);
}

#[test]
fn failed_pods_are_replaced_with_backoff() {
    let mut failed = pod("a", "n0", "new", false);
    failed.status.get_or_insert_default().phase = Some("Failed".into());
    let mut observed = observe(set(1, 0), nodes(1), vec![failed]);
    let plan = manage(&observed);
    assert_eq!((deleted(&plan), plan.failed_on.as_slice()), (vec!["a"], ["n0".to_owned()].as_slice()));
    assert_eq!(plan.notices[0].1, "FailedDaemonPod");
    observed.backing_off.insert("n0".into(), SignedDuration::from_secs(3));
    let plan = manage(&observed);
    assert!(plan.is_empty());
    assert_eq!(plan.requeue_after, Some(SignedDuration::from_secs(3)));
}

#[test]
fn rolling_update_respects_max_unavailable() {
    let old = |n: usize| pod(&format!("p{n}"), &format!("n{n}"), "old", true);
    assert_eq!(deleted(&roll(&observe(set(2, 0), nodes(4), (0..4).map(old).collect()))), ["p0", "p1"]);
    // An unavailable new pod counts; an unavailable old one may always be deleted.
    let mixed = vec![pod("p0", "n0", "new", false), pod("p1", "n1", "old", false), old(2), old(3)];
    assert_eq!(deleted(&roll(&observe(set(2, 0), nodes(4), mixed))), ["p1"]);
    let done = (0..4).map(|n| pod(&format!("p{n}"), &format!("n{n}"), "new", true)).collect();
    assert!(roll(&observe(set(2, 0), nodes(4), done)).is_empty());
    let mut manual = set(2, 0);
    manual.spec.get_or_insert_default().update_strategy =
        Some(DaemonSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None });
    assert!(roll(&observe(manual, nodes(4), (0..4).map(old).collect())).is_empty());
}

#[test]
fn rolling_update_with_surge_starts_new_pod_first() {
    let old = |n: usize| pod(&format!("p{n}"), &format!("n{n}"), "old", true);
    let plan = roll(&observe(set(0, 1), nodes(2), vec![old(0), old(1)]));
    assert_eq!((plan.create.as_slice(), deleted(&plan)), (["n0".to_owned()].as_slice(), vec![]));
    let starting = vec![old(0), pod("q0", "n0", "new", false), old(1)];
    let observed = observe(set(0, 1), nodes(2), starting);
    assert!(roll(&observed).is_empty() && manage(&observed).is_empty());
    let started = vec![old(0), pod("q0", "n0", "new", true), old(1)];
    assert_eq!(deleted(&manage(&observe(set(0, 1), nodes(2), started))), ["p0"]);
}
