//! The planner's chains and sets in the kernel, one table per family.
//!
//! Forwarded packets pass two chains: egress of the source address, then ingress of the destination address. Each
//! looks up the addresses of this node's pods under policies in a map, so other packets cost a lookup or two. Packets
//! between a node and its own pods are never forwarded. Services have been translated before: policies see the pods
//! behind them.

mod rules;
mod sets;

use sys::instance::Instance;
use sys::netlink::octets;
use sys::nftables::{Batch, Element, Family, NftError, Tables, Verdict};

use crate::model::Direction;
use crate::state::{Difference, Dispatch};

/// The table of the main instance, one per family.
pub const TABLE: &str = "ferry-policy";

/// Applies plans to the kernel.
#[derive(Debug)]
pub struct Nftables {
    tables: Tables,
}

impl Nftables {
    /// Rules in the network namespace of the caller.
    pub fn open(instance: Instance) -> Result<Self, NftError> {
        Ok(Self { tables: Tables::open(instance.table(TABLE))? })
    }

    /// Replaces all rules by those of `whole`.
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

    /// Returns false if another process changed the rules.
    pub fn is_intact(&self) -> Result<bool, NftError> {
        self.tables.are_intact()
    }

    pub fn remove(&self) -> Result<(), NftError> {
        self.tables.remove()
    }
}

/// The order ensures that no entry or rule refers to a missing chain or set.
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
        Element::Verdict(octets(one.address), Verdict::Goto(group))
    })
    .collect()
}
