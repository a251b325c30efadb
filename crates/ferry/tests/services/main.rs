//! Two nodes on one machine, real containers and real packets: services by address and by name, from pods and nodes,
//! across nodes, during pod replacement and node loss.
//!
//! The test re-executes itself in an isolated network namespace. It needs root, kubectl and a static busybox;
//! otherwise it is skipped with a message.

mod battery;
mod cluster;
mod described;
mod endpoints;
mod families;
mod isolation;
mod kinds;
mod names;
mod objects;
mod udp;

use testbase::programs::{self, in_own_namespaces, missing};

/// Set for the re-executed test inside the network namespace.
const INSIDE: &str = "FERRY_TEST_SERVICES_IN_ITS_OWN_NETWORK";

/// Command of the program under test.
fn ferry(arguments: &[&str]) -> std::process::Command {
    programs::command(env!("CARGO_BIN_EXE_ferry"), arguments)
}

/// Runs the ignored test `name` of this binary in a network namespace of its own.
fn apart(name: &str) {
    if let Some(reason) = missing(&["unshare", "ip", "tar", "kubectl"], &["/usr/bin/busybox"]) {
        println!("skipped: {reason}");
        return;
    }
    in_own_namespaces(name, (INSIDE, "1"), &[]).unwrap_or_else(|text| panic!("{text}"));
}

fn inside(test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_none() {
        println!("skipped: only in a network namespace of its own");
        return;
    }
    test();
}

#[test]
fn services_on_two_nodes() {
    apart("service_scenarios_in_network_namespace");
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn service_scenarios_in_network_namespace() {
    inside(|| battery::run(&cluster::Cluster::start()));
}

#[test]
fn cluster_with_ipv6_alone_works() {
    apart("ipv6_scenarios_in_network_namespace");
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn ipv6_scenarios_in_network_namespace() {
    inside(|| families::run(families::IPV6));
}

#[test]
fn cluster_with_ipv6_before_ipv4_works() {
    apart("ipv6_first_scenarios_in_network_namespace");
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn ipv6_first_scenarios_in_network_namespace() {
    inside(|| families::run(families::IPV6_FIRST));
}
