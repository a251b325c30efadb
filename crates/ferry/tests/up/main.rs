//! `ferry up` as a user has it, with real containers and stock kubectl: what runs in it, how it stops and resumes, and
//! that `ferry reset` leaves nothing.
//!
//! Each test starts itself again in network, mount and pid namespaces of its own, without a way out; whatever it leaves
//! running ends with those. It needs root, kubectl and a static busybox; without one of them it says so.

mod csi;
mod endings;
#[path = "../../../container/tests/battery/escape_table.rs"]
mod escape_table;
mod escapes;
#[path = "../support/ferry.rs"]
mod ferry;
#[path = "../support/images.rs"]
mod images;
mod killed;
#[path = "../support/kubectl.rs"]
mod kubectl;
mod lifecycle;
mod machine;
#[path = "../support/objects.rs"]
mod objects;
mod packages;
mod pods;
#[path = "../support/programs.rs"]
mod programs;
mod promises;
mod secrets;
#[path = "../support/wait.rs"]
mod wait;
mod workloads;

/// Set for the copy of a test that runs in namespaces of its own: the control group it may use.
const INSIDE: &str = "FERRY_TEST_CGROUP";

/// Runs the ignored test `name` of this binary in namespaces of its own.
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

/// The control group that the copy inside may use.
fn inside() -> Option<String> {
    let found = std::env::var(INSIDE).ok();
    if found.is_none() {
        println!("skipped: only in namespaces of its own");
    }
    found
}

#[test]
fn a_cluster_stops_resumes_and_is_removed() {
    apart("a_cluster_stops_resumes_and_is_removed_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn a_cluster_stops_resumes_and_is_removed_inside() {
    if let Some(cgroup) = inside() {
        lifecycle::run(&cgroup);
    }
}

#[test]
fn a_cluster_is_killed_again_and_again() {
    apart("a_cluster_is_killed_again_and_again_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn a_cluster_is_killed_again_and_again_inside() {
    if let Some(cgroup) = inside() {
        killed::run(&cgroup);
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
fn pods_are_kept_within_bounds() {
    apart("pods_are_kept_within_bounds_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn pods_are_kept_within_bounds_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        pods::run(&machine);
        machine.reset();
    }
}

#[test]
fn storage_drivers_bring_volumes() {
    apart("storage_drivers_bring_volumes_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn storage_drivers_bring_volumes_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        csi::run(&machine);
        machine.reset();
    }
}

#[test]
fn containers_end_and_begin_again() {
    apart("containers_end_and_begin_again_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn containers_end_and_begin_again_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        endings::run(&machine);
        machine.reset();
    }
}

#[test]
fn conformance_is_kept() {
    apart("conformance_is_kept_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn conformance_is_kept_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        promises::run(&machine);
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
fn containers_of_baseline_pods_are_not_escaped() {
    apart("containers_of_baseline_pods_are_not_escaped_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn containers_of_baseline_pods_are_not_escaped_inside() {
    if let Some(cgroup) = inside() {
        let machine = machine::Machine::start(&cgroup);
        escapes::run(&machine);
        machine.reset();
    }
}

#[test]
fn packages_are_installed_started_stopped_and_removed() {
    apart("packages_are_installed_started_stopped_and_removed_inside");
}

#[test]
#[ignore = "started by its sibling in namespaces of its own"]
fn packages_are_installed_started_stopped_and_removed_inside() {
    if let Some(cgroup) = inside() {
        packages::test(&cgroup);
    }
}
