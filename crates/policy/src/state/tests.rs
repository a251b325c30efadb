use serde_json::{Value, json};

use super::*;
use crate::feed;

/// A node with pods `web` and `db` in namespace `n`; pod `far` is elsewhere.
fn world() -> State {
    let mut state = State::default();
    for namespace in ["n", "m"] {
        state.set_namespace(namespace, Some(labels(&[("name", namespace)])));
    }
    state.set_pod(&Name::new("n", "web"), Some(pod("web", 1, true)));
    state.set_pod(&Name::new("n", "db"), Some(pod("db", 2, true)));
    state.set_pod(&Name::new("m", "far"), Some(pod("far", 3, false)));
    assert!(state.commit().is_empty(), "nothing without policies");
    state
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn pod(app: &str, last: u8, local: bool) -> Pod {
    let named = crate::model::NamedPort { name: "http".to_owned(), protocol: crate::model::Protocol::Tcp };
    Pod {
        labels: labels(&[("app", app)]),
        addresses: [[10, 0, 0, last].into()].into(),
        ports: [(named, 8080)].into(),
        local,
    }
}

fn set(state: &mut State, name: &str, spec: Value) -> Difference {
    let object = json!({ "metadata": { "namespace": "n", "name": name }, "spec": spec });
    let policy = feed::policy(&serde_json::from_value(object).expect("a policy")).expect("understood");
    state.set_policy(&Name::new("n", name), Some(policy));
    state.commit()
}

fn remove(state: &mut State, name: &str) -> Difference {
    state.set_policy(&Name::new("n", name), None);
    state.commit()
}

#[test]
fn policy_isolates_selected_pods_until_deleted() {
    let mut state = world();
    assert!(state.is_idle());
    let made = set(&mut state, "deny", json!({ "podSelector": { "matchLabels": { "app": "db" } } }));
    assert_eq!((made.new_groups.len(), made.new_chains.len(), made.new_sets.len()), (1, 1, 0));
    assert_eq!(made.dispatch_added.len(), 1);
    assert_eq!(made.dispatch_added[0].address, IpAddr::from([10, 0, 0, 2]));
    assert_eq!(made.dispatch_added[0].direction, Direction::Ingress);
    assert_eq!(made.selves_joined.len(), 1);
    let gone = remove(&mut state, "deny");
    assert_eq!((gone.old_groups, gone.old_chains), (made.new_groups, made.new_chains));
    assert_eq!(gone.dispatch_removed, made.dispatch_added);
    assert!(state.is_idle());
    assert!(state.whole().is_empty());
}

#[test]
fn added_and_removed_pods_change_entries_only() {
    let mut state = world();
    let made = set(
        &mut state,
        "from-web",
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }] }),
    );
    assert_eq!(made.new_sets.len(), 1);
    assert_eq!(made.new_sets[0].entries, [Entry::Address([10, 0, 0, 1].into())]);
    assert_eq!(made.dispatch_added.len(), 2, "both pods of this node");
    // A peer on another node.
    state.set_pod(&Name::new("n", "web-2"), Some(pod("web", 9, false)));
    let joined = state.commit();
    let entry =
        (made.new_sets[0].id, made.new_sets[0].key.clone(), vec![Entry::Address([10, 0, 0, 9].into())]);
    assert_eq!(joined, Difference { joined: vec![entry.clone()], ..Difference::default() });
    // A pod that no longer matches.
    state.set_pod(&Name::new("n", "web-2"), Some(pod("db", 9, false)));
    assert_eq!(state.commit(), Difference { left: vec![entry], ..Difference::default() });
    // Another pod of this node shares the group of the others.
    state.set_pod(&Name::new("n", "other"), Some(pod("other", 7, true)));
    let shared = state.commit();
    assert!(shared.new_groups.is_empty() && shared.new_chains.is_empty() && shared.new_sets.is_empty());
    assert_eq!((shared.dispatch_added.len(), shared.selves_joined.len()), (1, 1));
    assert_eq!(shared.dispatch_added[0].group, made.dispatch_added[0].group);
    // It is deleted, and its address is reused by another pod in the same change.
    state.set_pod(&Name::new("n", "other"), None);
    state.set_pod(&Name::new("n", "another"), Some(pod("other", 7, true)));
    assert!(state.commit().is_empty());
}

