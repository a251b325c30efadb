//! Tests of DynamicResources.

use super::*;
use crate::cycle::{ActiveFilter, Search, search};
use crate::devices::fixture::{DRIVER, allocated, claim, claim_named, exactly, inventory, merge, slice};
use crate::diagnosis::Diagnosis;
use crate::plugins::PluginId;
use crate::plugins::tests::{reasons, scores};
use crate::profile::Profile;
use crate::testing::{PodBuilder, cluster, node, pod};
use serde_json::{Value, json};

fn uses(claim: &str) -> PodBuilder {
    pod_using("p", claim)
}

fn pod_using(name: &str, claim: &str) -> PodBuilder {
    pod(name).spec(json!({"resourceClaims": [{"name": "own", "resourceClaimName": claim}]}))
}

fn generated(status: Value) -> PodBuilder {
    let spec = json!({"resourceClaims": [{"name": "own", "resourceClaimTemplateName": "t"}]});
    pod("p").spec(spec).status(json!({"resourceClaimStatuses": status}))
}

/// Slice of one node with these devices, in a pool named after the node.
fn on(node: &str, devices: Value) -> Value {
    let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
    slice(&format!("slice-{node}"), devices, json!({"nodeName": node, "pool": pool}))
}

fn one_device() -> Value {
    json!([{"name": "x"}])
}

fn plain(name: &str) -> Value {
    claim(name, json!([exactly("r", json!({}))]))
}

/// Nodes `a` and `b` with these slices and claims.
fn world(slices: Vec<Value>, claims: Vec<Value>) -> Cluster {
    let mut cluster = cluster([node("a"), node("b")], []);
    cluster.devices = inventory([], slices, claims);
    cluster
}

