//! The planner: chains and sets for the pods of this node, and their changes.
//!
//! Pods with the same policies share a group, groups share the chains of their policies, and equal peers or ports
//! share a set. Adding or removing a pod changes entries of sets; chains change with policies only.

mod counted;
mod difference;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

pub use counted::Id;
use counted::{Counted, Members};
pub use difference::{
    Difference, Dispatch, Entry, Group, NewSet, PeerSet, PolicyChain, PortMatch, SetKey, Step,
};

use crate::model::{DIRECTIONS, Direction, Labels, Name, Peer, Pod, Policy, Port, Rule, Scope};

/// Rules of a policy in one direction, at one version of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ChainKey {
    direction: Direction,
    policy: Name,
    version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    direction: Direction,
    policies: Vec<(Id, Name)>,
}

#[derive(Clone, Debug)]
struct Known {
    policy: Policy,
    /// Sequence number of the last change of the rules, by direction.
    versions: [u64; 2],
}

/// Kernel state of a pod of this node.
#[derive(Clone, Debug)]
struct Enforced {
    addresses: BTreeSet<IpAddr>,
    groups: [Option<Id>; 2],
}

/// Observed objects, and the desired rules.
#[derive(Clone, Debug, Default)]
pub struct State {
    pods: HashMap<String, BTreeMap<String, Pod>>,
    namespaces: HashMap<String, Labels>,
    policies: HashMap<String, BTreeMap<String, Known>>,
    versions: u64,
    /// Pods of this node whose policies or addresses may have changed.
    unsettled: BTreeSet<Name>,
    enforced: HashMap<Name, Enforced>,
    sets: Counted<SetKey, Members<Entry>>,
    changed_sets: BTreeSet<Id>,
    chains: Counted<ChainKey, Vec<Step>>,
    groups: Counted<GroupKey, ()>,
    /// Claims of an address by pods; the first in order of names wins.
    dispatch: HashMap<(Direction, IpAddr), BTreeMap<Name, Id>>,
    /// Groups of addresses before the change.
    redispatched: BTreeMap<(Direction, IpAddr), Option<Id>>,
    selves: Members<IpAddr>,
    open: Members<Entry>,
}

impl State {
    /// Updates a pod; `None` if it was deleted, or has no address of its own.
    pub fn set_pod(&mut self, name: &Name, pod: Option<Pod>) {
        let known = self.pods.entry(name.namespace.clone()).or_default();
        let old = match &pod {
            Some(pod) => known.insert(name.name.clone(), pod.clone()),
            None => known.remove(&name.name),
        };
        if known.is_empty() {
            self.pods.remove(&name.namespace);
        }
        if old == pod {
            return;
        }
        let labels = self.namespaces.get(&name.namespace);
        for (id, key, members) in self.sets.all_mut() {
            let (was, is) = (
                entries(key, &name.namespace, labels, old.as_ref()),
                entries(key, &name.namespace, labels, pod.as_ref()),
            );
            if was != is {
                was.iter().for_each(|entry| members.remove(entry));
                is.into_iter().for_each(|entry| members.add(entry));
                self.changed_sets.insert(id);
            }
        }
        if [old, pod].iter().flatten().any(|pod| pod.local) {
            self.unsettled.insert(name.clone());
        }
    }

