//! Real containers on a real kernel, driven with stock kubectl: the kubelet on Debian's containerd, and on Ferry's
//! own runtime.
//!
//! The test re-executes itself in an isolated network namespace. It needs root, kubectl and a static busybox, and for
//! containerd also runc and the CNI plugins; otherwise it is skipped with a message.

mod battery;
mod machine;

use machine::Engine;
use testbase::programs;

/// Set for the re-executed test inside the network namespace.
const INSIDE: &str = "FERRY_TEST_IN_ITS_OWN_NETWORK";

/// Command of the program under test.
fn ferry(arguments: &[&str]) -> std::process::Command {
    programs::command(env!("CARGO_BIN_EXE_ferry"), arguments)
}

#[test]
fn pods_run_on_containerd() {
    apart(Engine::Containerd);
}

#[test]
fn pods_run_on_ferrys_own_runtime() {
    apart(Engine::Own);
}

/// Runs the test suite with its own network and mount namespaces.
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
    programs::in_own_namespaces("node_scenarios_in_network_namespace", (INSIDE, &mark), &[])
        .unwrap_or_else(|text| panic!("{text}"));
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn node_scenarios_in_network_namespace() {
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