fn only_on(mut claim: Value, node: &str) -> Value {
    claim["status"]["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [node]}]}]});
    claim
}

#[test]
fn pod_waits_for_its_claims() {
    let plugin = DynamicResources::default();
    let mut deleted = plain("c");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut of_pod = plain("c");
    of_pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    let named = json!([{"name": "own", "resourceClaimName": "c"}]);
    for (pod, claim, expected) in [
        (pod("p"), None, Ok(())),
        (uses("c"), Some(plain("c")), Ok(())),
        (uses("c"), None, Err("could not find ResourceClaim \"default/c\"")),
        (uses("c"), Some(deleted), Err("resourceclaim \"c\" is being deleted")),
        (generated(json!([])), None, Err("pod \"default/p\": ResourceClaim not created yet")),
        (generated(json!([{"name": "own"}])), None, Ok(())),
        (generated(named.clone()), Some(of_pod), Ok(())),
        (
            generated(named),
            Some(plain("c")),
            Err("ResourceClaim default/c was not created for Pod default/p (Pod is not owner)"),
        ),
    ] {
        let cluster = world(vec![], claim.into_iter().collect());
        let verdict = plugin.pre_enqueue(&cluster, &pod.info());
        assert_eq!(verdict, expected.map_err(|text: &str| Reason::from(text.to_owned())));
    }
}

#[test]
fn node_is_rejected_with_reason() {
    let plugin = DynamicResources::default();
    let verdicts = |cluster: &Cluster, pod: PodBuilder| reasons(&plugin, cluster, pod);
    let free = || vec![on("a", one_device())];
    assert_eq!(verdicts(&world(free(), vec![]), pod("p")), ["a: ", "b: "]);
    let unallocated = world(free(), vec![plain("c")]);
    assert_eq!(verdicts(&unallocated, uses("c")), ["a: ", "b: !cannot allocate all claims"]);
    let taken = allocated("other", &["x"], json!({"pool": "a"}));
    let in_use = world(free(), vec![plain("c"), taken]);
    assert_eq!(
        verdicts(&in_use, uses("c")),
        ["a: !cannot allocate all claims", "b: !cannot allocate all claims"]
    );
    let pinned = only_on(allocated("c", &["x"], json!({"pool": "b"})), "b");
    assert_eq!(
        verdicts(&world(vec![], vec![pinned]), uses("c")),
        ["a: !resourceclaim not available on the node", "b: "]
    );
    let unknown = claim("c", json!([exactly("r", json!({"deviceClassName": "none"}))]));
    assert_eq!(
        verdicts(&world(free(), vec![unknown]), uses("c")),
        ["!request r: device class none does not exist"]
    );
    let twice = json!([{"name": "x"}, {"name": "x"}]);
    assert_eq!(
        verdicts(&world(vec![on("a", twice)], vec![plain("c")]), uses("c")),
        ["a: !invalid resource pools were encountered", "b: !cannot allocate all claims"]
    );
}

#[test]
fn device_that_failed_to_bind_is_unavailable() {
    let plugin = DynamicResources::default();
    let conditions = json!({"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]});
    let verdict = |since: String, condition: &str| {
        let mut claim = allocated("c", &["x"], conditions.clone());
        claim["status"]["allocation"]["allocationTimestamp"] = json!(since);
        let condition = json!({"type": condition, "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": since});
        claim["status"]["devices"] =
            json!([{"driver": DRIVER, "pool": "pool", "device": "x", "conditions": [condition]}]);
        reasons(&plugin, &world(vec![], vec![claim]), uses("c")).remove(0)
    };
    let (now, old) = (Clock::system().now().to_string(), "2020-01-01T00:00:00Z".to_owned());
    let unavailable = "a: !resourceclaim not available on the node";
    assert_eq!(verdict(now.clone(), "Other"), "a: ");
    assert_eq!(verdict(old.clone(), "Other"), unavailable);
    assert_eq!(verdict(old, "Ready"), "a: ");
    assert_eq!(verdict(now, "Broken"), unavailable);
}

/// Search with the default profile.
fn attempt<'a>(
    profile: &'a Profile,
    cluster: &'a Cluster,
    pod: &'a Arc<PodInfo>,
) -> (Vec<usize>, Diagnosis, Option<String>, Vec<ActiveFilter<'a>>) {
    let Search { feasible, diagnosis, failure, filters } = search(profile, cluster, pod, &mut 0);
    (feasible, diagnosis, failure, filters)
}

fn profile() -> Profile {
    Profile::default_named("default-scheduler").expect("the default profile")
}

#[test]
fn invalid_selector_ends_attempt_with_error() {
    let selectors = json!([{"cel": {"expression": "device.attributes['x'].y == 1"}}]);
    let invalid = claim("c", json!([exactly("r", json!({"selectors": selectors}))]));
    let cluster = world(vec![on("b", one_device())], vec![invalid]);
    let (profile, pod) = (profile(), uses("c").info());
    let (_, _, failure, _) = attempt(&profile, &cluster, &pod);
    assert_eq!(
        failure.as_deref(),
        Some(
            "running \"DynamicResources\" filter plugin: claim default/c: selector #0: CEL runtime error: no such key: y"
        )
    );
}

#[test]
fn search_past_its_limit_ends_attempt_with_error() {
    let plugin = DynamicResources { filter_timeout: Some(Duration::ZERO), ..DynamicResources::default() };
    let cluster = world(vec![on("a", one_device())], vec![plain("c")]);
    assert_eq!(reasons(&plugin, &cluster, uses("c"))[0], "a: !node a: timed out trying to allocate devices");
}

#[test]
fn reserved_device_is_taken_until_unreserved() {
    let plugin = DynamicResources::default();
    let mut cluster = world(vec![on("a", one_device())], vec![plain("c"), plain("d")]);
    let first = uses("c").info();
    assert_eq!(reasons(&plugin, &cluster, uses("c"))[0], "a: ");
    let before = plugin.reserve(&mut cluster, &first, "a").expect("reserved");
    assert_eq!(before.devices.len(), 1);
    assert!(before.devices[0].allocation.is_some() && before.devices[0].extended.is_none());
    assert_eq!(
        reasons(&plugin, &cluster, uses("c")),
        ["!resource claim default/c is in the process of being allocated"]
    );
    assert_eq!(reasons(&plugin, &cluster, pod_using("q", "d"))[0], "a: !cannot allocate all claims");
    plugin.unreserve(&mut cluster, &before);
    assert_eq!(reasons(&plugin, &cluster, pod_using("q", "d"))[0], "a: ");
    let without_search = plugin.reserve(&mut cluster, &first, "a").expect_err("no allocation");
    assert!(without_search.is_error());
}

#[test]
fn claim_of_most_pods_possible_is_in_use() {
    let plugin = DynamicResources::default();
    let verdict = |users: usize| {
        let mut claim = allocated("c", &["x"], json!({}));
        let user = |index: usize| json!({"resource": "pods", "name": "p", "uid": format!("u{index}")});
        claim["status"]["reservedFor"] = (1..=users).map(user).collect();
        let own = reasons(&plugin, &world(vec![], vec![claim.clone()]), uses("c")).remove(0);
        claim["status"]["reservedFor"][0]["uid"] = json!("p");
        (own, reasons(&plugin, &world(vec![], vec![claim]), uses("c")).remove(0))
    };
    assert_eq!(verdict(255), ("a: ".to_owned(), "a: ".to_owned()));
    assert_eq!(verdict(256), ("!resourceclaim in use".to_owned(), "a: ".to_owned()));
}

#[test]
fn node_with_earlier_alternative_scores_higher() {
    let plugin = DynamicResources::default();
    let alternative = |name: &str, model: &str| {
        let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
        json!({"name": name, "deviceClassName": "class", "count": 1, "selectors": [{"cel": {"expression": expression}}]})
    };
    let list = json!([alternative("large", "large"), alternative("small", "small")]);
    let prioritized = claim("c", json!([{"name": "r", "firstAvailable": list}]));
    let model = |model: &str| json!([{"name": "x", "attributes": {"model": {"string": model}}}]);
    let cluster = world(vec![on("a", model("small")), on("b", model("large"))], vec![prioritized]);
    assert_eq!(reasons(&plugin, &cluster, uses("c")), ["a: ", "b: "]);
    assert_eq!(scores(&plugin, &cluster, uses("c")), Some(vec![87, 100]));
    assert_eq!(scores(&plugin, &cluster, pod("p")), None);
}

#[test]
fn unusable_allocation_is_removed_unless_other_pods_use_it() {
    let reserved = |users: &[&str]| {
        let mut claim = only_on(allocated("c", &["x"], json!({})), "gone");
        let users = users.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}));
        claim["status"]["reservedFor"] = users.collect();
        claim
    };
    let profile = profile();
    let plugin = DynamicResources::default();
    let refused = |cluster: &Cluster, pod: PodBuilder| {
        let pod = pod.info();
        let (_, diagnosis, _, filters) = attempt(&profile, cluster, &pod);
        let failed = Failed { cluster, pod: &pod, filters: &filters, diagnosis: &diagnosis, offset: 0 };
        let refused = plugin.post_filter(&failed).expect_err("no candidates");
        let name = refused.deallocation.and_then(|claim| claim.metadata.name.clone());
        (refused.message, name)
    };
    let (none, still) = ("no new claims to deallocate".to_owned(), "still not schedulable".to_owned());
    let done = ("deallocation of ResourceClaim completed".to_owned(), Some("c".to_owned()));
    assert_eq!(refused(&world(vec![], vec![]), pod("p")), (none, None));
    assert_eq!(refused(&world(vec![], vec![plain("c")]), uses("c")), (still.clone(), None));
    assert_eq!(refused(&world(vec![], vec![reserved(&[])]), uses("c")), done);
    assert_eq!(refused(&world(vec![], vec![reserved(&["p"])]), uses("c")), done);
    assert_eq!(refused(&world(vec![], vec![reserved(&["q"])]), uses("c")), (still, None));
}

