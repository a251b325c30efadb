//! nftables rules beside the load balancer: source ranges and masquerading. They use sets, so that the cost per
//! packet does not depend on the number of services.

use sys::nftables::keys::Part;
use sys::nftables::steps::protocol_and_port;
use sys::nftables::{Batch, Chain, Element, Expr, Family, NftError, Set, Tables, Value};

use crate::model::Node;
use crate::nftables::entries::{FRONT, GUARDED, HAIRPINS, NODE_PORT, guarded, hairpin, lookup_key};
use crate::nftables::rules::{self, R0};
use crate::nftables::{PROBE, TABLE, of};
use crate::plan::{Entry, Frontend, Pick, Source};
use crate::state::Difference;

/// Frontends whose clients are masqueraded unless they are pods, and those whose clients always are.
const INSIDE: &str = "inside";
const OUTSIDE: &str = "outside";
const OUTSIDE_PORTS: &str = "outside-node-ports";

/// Applies the rules to the kernel.
#[derive(Debug)]
pub struct Marks {
    tables: Tables,
    node: Node,
}

impl Marks {
    /// Rules in the network namespace of the caller.
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
            self.add_base(batch, family);
            change(batch, family, whole);
        })
    }

    pub fn apply(&self, difference: &Difference) -> Result<(), NftError> {
        self.tables.apply(|batch, family| change(batch, family, difference))
    }

    pub fn is_intact(&self) -> Result<bool, NftError> {
        self.tables.are_intact()
    }

    pub fn remove(&self) -> Result<(), NftError> {
        self.tables.remove()
    }

    fn add_base(&self, batch: &mut Batch, family: Family) {
        for (name, parts, value) in [
            (INSIDE, &FRONT[..], Value::Nothing),
            (OUTSIDE, &FRONT, Value::Nothing),
            (OUTSIDE_PORTS, &NODE_PORT, Value::Nothing),
            (HAIRPINS, &[Part::Address, Part::Address], Value::Nothing),
            (GUARDED, &FRONT, Value::Verdict),
        ] {
            batch.add_set(&Set::plain(name, family, parts, value));
        }
        rules::add_guards(batch, family);
        let is_in = |set: &str| [Expr::In { set: set.to_owned(), key: R0, inverted: false }];
        let (front, mark) = (rules::front(family, R0), rules::mark());
        for (name, hook) in rules::early("mark-prerouting", "mark-output") {
            batch.add_chain(&Chain { name, hook });
            batch.add_rule(name, &[&front[..], &is_in(OUTSIDE), &mark].concat());
            let port = [rules::to_this_machine(family), protocol_and_port(R0)].concat();
            batch.add_rule(name, &[&port[..], &is_in(OUTSIDE_PORTS), &mark].concat());
            if let Some(outside_pods) = rules::outside_pods(family, &self.node) {
                batch.add_rule(name, &[&front[..], &is_in(INSIDE), &outside_pods, &mark].concat());
            }
        }
        // A hairpin connection of the load balancer has equal source and destination.
        rules::add_postrouting(batch, family, &[]);
    }
}

fn change(batch: &mut Batch, family: Family, difference: &Difference) {
    rules::new_guards(batch, family, difference);
    for entry in difference.removed.iter().filter(|entry| of(family, entry)) {
        if let Some((set, element)) = element(entry) {
            batch.remove_elements(set, &[element]);
        }
    }
    for entry in difference.added.iter().filter(|entry| of(family, entry)) {
        if let Some((set, element)) = element(entry) {
            batch.add_elements(set, &[element]);
        }
    }
    rules::old_guards(batch, family, difference);
}

fn element(entry: &Entry) -> Option<(&'static str, Element)> {
    match entry {
        Entry::Service { front, pick } => Some((set_of(front, pick)?, Element::Key(lookup_key(front)))),
        Entry::Hairpin { address } => Some((HAIRPINS, hairpin(*address))),
        Entry::Guarded { front, ranges } => Some((GUARDED, guarded(front, ranges))),
        Entry::Endpoint { .. } | Entry::Known { .. } | Entry::Virtual { .. } | Entry::Closed { .. } => None,
    }
}

/// Source addresses are preserved where the policy restricts clients to this node.
fn set_of(front: &Frontend, pick: &Pick) -> Option<&'static str> {
    match pick.source {
        Source::Inside => Some(INSIDE),
        Source::Outside if front.is_node_port() => Some(OUTSIDE_PORTS),
        Source::Outside => Some(OUTSIDE),
        Source::OutsideLocal { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;

    /// The kernel accepts the rules, their changes and their removal, in a separate network namespace.
    #[test]
    fn kernel_accepts_ipvs_rules() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let worker = std::thread::spawn(|| {
            sys::process::unshare(&[sys::process::Namespace::Network]).expect("a namespace");
            let ranges = vec!["192.0.2.0/24".parse().expect("a range")];
            let pod_cidrs = vec!["10.1.0.0/16".parse().expect("a range")];
            let marks = Marks::open(Node { pod_cidrs, ..Node::default() }).expect("a socket");
            let front =
                |address: [u8; 4]| Frontend { address: address.into(), protocol: Protocol::Tcp, port: 80 };
            let service = |address, source| Entry::Service {
                front: front(address),
                pick: Pick { source, node_port: address == [0; 4], count: 1, affinity_seconds: None },
            };
            let added = vec![
                service([10, 96, 0, 9], Source::Inside),
                service([192, 0, 2, 9], Source::Outside),
                service([0; 4], Source::Outside),
                Entry::Hairpin { address: [10, 1, 0, 2].into() },
                Entry::Guarded { front: front([192, 0, 2, 9]), ranges },
            ];
            let whole = Difference { added: added.clone(), ..Difference::default() };
            marks.replace(&whole).expect("all of them");
            marks.apply(&Difference { removed: added, ..Difference::default() }).expect("none of them");
            marks.remove().expect("removed");
        });
        worker.join().expect("the test");
    }
}
