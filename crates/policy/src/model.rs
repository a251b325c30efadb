//! The planner's model of policies and pods, independent of the API types.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::ranges::Ranges;
use crate::selector::Selector;

pub type Labels = BTreeMap<String, String>;

pub use sys::protocol::Protocol;

/// `namespace/name`, of a pod or a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

impl Name {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// A pod with a network of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub labels: Labels,
    pub addresses: BTreeSet<IpAddr>,
    /// Named ports.
    pub ports: BTreeSet<(NamedPort, u16)>,
    /// On the planner's own node.
    pub local: bool,
}

/// A port by its name in the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

pub const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// A policy. A direction without rules is unaffected; one with an empty list denies everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub selector: Selector,
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
}

impl Policy {
    #[must_use]
    pub fn rules(&self, direction: Direction) -> Option<&Vec<Rule>> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }
}

/// Allows these peers to reach these ports; `None` is all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    pub peers: Option<Vec<Peer>>,
    pub ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    Pods(PodPeer),
    Block(Ranges),
}

/// Pods by their labels and namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodPeer {
    pub scope: Scope,
    pub selector: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Namespace(String),
    Namespaces(Selector),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    Any(Protocol),
    /// Port range, both ends included.
    Numbers(Protocol, u16, u16),
    Named(NamedPort),
}