    /// Updates the labels of a namespace; `None` if it was deleted.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let old = match &labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels.clone()),
            None => self.namespaces.remove(name),
        };
        let Some(pods) = self.pods.get(name).filter(|_| old != labels) else { return };
        for (id, key, members) in self.sets.all_mut() {
            let SetKey::Pods(peer) = key else { continue };
            let Scope::Namespaces(selector) = &peer.scope else { continue };
            let holds = |labels: &Option<Labels>| labels.as_ref().is_some_and(|all| selector.matches(all));
            let (was, is) = (holds(&old), holds(&labels));
            if was == is {
                continue;
            }
            self.changed_sets.insert(id);
            let selected = pods.values().filter(|pod| peer.selector.matches(&pod.labels));
            for address in selected.flat_map(|pod| &pod.addresses) {
                let entry = Entry::Address(*address);
                if is { members.add(entry) } else { members.remove(&entry) }
            }
        }
    }

    /// Updates a policy; `None` if it was deleted.
    pub fn set_policy(&mut self, name: &Name, policy: Option<Policy>) {
        let known = self.policies.entry(name.namespace.clone()).or_default();
        let old = known.remove(&name.name);
        let selectors: Vec<_> = old
            .iter()
            .map(|known| &known.policy)
            .chain(&policy)
            .map(|policy| policy.selector.clone())
            .collect();
        let same = old.as_ref().map(|known| &known.policy) == policy.as_ref();
        if let Some(policy) = policy {
            self.versions += 1;
            let version = |direction: Direction| match &old {
                Some(old) if old.policy.rules(direction) == policy.rules(direction) => {
                    old.versions[direction as usize]
                }
                _ => self.versions,
            };
            let versions = DIRECTIONS.map(version);
            known.insert(name.name.clone(), Known { policy, versions });
        }
        if known.is_empty() {
            self.policies.remove(&name.namespace);
        }
        if same {
            return;
        }
        for (pod_name, pod) in self.pods.get(&name.namespace).into_iter().flatten() {
            if pod.local && selectors.iter().any(|selector| selector.matches(&pod.labels)) {
                self.unsettled.insert(Name::new(&name.namespace, pod_name));
            }
        }
    }

    /// Ports that pods may always reach: those that nodes serve themselves.
    pub fn set_open(&mut self, open: BTreeSet<Entry>) {
        let old: Vec<Entry> = self.open.all().cloned().collect();
        for entry in old.iter().filter(|entry| !open.contains(entry)) {
            self.open.remove(entry);
        }
        for entry in open {
            if old.binary_search(&entry).is_err() {
                self.open.add(entry);
            }
        }
    }

    /// True if no pod of this node is under any policy.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.groups.is_empty()
    }

    /// Changes since the last call.
    pub fn commit(&mut self) -> Difference {
        for name in std::mem::take(&mut self.unsettled) {
            self.settle(&name);
        }
        let mut out = Difference::default();
        for id in std::mem::take(&mut self.changed_sets) {
            let new = self.sets.is_new(id);
            let key = self.sets.key(id).cloned();
            let (Some(members), Some(key)) = (self.sets.get_mut(id), key) else { continue };
            let (left, joined) = members.changes();
            if new {
                continue;
            }
            if !left.is_empty() {
                out.left.push((id, key.clone(), left));
            }
            if !joined.is_empty() {
                out.joined.push((id, key, joined));
            }
        }
        let (came, went) = self.sets.changes();
        out.new_sets = came.into_iter().map(|(id, key, members)| new_set(id, &key, &members)).collect();
        out.old_sets = went.into_iter().map(|(id, key, _)| (id, key)).collect();
        let (came, went) = self.chains.changes();
        out.new_chains = came.into_iter().map(|(id, key, steps)| chain(id, key, steps)).collect();
        out.old_chains = went.into_iter().map(|(id, key, steps)| chain(id, key, steps)).collect();
        let (came, went) = self.groups.changes();
        out.new_groups = came.into_iter().map(|(id, key, ())| group(id, key)).collect();
        out.old_groups = went.into_iter().map(|(id, key, ())| group(id, key)).collect();
        for ((direction, address), old) in std::mem::take(&mut self.redispatched) {
            let new = self.in_force(direction, address);
            if old != new {
                let dispatch = |group| Dispatch { direction, address, group };
                out.dispatch_removed.extend(old.map(dispatch));
                out.dispatch_added.extend(new.map(dispatch));
            }
        }
        (out.selves_left, out.selves_joined) = self.selves.changes();
        (out.open_left, out.open_joined) = self.open.changes();
        out
    }

    /// The whole state as a difference from empty. Call it after [`State::commit`].
    #[must_use]
    pub fn whole(&self) -> Difference {
        let dispatch = self.dispatch.iter().filter_map(|((direction, address), wanted)| {
            let group = *wanted.values().next()?;
            Some(Dispatch { direction: *direction, address: *address, group })
        });
        Difference {
            new_sets: self.sets.all().map(|(id, key, members)| new_set(id, key, members)).collect(),
            new_chains: self
                .chains
                .all()
                .map(|(id, key, steps)| chain(id, key.clone(), steps.clone()))
                .collect(),
            new_groups: self.groups.all().map(|(id, key, ())| group(id, key.clone())).collect(),
            dispatch_added: dispatch.collect(),
            selves_joined: self.selves.all().copied().collect(),
            open_joined: self.open.all().cloned().collect(),
            ..Difference::default()
        }
    }

    /// Assigns a pod of this node to its groups.
    fn settle(&mut self, name: &Name) {
        let pod = self.pods.get(&name.namespace).and_then(|pods| pods.get(&name.name));
        let pod = pod.filter(|pod| pod.local);
        let addresses = pod.map(|pod| pod.addresses.clone()).unwrap_or_default();
        let wanted = DIRECTIONS.map(|direction| self.policies_of(name, pod, direction));
        let [ingress, egress] = wanted;
        // New references first, so that retained items are never unreferenced.
        let groups = [self.use_group(ingress), self.use_group(egress)];
        if let Some(old) = self.enforced.remove(name) {
            self.redirect(name, &old, false);
            for group in old.groups.into_iter().flatten() {
                self.release_group(group);
            }
        }
        if groups.iter().any(Option::is_some) {
            let enforced = Enforced { addresses, groups };
            self.redirect(name, &enforced, true);
            self.enforced.insert(name.clone(), enforced);
        }
    }

    /// The policies that select a pod, with their rules.
    fn policies_of(
        &self,
        name: &Name,
        pod: Option<&Pod>,
        direction: Direction,
    ) -> Vec<(ChainKey, Vec<Rule>)> {
        let (Some(pod), Some(policies)) = (pod, self.policies.get(&name.namespace)) else {
            return Vec::new();
        };
        let selected = policies.iter().filter(|(_, known)| known.policy.selector.matches(&pod.labels));
        let chain = |(policy, known): (&String, &Known)| {
            let rules = known.policy.rules(direction)?.clone();
            let policy = Name::new(&name.namespace, policy);
            Some((ChainKey { direction, policy, version: known.versions[direction as usize] }, rules))
        };
        selected.filter_map(chain).collect()
    }

    fn redirect(&mut self, name: &Name, enforced: &Enforced, there: bool) {
        for address in &enforced.addresses {
            if there {
                self.selves.add(*address);
            } else {
                self.selves.remove(address);
            }
            for (direction, group) in DIRECTIONS.into_iter().zip(enforced.groups) {
                let (Some(group), claim_key) = (group, (direction, *address)) else { continue };
                let now = self.in_force(direction, *address);
                self.redispatched.entry(claim_key).or_insert(now);
                let wanted = self.dispatch.entry(claim_key).or_default();
                if there {
                    wanted.insert(name.clone(), group);
                } else {
                    wanted.remove(name);
                }
                if wanted.is_empty() {
                    self.dispatch.remove(&claim_key);
                }
            }
        }
    }

    fn in_force(&self, direction: Direction, address: IpAddr) -> Option<Id> {
        self.dispatch.get(&(direction, address)).and_then(|wanted| wanted.values().next()).copied()
    }

    fn use_group(&mut self, policies: Vec<(ChainKey, Vec<Rule>)>) -> Option<Id> {
        let direction = policies.first()?.0.direction;
        let chains: Vec<(Id, Name)> = policies
            .into_iter()
            .map(|(key, rules)| {
                let policy = key.policy.clone();
                (self.use_chain(key, &rules), policy)
            })
            .collect();
        let key = GroupKey { direction, policies: chains };
        if let Some(id) = self.groups.reuse(&key) {
            // The group already refers to its chains.
            for (chain, _) in key.policies {
                self.release_chain(chain);
            }
            return Some(id);
        }
        Some(self.groups.insert(key, ()))
    }

    fn release_group(&mut self, id: Id) {
        if let Some((key, ())) = self.groups.release(id) {
            for (chain, _) in key.policies {
                self.release_chain(chain);
            }
        }
    }

    fn use_chain(&mut self, key: ChainKey, rules: &[Rule]) -> Id {
        if let Some(id) = self.chains.reuse(&key) {
            return id;
        }
        let steps = rules.iter().map(|rule| self.step(rule)).collect();
        self.chains.insert(key, steps)
    }

    fn release_chain(&mut self, id: Id) {
        let Some((_, steps)) = self.chains.release(id) else { return };
        for step in steps {
            let peers = step.peers.into_iter().flatten().map(|peer| peer.id());
            let ports = step.ports.into_iter().flatten().filter_map(|port| match port {
                PortMatch::Named(id) => Some(id),
                PortMatch::Any(_) | PortMatch::Numbers(..) => None,
            });
            for set in peers.chain(ports).collect::<Vec<Id>>() {
                self.sets.release(set);
            }
        }
    }

    fn step(&mut self, rule: &Rule) -> Step {
        let mut peer = |peer: &Peer| match peer {
            Peer::Pods(peer) => PeerSet::Pods(self.use_set(SetKey::Pods(peer.clone()))),
            Peer::Block(ranges) => {
                PeerSet::Block { id: self.use_set(SetKey::Block(ranges.clone())), v6: ranges.v6 }
            }
        };
        let peers = rule.peers.as_ref().map(|peers| peers.iter().map(&mut peer).collect());
        let mut port = |port: &Port| match port {
            Port::Any(protocol) => PortMatch::Any(*protocol),
            Port::Numbers(protocol, first, last) => PortMatch::Numbers(*protocol, *first, *last),
            Port::Named(named) => PortMatch::Named(self.use_set(SetKey::Ports(named.clone()))),
        };
        let ports = rule.ports.as_ref().map(|ports| ports.iter().map(&mut port).collect());
        Step { peers, ports }
    }

    fn use_set(&mut self, key: SetKey) -> Id {
        if let Some(id) = self.sets.reuse(&key) {
            return id;
        }
        let mut members = Members::default();
        let within = match &key {
            SetKey::Pods(peer) => match &peer.scope {
                Scope::Namespace(namespace) => Some(namespace.as_str()),
                Scope::Namespaces(_) => None,
            },
            SetKey::Ports(_) => None,
            SetKey::Block(_) => Some(""),
        };
        let mut fill = |namespace: &str, pods: &BTreeMap<String, Pod>| {
            let labels = self.namespaces.get(namespace);
            for entry in pods.values().flat_map(|pod| entries(&key, namespace, labels, Some(pod))) {
                members.add(entry);
            }
        };
        match within {
            Some(namespace) => {
                if let Some(pods) = self.pods.get(namespace) {
                    fill(namespace, pods);
                }
            }
            None => self.pods.iter().for_each(|(namespace, pods)| fill(namespace, pods)),
        }
        members.changes();
        self.sets.insert(key, members)
    }
}

