//! Tests of InterPodAffinity.

use super::*;
use crate::plugins::tests::{reasons, scores};
use crate::testing::{NodeBuilder, PodBuilder, cluster, node, pod};
use serde_json::{Value, json};

const ZONE: &str = "zone";

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn requires(pod: PodBuilder, kind: &str, terms: Value) -> PodBuilder {
    pod.spec(json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}))
}

fn prefers(pod: PodBuilder, kind: &str, weight: i32, term: Value) -> PodBuilder {
    pod.spec(json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution":
        [{"weight": weight, "podAffinityTerm": term}]}}}))
}

fn app(name: &str, app: &str) -> PodBuilder {
    pod(name).label("app", app)
}

/// Two nodes in zone a, one in zone b, one in none.
fn nodes() -> [NodeBuilder; 4] {
    [node("a1").label(ZONE, "a"), node("a2").label(ZONE, "a"), node("b1").label(ZONE, "b"), node("bare")]
}

fn fits(cluster: &Cluster, pod: PodBuilder) -> Vec<String> {
    let verdicts = reasons(&InterPodAffinity::default(), cluster, pod);
    verdicts.iter().filter_map(|line| line.strip_suffix(": ")).map(str::to_owned).collect()
}

#[test]
fn affinity_requires_match_in_domain() {
    let cluster = cluster(nodes(), [app("db", "db").on("a1"), app("cache", "cache").on("b1")]);
    let both = json!([term(ZONE, "db"), term(ZONE, "cache")]);
    for (terms, expected) in [
        (json!([term(ZONE, "db")]), vec!["a1", "a2"]),
        (json!([term("kubernetes.io/hostname", "db")]), vec!["a1"]),
        (json!([term(ZONE, "none")]), vec![]),
        (both, vec![]),
    ] {
        assert_eq!(fits(&cluster, requires(pod("p"), "podAffinity", terms.clone())), expected, "{terms}");
    }
}

#[test]
fn affinity_first_pod_of_group_fits_labelled_nodes() {
    let empty = cluster(nodes(), []);
    let together = || requires(app("p", "web"), "podAffinity", json!([term(ZONE, "web")]));
    assert_eq!(fits(&empty, together()), ["a1", "a2", "b1"]);
    let started = cluster(nodes(), [app("1", "web").on("b1")]);
    assert_eq!(fits(&started, together()), ["b1"]);
    let verdicts = reasons(&InterPodAffinity::default(), &started, together());
    assert_eq!(verdicts[0], format!("a1: !{REASON_AFFINITY}"));
}

#[test]
fn anti_affinity_applies_in_both_directions() {
    let web = || app("1", "web").on("a1");
    let plain = cluster(nodes(), [web()]);
    let refusing = || requires(app("p", "web"), "podAntiAffinity", json!([term(ZONE, "web")]));
    let verdicts = reasons(&InterPodAffinity::default(), &plain, refusing());
    let away = |node: &str, reason: &str| format!("{node}: {reason}");
    assert_eq!(
        verdicts,
        [away("a1", REASON_ANTI_AFFINITY), away("a2", REASON_ANTI_AFFINITY), "b1: ".into(), "bare: ".into()]
    );

    let refused = cluster(nodes(), [requires(web(), "podAntiAffinity", json!([term(ZONE, "web")]))]);
    let verdicts = reasons(&InterPodAffinity::default(), &refused, app("p", "web"));
    assert_eq!(
        verdicts,
        [away("a1", REASON_EXISTING), away("a2", REASON_EXISTING), "b1: ".into(), "bare: ".into()]
    );
    assert_eq!(fits(&refused, app("p", "db")), ["a1", "a2", "b1", "bare"]);
}

#[test]
fn affinity_term_namespaces_limit_matches() {
    let mut cluster = cluster(nodes(), [app("1", "web").namespace("blue").on("a1")]);
    for (name, labels) in [("blue", json!({"team": "x"})), ("default", json!({}))] {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        cluster.set_namespace(&serde_json::from_value(namespace).expect("a namespace"));
    }
    let with = |field: &str, value: Value| {
        let mut own = term(ZONE, "web");
        own[field] = value;
        requires(pod("p"), "podAntiAffinity", json!([own]))
    };
    let all = ["a1", "a2", "b1", "bare"];
    assert_eq!(fits(&cluster, requires(pod("p"), "podAntiAffinity", json!([term(ZONE, "web")]))), all);
    assert_eq!(fits(&cluster, with("namespaces", json!(["blue"]))), ["b1", "bare"]);
    assert_eq!(fits(&cluster, with("namespaceSelector", json!({}))), ["b1", "bare"]);
    assert_eq!(
        fits(&cluster, with("namespaceSelector", json!({"matchLabels": {"team": "x"}}))),
        ["b1", "bare"]
    );
    assert_eq!(fits(&cluster, with("namespaceSelector", json!({"matchLabels": {"team": "y"}}))), all);
    let renamed = json!({"metadata": {"name": "blue", "labels": {"team": "y"}}});
    cluster.set_namespace(&serde_json::from_value(renamed).expect("a namespace"));
    assert_eq!(
        fits(&cluster, with("namespaceSelector", json!({"matchLabels": {"team": "y"}}))),
        ["b1", "bare"]
    );
}

