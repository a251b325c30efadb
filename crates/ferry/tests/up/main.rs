//! `ferry up` as users run it, with real containers and stock kubectl: workloads, stop and resume, and a complete
//! `ferry reset`.
//!
//! Each test re-executes itself in isolated network, mount and PID namespaces; remaining processes end with them. It
//! needs root, kubectl and a static busybox; otherwise it is skipped with a message.

mod csi;
mod devices;
mod escapes;
mod isolation;
mod kills;
mod lifecycle;
mod machine;
mod metrics;
mod mixin;
mod network_changes;
mod packages;
mod pod_behaviour;
mod pods;
mod restarts;
mod secrets;
mod workloads;

use testbase::programs;

/// Set for the re-executed test inside the namespaces: the cgroup it may use.
const INSIDE: &str = "FERRY_TEST_CGROUP";

/// Command of the program under test.
fn ferry(arguments: &[&str]) -> std::process::Command {
    programs::command(env!("CARGO_BIN_EXE_ferry"), arguments)
}

/// Runs the ignored test `name` of this binary in its own namespaces.
fn apart(name: &str) {
    if let Some(reason) = programs::missing(&["unshare", "ip", "tar", "kubectl"], &["/usr/bin/busybox"]) {
        println!("skipped: {reason}");
        return;
    }
    let cgroup = format!("/ferry-test-{}-{}", std::process::id(), name.replace(':', ""));
    let more = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let outcome = programs::in_own_namespaces(name, (INSIDE, &cgroup), &more);
    let left = machine::remove_cgroups(&cgroup);
    outcome.unwrap_or_else(|text| panic!("{text}"));
    assert!(left == 0, "{left} control groups were left behind");
}

/// Cgroup that the re-executed test may use.
fn inside() -> Option<String> {
    let found = std::env::var(INSIDE).ok();
    if found.is_none() {
        println!("skipped: only in namespaces of its own");
    }
    found
}

/// Defines a test and the ignored sibling that it runs in namespaces of its own. The body gets the cgroup.
macro_rules! apart {
    ($($name:ident, $inside:ident: $body:expr;)+) => {
        $(
            #[test]
            fn $name() {
                apart(stringify!($inside));
            }

            #[test]
            #[ignore = "started by its sibling in namespaces of its own"]
            fn $inside() {
                if let Some(cgroup) = inside() {
                    $body(&cgroup);
                }
            }
        )+
    };
}

/// Runs a test on a started cluster, and resets the machine.
fn on_machine(cgroup: &str, test: impl FnOnce(&machine::Machine)) {
    let machine = machine::Machine::start(cgroup);
    test(&machine);
    machine.reset();
}

apart! {
    cluster_stops_resumes_and_resets, cluster_stops_resumes_and_resets_inside: lifecycle::run;
    clusters_of_one_machine_are_isolated, clusters_of_one_machine_are_isolated_inside: |_: &str| isolation::run();
    cluster_survives_repeated_kills, cluster_survives_repeated_kills_inside: kills::run;
    workloads_run, workloads_run_inside: |cgroup: &str| on_machine(cgroup, workloads::run);
    pod_limits_probes_and_eviction_are_enforced, pod_limits_probes_and_eviction_are_enforced_inside:
        |cgroup: &str| on_machine(cgroup, pods::run);
    csi_drivers_provide_volumes, csi_drivers_provide_volumes_inside: |cgroup: &str| on_machine(cgroup, csi::run);
    device_plugins_provide_devices, device_plugins_provide_devices_inside:
        |cgroup: &str| devices::run(machine::Machine::start(cgroup)).reset();
    containers_terminate_and_restart, containers_terminate_and_restart_inside:
        |cgroup: &str| on_machine(cgroup, restarts::run);
    node_conformance_pods_succeed, node_conformance_pods_succeed_inside:
        |cgroup: &str| on_machine(cgroup, pod_behaviour::run);
    cluster_follows_network_changes, cluster_follows_network_changes_inside: network_changes::run;
    secrets_are_never_on_disk, secrets_are_never_on_disk_inside: secrets::run;
    baseline_pods_cannot_escape_containers, baseline_pods_cannot_escape_containers_inside:
        |cgroup: &str| on_machine(cgroup, escapes::run);
    package_installs_starts_stops_and_removes, package_installs_starts_stops_and_removes_inside: packages::test;
    usage_is_served_and_scales, usage_is_served_and_scales_inside: metrics::run;
}

#[test]
fn rules_of_kubernetes_mixin_have_data() {
    if let Some(reason) = programs::missing(&["prometheus", "promtool"], &[]) {
        println!("skipped: {reason}");
        return;
    }
    apart("rules_of_kubernetes_mixin_have_data_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn rules_of_kubernetes_mixin_have_data_inside() {
    if let Some(cgroup) = inside() {
        mixin::run(&cgroup);
    }
}
