//! `ferry up` as users run it, with real containers and stock kubectl: workloads, stop and resume, and a complete
//! `ferry reset`.
//!
//! Each test re-executes itself in isolated network, mount and PID namespaces; remaining processes end with them. It
//! needs root, kubectl and a static busybox; otherwise it is skipped with a message.

mod csi;
mod escapes;
mod kills;
mod lifecycle;
mod machine;
mod metrics;
mod mixin;
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

#[test]
fn cluster_stops_resumes_and_resets() {
    apart("cluster_stops_resumes_and_resets_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn cluster_stops_resumes_and_resets_inside() {
    if let Some(cgroup) = inside() {
        lifecycle::run(&cgroup);
    }
}

#[test]
fn cluster_survives_repeated_kills() {
    apart("cluster_survives_repeated_kills_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn cluster_survives_repeated_kills_inside() {
    if let Some(cgroup) = inside() {
        kills::run(&cgroup);
    }
}

#[test]
fn workloads_run() {
    apart("workloads_run_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn workloads_run_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        workloads::run(&machine);
        machine.reset();
    }
}

#[test]
fn pod_limits_probes_and_eviction_are_enforced() {
    apart("pod_limits_probes_and_eviction_are_enforced_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn pod_limits_probes_and_eviction_are_enforced_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        pods::run(&machine);
        machine.reset();
    }
}

#[test]
fn csi_drivers_provide_volumes() {
    apart("csi_drivers_provide_volumes_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn csi_drivers_provide_volumes_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        csi::run(&machine);
        machine.reset();
    }
}

#[test]
fn containers_terminate_and_restart() {
    apart("containers_terminate_and_restart_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn containers_terminate_and_restart_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        restarts::run(&machine);
        machine.reset();
    }
}

#[test]
fn node_conformance_pods_succeed() {
    apart("node_conformance_pods_succeed_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn node_conformance_pods_succeed_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        pod_behaviour::run(&machine);
        machine.reset();
    }
}

#[test]
fn secrets_are_never_on_disk() {
    apart("secrets_are_never_on_disk_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn secrets_are_never_on_disk_inside() {
    if let Some(cgroup) = inside() {
        secrets::run(&cgroup);
    }
}

#[test]
fn baseline_pods_cannot_escape_containers() {
    apart("baseline_pods_cannot_escape_containers_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn baseline_pods_cannot_escape_containers_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        escapes::run(&machine);
        machine.reset();
    }
}

#[test]
fn package_installs_starts_stops_and_removes() {
    apart("package_installs_starts_stops_and_removes_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn package_installs_starts_stops_and_removes_inside() {
    if let Some(cgroup) = inside() {
        packages::test(&cgroup);
    }
}

#[test]
fn usage_is_served_and_scales() {
    apart("usage_is_served_and_scales_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn usage_is_served_and_scales_inside() {
    if let Some(cgroup) = inside() {
        metrics::run(&cgroup);
    }
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
