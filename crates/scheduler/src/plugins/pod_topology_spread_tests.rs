//! Tests of PodTopologySpread.

use super::*;
use crate::plugins::tests::{reasons, scores};
use crate::testing::{NodeBuilder, PodBuilder, cluster, node, pod};
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";

fn constraint(key: &str, skew: i32, hard: bool) -> Value {
    json!({
        "topologyKey": key, "maxSkew": skew, "labelSelector": {"matchLabels": {"app": "web"}},
        "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    })
}

fn web(name: &str) -> PodBuilder {
    pod(name).label("app", "web")
}

fn spread(constraints: Value) -> PodBuilder {
    web("p").spec(json!({"topologySpreadConstraints": constraints}))
}

/// Two zones of two nodes each.
fn nodes() -> Vec<NodeBuilder> {
    [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")]
        .map(|(name, zone)| node(name).label(ZONE, zone))
        .into()
}

fn fits(cluster: &Cluster, pod: PodBuilder) -> Vec<String> {
    let verdicts = reasons(&PodTopologySpread::default(), cluster, pod);
    verdicts.iter().filter_map(|line| line.strip_suffix(": ")).map(str::to_owned).collect()
}

#[test]
fn hard_constraint_limits_skew() {
    // Zone a has three matching pods, zone b one; host a1 two, a2 one, b1 one, b2 none.
    let placed =
        || [web("1").on("a1"), web("2").on("a1"), web("3").on("a2"), web("4").on("b1"), pod("5").on("b2")];
    let cluster = cluster(nodes(), placed());
    for (name, constraints, expected) in [
        ("zones, skew 1", json!([constraint(ZONE, 1, true)]), vec!["b1", "b2"]),
        ("zones, skew 3", json!([constraint(ZONE, 3, true)]), vec!["a1", "b1", "a2", "b2"]),
        ("hosts, skew 1", json!([constraint(HOSTNAME, 1, true)]), vec!["b2"]),
        ("hosts, skew 2", json!([constraint(HOSTNAME, 2, true)]), vec!["b1", "a2", "b2"]),
        ("both", json!([constraint(ZONE, 1, true), constraint(HOSTNAME, 2, true)]), vec!["b1", "b2"]),
        ("soft only", json!([constraint(ZONE, 1, false)]), vec!["a1", "b1", "a2", "b2"]),
    ] {
        assert_eq!(fits(&cluster, spread(constraints)), expected, "{name}");
    }
}

#[test]
fn count_includes_only_matching_active_pods_of_namespace() {
    let leaving = web("l").on("a1").metadata(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    let cluster =
        cluster(nodes(), [web("other").namespace("elsewhere").on("a1"), leaving, web("1").on("b1")]);
    assert_eq!(fits(&cluster, spread(json!([constraint(ZONE, 1, true)]))), ["a1", "a2"]);
    // A pod that its own constraint does not select adds nothing to the skew.
    let unselected = pod("p").spec(json!({"topologySpreadConstraints": [constraint(ZONE, 1, true)]}));
    assert_eq!(fits(&cluster, unselected), ["a1", "b1", "a2", "b2"]);
}

#[test]
fn node_without_topology_label_is_rejected() {
    let cluster = cluster([node("a").label(ZONE, "a"), node("bare")], []);
    let verdicts =
        reasons(&PodTopologySpread::default(), &cluster, spread(json!([constraint(ZONE, 1, true)])));
    assert_eq!(verdicts, ["a: ", &format!("bare: !{REASON_LABEL}")]);
}

#[test]
fn min_domains_not_reached_counts_as_empty_domain() {
    let cluster = cluster(nodes(), [web("1").on("a1"), web("2").on("b1")]);
    let mut few = constraint(ZONE, 1, true);
    assert_eq!(fits(&cluster, spread(json!([few]))).len(), 4);
    few["minDomains"] = json!(3);
    assert!(fits(&cluster, spread(json!([few]))).is_empty());
    few["minDomains"] = json!(2);
    assert_eq!(fits(&cluster, spread(json!([few]))).len(), 4);
}

#[test]
fn inclusion_policies_select_domains() {
    // Zone c is empty, but tainted and not selected.
    let mut all = nodes();
    all.push(node("c1").label(ZONE, "c").label("pool", "other").taint("x", "NoSchedule"));
    let cluster = cluster(all, [web("1").on("a1"), web("2").on("b1")]);
    let with = |field: &str, value: &str| {
        let mut own = constraint(ZONE, 1, true);
        own[field] = json!(value);
        spread(json!([own]))
    };
    let selecting = |pod: PodBuilder| {
        let not_other = json!({"key": "pool", "operator": "DoesNotExist"});
        pod.spec(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [not_other]}]}}}}))
    };
    assert_eq!(fits(&cluster, with("nodeTaintsPolicy", "Ignore")), ["c1"]);
    assert_eq!(fits(&cluster, with("nodeTaintsPolicy", "Honor")), ["a1", "b1", "c1", "a2", "b2"]);
    assert_eq!(fits(&cluster, selecting(with("nodeAffinityPolicy", "Ignore"))), ["c1"]);
    assert_eq!(
        fits(&cluster, selecting(with("nodeAffinityPolicy", "Honor"))),
        ["a1", "b1", "c1", "a2", "b2"]
    );
}