#[test]
fn equal_peers_share_a_set_and_equal_policies_a_group() {
    let mut state = world();
    let spec = |port: u16| {
        json!({ "podSelector": {}, "ingress": [{
            "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }], "ports": [{ "port": port }],
        }] })
    };
    let first = set(&mut state, "a", spec(80));
    let second = set(&mut state, "b", spec(81));
    assert_eq!((second.new_sets.len(), second.new_chains.len(), second.new_groups.len()), (0, 1, 1));
    assert_eq!(second.old_groups, first.new_groups, "the pods have two policies now");
    let same = set(&mut state, "b", spec(81));
    assert!(same.is_empty(), "{same:?}");
    let changed = set(&mut state, "b", spec(82));
    assert_eq!((changed.new_chains.len(), changed.old_chains.len()), (1, 1));
    assert_eq!((changed.new_sets.len(), changed.old_sets.len()), (0, 0));
    assert_eq!(changed.dispatch_removed.len(), changed.dispatch_added.len());
    remove(&mut state, "a");
    let gone = remove(&mut state, "b");
    assert_eq!(gone.old_sets.len(), 1);
}

#[test]
fn namespaces_are_selected_by_labels() {
    let mut state = world();
    let made = set(
        &mut state,
        "from-m",
        json!({ "podSelector": {}, "ingress": [{ "from": [{
            "namespaceSelector": { "matchLabels": { "name": "m" } },
            "podSelector": { "matchLabels": { "app": "far" } },
        }] }] }),
    );
    assert_eq!(made.new_sets[0].entries, [Entry::Address([10, 0, 0, 3].into())]);
    state.set_namespace("m", Some(labels(&[("name", "other")])));
    assert_eq!(state.commit().left.len(), 1);
    state.set_namespace("m", Some(labels(&[("name", "m"), ("more", "labels")])));
    assert_eq!(state.commit().joined.len(), 1);
    state.set_namespace("m", Some(labels(&[("name", "m")])));
    assert!(state.commit().is_empty(), "what matters is the same");
    state.set_namespace("m", None);
    assert_eq!(state.commit().left.len(), 1);
}

#[test]
fn policy_with_named_ports_and_blocks_applies_in_both_directions() {
    let mut state = world();
    let made = set(
        &mut state,
        "both",
        json!({
            "podSelector": { "matchLabels": { "app": "db" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "ports": [{ "port": "http" }, { "port": "unknown" }] }],
            "egress": [{ "to": [
                { "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } },
                { "ipBlock": { "cidr": "fd00::/8" } }, { "ipBlock": { "cidr": "192.0.2.0/24" } },
            ] }],
        }),
    );
    assert_eq!((made.new_groups.len(), made.dispatch_added.len()), (2, 2));
    let ports: Vec<usize> = made
        .new_sets
        .iter()
        .filter(|set| matches!(set.key, SetKey::Ports(_)))
        .map(|set| set.entries.len())
        .collect();
    assert_eq!(ports, [3, 0], "of all pods that have one of this name");
    let blocks = made.new_sets.iter().filter(|set| matches!(set.key, SetKey::Block(_))).count();
    assert_eq!(blocks, 2, "one per family");
    assert_eq!(made.selves_joined.len(), 1);
    // The named port changes its number.
    let mut moved = pod("far", 3, false);
    moved.ports = moved.ports.into_iter().map(|(named, _)| (named, 9090)).collect();
    state.set_pod(&Name::new("m", "far"), Some(moved));
    let changed = state.commit();
    assert_eq!((changed.left.len(), changed.joined.len()), (1, 1));
    assert!(changed.dispatch_added.is_empty());
    // The pod gets an address of the other family, too.
    let mut dual = pod("db", 2, true);
    dual.addresses.insert("fd00::2".parse().expect("an address"));
    state.set_pod(&Name::new("n", "db"), Some(dual));
    assert_eq!(state.commit().dispatch_added.len(), 2);
    // Labels change so that the policy no longer selects the pod.
    state.set_pod(&Name::new("n", "db"), Some(pod("free", 2, true)));
    let freed = state.commit();
    assert_eq!((freed.old_groups.len(), freed.dispatch_removed.len()), (2, 4));
    assert!(state.is_idle());
}

#[test]
fn always_reachable_destinations_need_no_policy() {
    let mut state = world();
    let one = Entry::Port([192, 0, 2, 1].into(), crate::model::Protocol::Udp, 10053);
    state.set_open([one.clone()].into());
    assert_eq!(state.commit().open_joined, std::slice::from_ref(&one));
    state.set_open([one.clone()].into());
    assert!(state.commit().is_empty());
    assert_eq!(state.whole().open_joined, std::slice::from_ref(&one));
    state.set_open(BTreeSet::new());
    assert_eq!(state.commit().open_left, [one]);
}

/// Any sequence of changes: the differences add up to the whole state.
#[test]
fn sum_of_differences_equals_the_state() {
    let mut state = world();
    let mut kernel = Kernel::default();
    let specs = [
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "ingress": [{ "from": [{ "podSelector": {} }] }] }),
        json!({ "podSelector": {}, "egress": [{ "to": [{ "namespaceSelector": {} }], "ports": [{ "port": "http" }] }] }),
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] }] }),
    ];
    let mut random = 7_u32;
    let mut roll = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    for round in 0..600 {
        let which = roll(4);
        match roll(3) {
            0 => {
                let spec = specs[roll(4) as usize].clone();
                if roll(3) == 0 {
                    state.set_policy(&Name::new("n", &format!("p{which}")), None);
                } else {
                    let object = json!({ "metadata": { "namespace": "n", "name": format!("p{which}") }, "spec": spec });
                    let policy = feed::policy(&serde_json::from_value(object).expect("a policy"));
                    state.set_policy(&Name::new("n", &format!("p{which}")), policy);
                }
            }
            1 => {
                let (namespace, app) = (["n", "m"][roll(2) as usize], ["web", "db"][roll(2) as usize]);
                let pod = (roll(3) > 0).then(|| pod(app, 10 + roll(4) as u8, roll(2) == 0));
                state.set_pod(&Name::new(namespace, &format!("x{which}")), pod);
            }
            _ => {
                let labels = (roll(4) > 0).then(|| labels(&[("a", if roll(2) == 0 { "1" } else { "2" })]));
                state.set_namespace(["n", "m"][roll(2) as usize], labels);
            }
        }
        if roll(2) == 0 {
            let difference = state.commit();
            kernel.apply(&difference);
            let mut fresh = Kernel::default();
            fresh.apply(&state.whole());
            assert_eq!(kernel, fresh, "in round {round}");
        }
    }
}

