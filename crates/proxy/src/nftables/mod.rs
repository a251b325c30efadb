//! The nftables backend: the plan's maps as kernel maps, one chain per way of picking an endpoint.
//!
//! The cost of a packet is a lookup or two however many services there are; the cost of a change is the entries
//! that differ.

pub(crate) mod entries;
pub(crate) mod rules;

pub use sys::nftables::NftError;
use sys::nftables::{Batch, Element, Family, Tables};

use crate::model::Node;
use crate::plan::Entry;
use crate::state::Difference;

/// The table, one per family.
pub const TABLE: &str = "ferry-proxy";

/// Gives plans to the kernel.
#[derive(Debug)]
pub struct Nftables {
    tables: Tables,
    node: Node,
}

impl Nftables {
    /// A backend in the network namespace of the caller.
    pub fn open(node: Node) -> Result<Self, NftError> {
        Ok(Self { tables: Tables::open(TABLE)?, node })
    }

    /// Puts `whole` in place of whatever is there.
    pub fn replace(&self, whole: &Difference) -> Result<(), NftError> {
        self.tables.replace(|batch, family| {
            entries::add_sets(batch, family);
            rules::add_base(batch, family);
            self.change(batch, family, whole);
        })
    }

    pub fn apply(&self, difference: &Difference) -> Result<(), NftError> {
        self.tables.apply(|batch, family| self.change(batch, family, difference))
    }

    pub fn remove(&self) -> Result<(), NftError> {
        self.tables.remove()
    }

    /// New chains, entries out, entries in, old chains: in this order nothing ever leads to a chain that is not there.
    fn change(&self, batch: &mut Batch, family: Family, difference: &Difference) {
        // Chains serve both families alike; a family without entries does not mind an idle one.
        for pick in &difference.new_picks {
            rules::add_pick(batch, family, pick, &self.node);
        }
        let ours = |entry: &&Entry| of(family, entry);
        rules::new_guards(batch, family, difference);
        let removed = entries::by_set(difference.removed.iter().filter(ours));
        for (set, elements) in &removed {
            batch.remove_elements(set, elements);
        }
        let added = entries::by_set(difference.added.iter().filter(ours));
        for (set, elements) in &added {
            batch.add_elements(set, elements.iter());
        }
        rules::old_guards(batch, family, difference);
        for pick in &difference.old_picks {
            rules::remove_chain(batch, &rules::pick_name(pick));
        }
    }
}

/// Whether an entry is of the family.
pub(crate) fn of(family: Family, entry: &Entry) -> bool {
    entry.is_ipv4() == (family == Family::Ipv4)
}

/// The elements of one set, keys first.
type Elements = Vec<Element>;