#[test]
fn simulated_pods_change_the_verdict() {
    let cluster = cluster(nodes(), [web("1").on("a1"), web("2").on("b1"), web("3").on("a2")]);
    let plugin = PodTopologySpread::default();
    let pod = spread(json!([constraint(ZONE, 1, true)])).info();
    let PreFilter::Check(mut filter) = plugin.pre_filter(Cycle { cluster: &cluster, pod: &pod }) else {
        panic!("the plugin takes part");
    };
    let a1 = cluster.node("a1").expect("a node");
    let b1 = cluster.node("b1").expect("a node");
    assert!(filter.check(a1).is_err());
    let before = filter.boxed();
    filter.remove(&web("1").info(), a1);
    assert!(filter.check(a1).is_ok());
    filter.add(&web("9").info(), a1);
    assert!(filter.check(a1).is_err());
    filter.add(&web("10").info(), b1);
    assert!(filter.check(a1).is_ok());
    assert!(before.check(a1).is_err(), "a copy is a copy");
}

#[test]
fn soft_constraint_prefers_emptier_domains() {
    let cluster =
        cluster(nodes(), [web("1").on("a1"), web("2").on("a1"), web("3").on("a2"), web("4").on("b1")]);
    let plugin = PodTopologySpread::default();
    let by_zone = scores(&plugin, &cluster, spread(json!([constraint(ZONE, 1, false)]))).expect("scores");
    assert_eq!((by_zone[0], by_zone[2]), (by_zone[2], by_zone[0]));
    assert_eq!((by_zone[1], by_zone[3]), (100, 100));
    assert!(by_zone[0] < 100);
    let by_host = scores(&plugin, &cluster, spread(json!([constraint(HOSTNAME, 1, false)]))).expect("scores");
    // a1, b1, a2, b2 hold 2, 1, 1 and 0.
    assert_eq!(by_host, [0, 50, 50, 100]);
    assert_eq!(scores(&plugin, &cluster, spread(json!([constraint(ZONE, 1, true)]))), None);
}

#[test]
fn default_constraints_spread_pods_of_service_or_owner() {
    let service =
        json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}});
    let mut with_service = cluster(nodes(), [web("1").on("a1")]);
    let plugin = PodTopologySpread::default();
    assert_eq!(scores(&plugin, &with_service, web("p")), None);
    with_service.objects.services.set(Arc::new(serde_json::from_value(service).expect("a service")));
    let found = scores(&plugin, &with_service, web("p")).expect("scores");
    assert!(found[0] < found[2] && found[2] < found[1], "{found:?}");
    assert_eq!(found[1], found[3]);

    let set = json!({"metadata": {"name": "r", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}});
    let owner = json!({"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]});
    let mut with_owner = cluster(nodes(), [web("1").on("a1")]);
    assert_eq!(scores(&plugin, &with_owner, web("p").metadata(owner.clone())), None);
    with_owner.objects.replica_sets.set(Arc::new(serde_json::from_value(set).expect("a set")));
    assert_eq!(scores(&plugin, &with_owner, web("p").metadata(owner)), Some(found));

    let listed = PodTopologySpread::with_defaults(&[serde_json::from_value(
        json!({"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}),
    )
    .expect("a constraint")]);
    let verdicts = reasons(&listed, &with_service, web("p"));
    assert_eq!(verdicts, [&format!("a1: {REASON}"), "b1: ", &format!("a2: {REASON}"), "b2: "]);
}

#[test]
fn queueing_hint_irrelevant_change_is_skipped() {
    let cluster = cluster(nodes(), []);
    let plugin = PodTopologySpread::default();
    let waiting = spread(json!([constraint(ZONE, 1, true)])).info();
    let helps = |old: Option<&PodInfo>, new: Option<&PodInfo>| {
        plugin.helps(&cluster, &waiting, Actions::POD_ADD, Changed::Pod { old, new })
    };
    assert!(helps(None, Some(&web("x").on("a1").info())));
    assert!(!helps(None, Some(&pod("x").on("a1").info())));
    assert!(!helps(None, Some(&web("x").namespace("other").on("a1").info())));
    assert!(!helps(None, Some(&web("x").info())));
    assert!(helps(Some(&pod("x").on("a1").info()), Some(&web("x").on("a1").info())));
    assert!(!helps(Some(&web("x").on("a1").info()), Some(&web("x").label("b", "c").on("a1").info())));
}
