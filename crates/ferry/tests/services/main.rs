//! Two nodes on one machine, real containers and real packets: services by address and by name, from pods and nodes,
//! across nodes, while pods are replaced and while a node is lost.
//!
//! Everything runs in a network namespace without a way out, which the test makes by starting itself again in one. It
//! needs root, kubectl and a static busybox; without one of them it says so.

mod battery;
mod cluster;
mod described;
mod endpoints;
#[path = "../support/ferry.rs"]
mod ferry;
#[path = "../support/images.rs"]
mod images;
mod isolation;
mod kinds;
#[path = "../support/kubectl.rs"]
mod kubectl;
mod names;
mod objects;
#[path = "../support/programs.rs"]
mod programs;
mod udp;
#[path = "../support/wait.rs"]
mod wait;

use programs::{in_own_namespaces, missing};

/// Set for the copy of the test that runs in a network of its own.
const INSIDE: &str = "FERRY_TEST_SERVICES_IN_ITS_OWN_NETWORK";

#[test]
fn services_on_two_nodes() {
    if let Some(reason) = missing(&["unshare", "ip", "tar", "kubectl"], &["/usr/bin/busybox"]) {
        println!("skipped: {reason}");
        return;
    }
    in_own_namespaces("inside_a_network_of_its_own", (INSIDE, "1"), &[])
        .unwrap_or_else(|text| panic!("{text}"));
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn inside_a_network_of_its_own() {
    if std::env::var_os(INSIDE).is_none() {
        println!("skipped: only in a network namespace of its own");
        return;
    }
    let cluster = cluster::Cluster::start();
    battery::run(&cluster);
}