fn new_set(id: Id, key: &SetKey, members: &Members<Entry>) -> NewSet {
    NewSet { id, key: key.clone(), entries: members.all().cloned().collect() }
}

fn chain(id: Id, key: ChainKey, steps: Vec<Step>) -> PolicyChain {
    PolicyChain { id, direction: key.direction, policy: key.policy, steps }
}

fn group(id: Id, key: GroupKey) -> Group {
    Group { id, direction: key.direction, policies: key.policies }
}

/// The entries of a pod in a set.
fn entries(key: &SetKey, namespace: &str, labels: Option<&Labels>, pod: Option<&Pod>) -> Vec<Entry> {
    let Some(pod) = pod else { return Vec::new() };
    match key {
        SetKey::Pods(peer) => {
            let there = match &peer.scope {
                Scope::Namespace(own) => own == namespace,
                Scope::Namespaces(selector) => labels.is_some_and(|labels| selector.matches(labels)),
            };
            if !there || !peer.selector.matches(&pod.labels) {
                return Vec::new();
            }
            pod.addresses.iter().copied().map(Entry::Address).collect()
        }
        SetKey::Ports(named) => {
            let numbers = pod.ports.iter().filter(|(port, _)| port == named).map(|(_, number)| *number);
            numbers
                .flat_map(|number| {
                    pod.addresses.iter().map(move |address| Entry::Port(*address, named.protocol, number))
                })
                .collect()
        }
        SetKey::Block(_) => Vec::new(),
    }
}