#[test]
fn match_label_keys_use_pod_labels() {
    let cluster = cluster(nodes(), [app("1", "web").label("hash", "1").on("a1")]);
    let mut own = term(ZONE, "web");
    own["matchLabelKeys"] = json!(["hash"]);
    let of =
        |hash: &str| requires(app("p", "web").label("hash", hash), "podAntiAffinity", json!([own.clone()]));
    assert_eq!(fits(&cluster, of("1")), ["b1", "bare"]);
    assert_eq!(fits(&cluster, of("2")), ["a1", "a2", "b1", "bare"]);
}

#[test]
fn simulated_pods_change_the_verdict() {
    let cluster = cluster(nodes(), [app("1", "web").on("a1")]);
    let plugin = InterPodAffinity::default();
    let own = requires(app("p", "web"), "podAntiAffinity", json!([term(ZONE, "web")])).info();
    let PreFilter::Check(mut filter) = plugin.pre_filter(Cycle { cluster: &cluster, pod: &own }) else {
        panic!("the plugin takes part");
    };
    let (a1, b1) = (cluster.node("a1").expect("a node"), cluster.node("b1").expect("a node"));
    assert!(filter.check(a1).is_err() && filter.check(b1).is_ok());
    filter.remove(&app("1", "web").on("a1").info(), a1);
    assert!(filter.check(a1).is_ok());
    filter.add(&requires(app("x", "db"), "podAntiAffinity", json!([term(ZONE, "web")])).info(), b1);
    assert!(filter.check(b1).is_err());
}

#[test]
fn preferred_terms_of_both_pods_are_summed() {
    let plugin = InterPodAffinity::default();
    let plain = cluster(nodes(), [app("1", "web").on("a1"), app("2", "db").on("b1")]);
    let near_web = prefers(pod("p"), "podAffinity", 5, term(ZONE, "web"));
    assert_eq!(scores(&plugin, &plain, near_web), Some(vec![100, 100, 0, 0]));
    let far_from_web = prefers(pod("p"), "podAntiAffinity", 5, term(ZONE, "web"));
    assert_eq!(scores(&plugin, &plain, far_from_web), Some(vec![0, 0, 100, 100]));
    assert_eq!(scores(&plugin, &plain, pod("p")), None);

    let fond = cluster(
        nodes(),
        [
            prefers(app("1", "web"), "podAffinity", 4, term(ZONE, "db")).on("a1"),
            requires(app("2", "web"), "podAffinity", json!([term(ZONE, "db")])).on("b1"),
            prefers(app("3", "web"), "podAntiAffinity", 2, term("kubernetes.io/hostname", "db")).on("a2"),
        ],
    );
    // Zone a scores 4, a2 two less; zone b one, for the required term; the node without a zone 0.
    assert_eq!(scores(&plugin, &fond, app("p", "db")), Some(vec![100, 50, 25, 0]));
    let deaf = InterPodAffinity { ignore_preferences_of_running_pods: true, ..InterPodAffinity::default() };
    assert_eq!(scores(&deaf, &fond, app("p", "db")), None);
}

#[test]
fn queueing_hint_irrelevant_change_is_skipped() {
    let cluster = cluster(nodes(), []);
    let plugin = InterPodAffinity::default();
    let near = requires(pod("p"), "podAffinity", json!([term(ZONE, "db")])).info();
    let far = requires(pod("p"), "podAntiAffinity", json!([term(ZONE, "db")])).info();
    let helps = |pod: &PodInfo, old: Option<&PodInfo>, new: Option<&PodInfo>| {
        plugin.helps(&cluster, pod, Actions::POD_ADD, Changed::Pod { old, new })
    };
    let db = app("x", "db").on("a1").info();
    let web = app("x", "web").on("a1").info();
    assert!(helps(&near, None, Some(&db)) && !helps(&near, None, Some(&web)));
    assert!(!helps(&near, Some(&db), None) && helps(&far, Some(&db), None));
    assert!(!helps(&far, Some(&web), None));
    assert!(helps(&far, Some(&db), Some(&web)) && helps(&near, Some(&web), Some(&db)));
    let refusing = requires(app("x", "web"), "podAntiAffinity", json!([term(ZONE, "new")])).on("a1").info();
    assert!(helps(&app("q", "new").info(), Some(&refusing), None));
}
