//! The planner's chains and sets in the kernel, one table per family.
//!
//! What is forwarded passes two chains: what an address may send, then what an address may receive. Each knows the
//! addresses of this node's pods under policies by a map, so other packets cost a lookup or two. Packets between a node
//! and its own pods are never forwarded. Services were translated before: policies see the pods behind them.

mod rules;
mod sets;

use sys::nftables::keys::address;
use sys::nftables::{Batch, Element, Family, NftError, Tables, Verdict};

use crate::model::Direction;
use crate::state::{Difference, Dispatch};

/// The table, one per family.
pub const TABLE: &str = "ferry-policy";

/// Gives plans to the kernel.
#[derive(Debug)]
pub struct Nftables {
    tables: Tables,
}

impl Nftables {
    /// In the network namespace of the caller.
    pub fn open() -> Result<Self, NftError> {
        Ok(Self { tables: Tables::open(TABLE)? })
    }

    /// Puts `whole` in place of whatever is there.
    pub fn replace(&self, whole: &Difference) -> Result<(), NftError> {
        self.tables.replace(|batch, family| {
            sets::add_fixed(batch, family);
            rules::add_base(batch, family);
            change(batch, family, whole);
        })
    }

    pub fn apply(&self, difference: &Difference) -> Result<(), NftError> {
        self.tables.apply(|batch, family| change(batch, family, difference))
    }

    pub fn remove(&self) -> Result<(), NftError> {
        self.tables.remove()
    }
}

/// In this order nothing ever leads to what is not there.
fn change(batch: &mut Batch, family: Family, difference: &Difference) {
    for set in &difference.new_sets {
        sets::add(batch, family, set);
    }
    for chain in &difference.new_chains {
        rules::add_policy(batch, family, chain);
    }
    for group in &difference.new_groups {
        rules::add_group(batch, group);
    }
    for (id, key, entries) in &difference.left {
        batch.remove_elements(&sets::name(*id, key), &sets::elements(family, entries));
    }
    for (id, key, entries) in &difference.joined {
        batch.add_elements(&sets::name(*id, key), &sets::elements(family, entries));
    }
    batch.remove_elements(sets::SELVES, &sets::selves(family, &difference.selves_left));
    batch.add_elements(sets::SELVES, &sets::selves(family, &difference.selves_joined));
    batch.remove_elements(sets::OPEN, &sets::elements(family, &difference.open_left));
    batch.add_elements(sets::OPEN, &sets::elements(family, &difference.open_joined));
    for direction in crate::model::DIRECTIONS {
        let map = sets::dispatch_map(direction);
        batch.remove_elements(map, &dispatch(family, direction, &difference.dispatch_removed));
        batch.add_elements(map, &dispatch(family, direction, &difference.dispatch_added));
    }
    for group in &difference.old_groups {
        rules::remove_group(batch, group);
    }
    for chain in &difference.old_chains {
        rules::remove_policy(batch, chain);
    }
    for (id, key) in &difference.old_sets {
        if sets::exists(family, key) {
            batch.remove_set(&sets::name(*id, key));
        }
    }
}

fn dispatch(family: Family, direction: Direction, all: &[Dispatch]) -> Vec<Element> {
    let ours = all.iter().filter(|one| one.direction == direction && Family::of(one.address) == family);
    ours.map(|one| {
        let group = rules::group_name(one.direction, one.group);
        Element::Verdict(address(one.address), Verdict::Goto(group))
    })
    .collect()
}
