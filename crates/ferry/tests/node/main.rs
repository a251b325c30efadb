//! Real containers on a real kernel, driven with stock kubectl: the kubelet on Debian's containerd.
//!
//! Everything runs in a network namespace without a way out, which the test makes by starting itself again in one. It
//! needs root, kubectl, containerd, runc, the CNI plugins and a static busybox; without one of them it says so.

mod battery;
mod images;
mod machine;

use std::process::Command;

/// Set for the copy of the test that runs in a network of its own.
const INSIDE: &str = "FERRY_TEST_IN_ITS_OWN_NETWORK";

/// What the test needs and does not find here.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let programs = ["unshare", "ip", "tar", "kubectl", "containerd", "ctr", "runc"];
    let found = |name: &&str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).exists()))
    };
    if let Some(program) = programs.iter().find(|program| !found(program)) {
        return Some(format!("no {program} here"));
    }
    for file in ["/usr/lib/cni/bridge", "/usr/bin/busybox"] {
        if !std::path::Path::new(file).exists() {
            return Some(format!("no {file} here"));
        }
    }
    None
}

#[test]
fn pods_run_on_containerd() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    let own = std::env::current_exe().expect("the test's own path");
    let outcome = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(own)
        .args(["--exact", "inside_a_network_of_its_own", "--ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    let text =
        format!("{}{}", String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
    assert!(outcome.status.success(), "{text}");
    println!("{text}");
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn inside_a_network_of_its_own() {
    if std::env::var_os(INSIDE).is_none() {
        println!("skipped: only in a network namespace of its own");
        return;
    }
    let mut machine = machine::Machine::start();
    battery::run(&mut machine);
}
