//! Changes to the kernel, in the planner's terms.

use std::net::IpAddr;

use super::counted::Id;
use crate::model::{Direction, Name, NamedPort, PodPeer, Protocol};
use crate::ranges::Ranges;

/// Element type of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SetKey {
    /// Addresses of pods.
    Pods(PodPeer),
    /// Address, protocol and number of a port, of all pods that have a port with this name.
    Ports(NamedPort),
    /// Address blocks; they never change.
    Block(Ranges),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Address(IpAddr),
    Port(IpAddr, Protocol, u16),
}

impl Entry {
    #[must_use]
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Address(address) | Self::Port(address, ..) => *address,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSet {
    pub id: Id,
    pub key: SetKey,
    pub entries: Vec<Entry>,
}

/// A rule of a policy, with the sets of its peers and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub peers: Option<Vec<PeerSet>>,
    pub ports: Option<Vec<PortMatch>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerSet {
    Pods(Id),
    Block { id: Id, v6: bool },
}

impl PeerSet {
    #[must_use]
    pub fn id(&self) -> Id {
        match self {
            Self::Pods(id) | Self::Block { id, .. } => *id,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortMatch {
    Any(Protocol),
    Numbers(Protocol, u16, u16),
    Named(Id),
}

/// Allow rules of one policy in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChain {
    pub id: Id,
    pub direction: Direction,
    pub policy: Name,
    pub steps: Vec<Step>,
}

/// Policies of a pod in one direction: packets that none of them allows are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: Id,
    pub direction: Direction,
    pub policies: Vec<(Id, Name)>,
}

/// Packets of this address are checked by this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    pub direction: Direction,
    pub address: IpAddr,
    pub group: Id,
}

/// Applied in this order: sets, chains and groups are created, then entries removed and added, then unreferenced
/// groups, chains and sets deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub new_sets: Vec<NewSet>,
    pub new_chains: Vec<PolicyChain>,
    pub new_groups: Vec<Group>,
    pub left: Vec<(Id, SetKey, Vec<Entry>)>,
    pub joined: Vec<(Id, SetKey, Vec<Entry>)>,
    pub dispatch_removed: Vec<Dispatch>,
    pub dispatch_added: Vec<Dispatch>,
    /// Addresses of pods that policies select.
    pub selves_left: Vec<IpAddr>,
    pub selves_joined: Vec<IpAddr>,
    /// Destinations that pods may always reach.
    pub open_left: Vec<Entry>,
    pub open_joined: Vec<Entry>,
    pub old_groups: Vec<Group>,
    pub old_chains: Vec<PolicyChain>,
    pub old_sets: Vec<(Id, SetKey)>,
}

impl Difference {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
