//! The nftables backend: the plan's maps as kernel maps, one chain per endpoint selection.
//!
//! A packet costs one or two lookups regardless of the number of services; the cost of a change is the entries that
//! differ.

pub(crate) mod entries;
pub(crate) mod rules;

pub use sys::nftables::NftError;
use sys::nftables::{Batch, Element, Family, Tables};

use crate::model::Node;
use crate::plan::Entry;
use crate::state::Difference;

/// The table of the main instance, one per family.
pub const TABLE: &str = "ferry-proxy";
/// Table that exists only while the kernel's support is probed.
pub const PROBE: &str = "ferry-probe";

/// Applies plans to the kernel.
#[derive(Debug)]
pub struct Nftables {
    tables: Tables,
    node: Node,
}

impl Nftables {
    /// A backend in the network namespace of the caller.
    pub fn open(node: Node) -> Result<Self, NftError> {
        Ok(Self { tables: Tables::open(node.instance.table(TABLE))?, node })
    }

    /// Creates a table without services under another name, and removes it.
    pub fn probe(&self) -> Result<(), NftError> {
        let tables = Tables::open(self.node.instance.table(PROBE))?;
        let probe = Self { tables, node: self.node.clone() };
        let outcome = probe.replace(&Difference::default());
        outcome.and(probe.remove())
    }

    /// Replaces all rules by those of `whole`.
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

    /// Returns false if another process changed the rules.
    pub fn is_intact(&self) -> Result<bool, NftError> {
        self.tables.are_intact()
    }

    pub fn remove(&self) -> Result<(), NftError> {
        self.tables.remove()
    }

    /// New chains, removed entries, added entries, old chains: in this order no entry ever refers to a missing chain.
    fn change(&self, batch: &mut Batch, family: Family, difference: &Difference) {
        // Chains are shared by both families; an unused one in a family without entries does no harm.
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

/// True if an entry belongs to the family.
pub(crate) fn of(family: Family, entry: &Entry) -> bool {
    entry.is_ipv4() == (family == Family::Ipv4)
}

/// The elements of one set, keys first.
type Elements = Vec<Element>;
