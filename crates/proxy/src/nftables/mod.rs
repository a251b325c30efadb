//! The nftables backend: the plan's maps as kernel maps, one chain per way of picking an endpoint.
//!
//! The cost of a packet is a lookup or two however many services there are; the cost of a change is the entries
//! that differ.

mod entries;
mod rules;

pub use sys::nftables::NftError;
use sys::nftables::{Batch, Element, Family, Socket};

use crate::model::Node;
use crate::plan::Entry;
use crate::state::Difference;

/// The table, one per family.
pub const TABLE: &str = "ferry-proxy";
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Gives plans to the kernel.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
    node: Node,
}

impl Nftables {
    /// A backend in the network namespace of the caller.
    pub fn open(node: Node) -> Result<Self, NftError> {
        Ok(Self { socket: Socket::open()?, node })
    }

    /// Puts `whole` in place of whatever is there, in one step per family.
    pub fn replace(&self, whole: &Difference) -> Result<(), NftError> {
        for family in FAMILIES {
            let mut batch = Batch::new(family, TABLE);
            batch.remove_table();
            batch.add_table();
            entries::add_sets(&mut batch, family);
            rules::add_base(&mut batch, family);
            self.change(&mut batch, family, whole);
            self.socket.apply(batch)?;
        }
        Ok(())
    }

    /// Makes a difference, in one step per family.
    pub fn apply(&self, difference: &Difference) -> Result<(), NftError> {
        for family in FAMILIES {
            let mut batch = Batch::new(family, TABLE);
            self.change(&mut batch, family, difference);
            self.socket.apply(batch)?;
        }
        Ok(())
    }

    /// Removes everything.
    pub fn remove(&self) -> Result<(), NftError> {
        for family in FAMILIES {
            let mut batch = Batch::new(family, TABLE);
            batch.remove_table();
            self.socket.apply(batch)?;
        }
        Ok(())
    }

    /// New chains, entries out, entries in, old chains: in this order nothing ever leads to a chain that is not there.
    fn change(&self, batch: &mut Batch, family: Family, difference: &Difference) {
        // Chains serve both families alike; a family without entries does not mind an idle one.
        for pick in &difference.new_picks {
            rules::add_pick(batch, family, pick, &self.node);
        }
        let ours = |entry: &&Entry| entry.is_ipv4() == (family == Family::Ipv4);
        for entry in difference.added.iter().filter(ours) {
            if let Entry::Guarded { front, ranges } = entry {
                rules::add_guard(batch, family, &rules::guard_name(front, ranges), ranges);
            }
        }
        let removed = entries::by_set(difference.removed.iter().filter(ours));
        for (set, elements) in &removed {
            batch.remove_elements(set, elements);
        }
        let added = entries::by_set(difference.added.iter().filter(ours));
        for (set, elements) in &added {
            batch.add_elements(set, elements.iter());
        }
        for entry in difference.removed.iter().filter(ours) {
            if let Entry::Guarded { front, ranges } = entry {
                rules::remove_chain(batch, &rules::guard_name(front, ranges));
            }
        }
        for pick in &difference.old_picks {
            rules::remove_chain(batch, &rules::pick_name(pick));
        }
    }
}

/// The elements of one set, keys first.
type Elements = Vec<Element>;