#[test]
fn extended_resource_is_provided_by_devices_or_node() {
    let resource = "example.com/gpu";
    let has = |amount: &str| json!({"cpu": "10", "memory": "64Gi", "pods": "110", resource: amount});
    let mut cluster = cluster([node("a"), node("b"), node("c").allocatable(has("2"))], []);
    let class = json!({"metadata": {"name": "gpus"}, "spec": {"extendedResourceName": resource}});
    cluster.devices = inventory([class], [on("a", one_device())], []);
    let wants = || pod("p").request(resource, "1");
    let plugin = DynamicResources::default();
    assert_eq!(reasons(&plugin, &cluster, wants()), ["a: ", "b: !cannot allocate all claims", "c: "]);
    let pod = wants().info();
    let before = plugin.reserve(&mut cluster, &pod, "a").expect("reserved");
    let binding = before.devices.first().expect("a claim");
    assert_eq!(binding.claim.metadata.generate_name.as_deref(), Some("p-extended-resources-"));
    let mapping = &binding.extended.as_ref().expect("mappings")[0];
    assert_eq!(
        (mapping.container_name.as_str(), mapping.request_name.as_str()),
        ("c", "container-0-request-0")
    );
    plugin.unreserve(&mut cluster, &before);
    reasons(&plugin, &cluster, wants());
    assert!(plugin.reserve(&mut cluster, &pod, "c").expect("reserved").is_empty());
    let (feasible, diagnosis, ..) = attempt(&profile(), &cluster, &pod);
    assert_eq!(feasible.len(), 2, "{}", diagnosis.message());

    // A claim of an earlier attempt is removed first.
    let mut stale = allocated("old", &["x"], json!({"pool": "a"}));
    merge(
        &mut stale["metadata"],
        &json!({
            "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}],
        }),
    );
    cluster.devices.set_claim(&Arc::new(claim_named(stale)));
    assert_eq!(reasons(&plugin, &cluster, wants())[0], "a: !cannot schedule extended resource claim");
    let diagnosis = Diagnosis::new(3);
    let failed = Failed { cluster: &cluster, pod: &pod, filters: &[], diagnosis: &diagnosis, offset: 0 };
    let refused = plugin.post_filter(&failed).expect_err("no candidates");
    assert_eq!(refused.message, "deletion of ResourceClaim completed");
    assert_eq!(refused.deallocation.and_then(|claim| claim.metadata.name.clone()).as_deref(), Some("old"));
}