/// Model of the kernel; it rejects what the real one rejects.
#[derive(Debug, Default, PartialEq)]
struct Kernel {
    sets: BTreeMap<Id, BTreeSet<Entry>>,
    chains: BTreeSet<Id>,
    groups: BTreeMap<Id, Vec<Id>>,
    dispatch: BTreeMap<(Direction, IpAddr), Id>,
    selves: BTreeSet<IpAddr>,
}

impl Kernel {
    fn apply(&mut self, difference: &Difference) {
        for set in &difference.new_sets {
            assert!(self.sets.insert(set.id, set.entries.iter().cloned().collect()).is_none());
        }
        for chain in &difference.new_chains {
            for id in used(&chain.steps) {
                assert!(self.sets.contains_key(&id), "a rule uses a set");
            }
            assert!(self.chains.insert(chain.id));
        }
        for group in &difference.new_groups {
            let ids: Vec<Id> = group.policies.iter().map(|(id, _)| *id).collect();
            assert!(ids.iter().all(|id| self.chains.contains(id)));
            assert!(self.groups.insert(group.id, ids).is_none());
        }
        for (id, _, entries) in &difference.left {
            let set = self.sets.get_mut(id).expect("a set");
            assert!(entries.iter().all(|entry| set.remove(entry)));
        }
        for (id, _, entries) in &difference.joined {
            let set = self.sets.get_mut(id).expect("a set");
            assert!(entries.iter().all(|entry| set.insert(entry.clone())));
        }
        assert!(difference.selves_left.iter().all(|address| self.selves.remove(address)));
        assert!(difference.selves_joined.iter().all(|address| self.selves.insert(*address)));
        for one in &difference.dispatch_removed {
            assert_eq!(self.dispatch.remove(&(one.direction, one.address)), Some(one.group));
        }
        for one in &difference.dispatch_added {
            assert!(self.groups.contains_key(&one.group));
            assert!(self.dispatch.insert((one.direction, one.address), one.group).is_none());
        }
        for group in &difference.old_groups {
            assert!(self.groups.remove(&group.id).is_some());
            assert!(self.dispatch.values().all(|used| *used != group.id));
        }
        for chain in &difference.old_chains {
            assert!(self.chains.remove(&chain.id));
            assert!(self.groups.values().flatten().all(|used| *used != chain.id));
        }
        for (id, _) in &difference.old_sets {
            assert!(self.sets.remove(id).is_some());
        }
    }
}

fn used(steps: &[Step]) -> Vec<Id> {
    let peers = steps.iter().flat_map(|step| step.peers.iter().flatten()).map(PeerSet::id);
    let ports = steps.iter().flat_map(|step| step.ports.iter().flatten()).filter_map(|port| match port {
        PortMatch::Named(id) => Some(*id),
        _ => None,
    });
    peers.chain(ports).collect()
}
