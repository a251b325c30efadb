//! Real containers on a real kernel, driven with stock kubectl: the kubelet on Debian's containerd, and on Ferry's own
//! runtime.
//!
//! Everything runs in a network namespace without a way out, which the test makes by starting itself again in one. It
//! needs root, kubectl and a static busybox, and for containerd runc and the CNI plugins too; without one of them it says
//! so.

mod battery;
#[path = "../support/ferry.rs"]
mod ferry;
#[path = "../support/images.rs"]
mod images;
#[path = "../support/kubectl.rs"]
mod kubectl;
mod machine;
#[path = "../support/objects.rs"]
mod objects;
#[path = "../support/programs.rs"]
mod programs;
#[path = "../support/wait.rs"]
mod wait;

use machine::Engine;

/// Set for the copy of the test that runs in a network of its own.
const INSIDE: &str = "FERRY_TEST_IN_ITS_OWN_NETWORK";

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
    let (programs, files): (&[&str], &[&str]) = match engine {
        Engine::Containerd => (
            &["unshare", "ip", "tar", "kubectl", "containerd", "ctr", "runc"],
            &["/usr/lib/cni/bridge", "/usr/bin/busybox"],
        ),
        Engine::Own => (&["unshare", "ip", "tar", "kubectl"], &["/usr/bin/busybox"]),
    };
    if let Some(reason) = programs::missing(programs, files) {
        println!("skipped: {reason}");
        return;
    }
    let mark = format!("{engine:?}");
    programs::in_own_namespaces("inside_a_network_of_its_own", (INSIDE, &mark), &[])
        .unwrap_or_else(|text| panic!("{text}"));
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