#[test]
fn queueing_hint_needs_own_or_deallocated_claim() {
    let plugin = DynamicResources::default();
    let cluster = world(vec![], vec![plain("c"), plain("other")]);
    let waiting = uses("c").info();
    let helps = |old: Option<Value>, new: Value| {
        let (old, new) = (old.map(claim_named), claim_named(new));
        let changed = Changed::ResourceClaim { old: old.as_ref(), new: &new };
        plugin.helps(&cluster, &waiting, Actions::RESOURCE_CLAIM_UPDATE, changed)
    };
    let taken = |name: &str| allocated(name, &["x"], json!({}));
    assert!(helps(None, plain("c")));
    assert!(!helps(None, plain("other")));
    assert!(!helps(Some(plain("c")), plain("c")));
    assert!(helps(Some(plain("c")), taken("c")));
    assert!(!helps(Some(plain("other")), taken("other")));
    assert!(helps(Some(taken("other")), plain("other")));
    let absent = uses("absent").info();
    let (old, new) = (claim_named(taken("other")), claim_named(plain("other")));
    let changed = Changed::ResourceClaim { old: Some(&old), new: &new };
    assert!(!plugin.helps(&cluster, &absent, Actions::RESOURCE_CLAIM_UPDATE, changed));
    assert!(plugin.interests().meets(Actions::RESOURCE_SLICE_ADD));
    assert!(PluginId::named("DynamicResources").is_some());
}
