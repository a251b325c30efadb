//! Real containers on a real kernel, driven with stock kubectl: the kubelet on Debian's containerd, and on Ferry's own
//! runtime.
//!
//! Everything runs in a network namespace without a way out, which the test makes by starting itself again in one. It
//! needs root, kubectl and a static busybox, and for containerd runc and the CNI plugins too; without one of them it says
//! so.

mod battery;
mod images;
mod machine;

use std::process::Command;

use machine::Engine;

/// Set for the copy of the test that runs in a network of its own.
const INSIDE: &str = "FERRY_TEST_IN_ITS_OWN_NETWORK";

/// What the test needs and does not find here.
fn missing(engine: Engine) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let (programs, files): (&[&str], &[&str]) = match engine {
        Engine::Containerd => (
            &["unshare", "ip", "tar", "kubectl", "containerd", "ctr", "runc"],
            &["/usr/lib/cni/bridge", "/usr/bin/busybox"],
        ),
        Engine::Own => (&["unshare", "ip", "tar", "kubectl"], &["/usr/bin/busybox"]),
    };
    let found = |name: &&str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).exists()))
    };
    if let Some(program) = programs.iter().find(|program| !found(program)) {
        return Some(format!("no {program} here"));
    }
    for file in files {
        if !std::path::Path::new(file).exists() {
            return Some(format!("no {file} here"));
        }
    }
    None
}

#[test]
fn pods_run_on_containerd() {
    apart(Engine::Containerd);
}

#[test]
fn pods_run_on_ferrys_own_runtime() {
    apart(Engine::Own);
}

/// Runs the battery in a network and with mounts of its own.
fn apart(engine: Engine) {
    if let Some(reason) = missing(engine) {
        println!("skipped: {reason}");
        return;
    }
    let own = std::env::current_exe().expect("the test's own path");
    let outcome = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(own)
        .args(["--exact", "inside_a_network_of_its_own", "--ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, format!("{engine:?}"))
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
    let engine = match std::env::var(INSIDE).as_deref() {
        Ok("Containerd") => Engine::Containerd,
        Ok("Own") => Engine::Own,
        _ => {
            println!("skipped: only in a network namespace of its own");
            return;
        }
    };
    let mut machine = machine::Machine::start(engine);
    battery::run(&mut machine);
}
