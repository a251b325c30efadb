//! Start, stop, resume, remove.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::machine::{Machine, until};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "trap 'exit 0' TERM; echo begun; while true; do sleep 0.1; done"]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: "1", memory: 32Mi}}
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
"#;
const IDENTITY: &str =
    "{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";

pub fn run(cgroup: &str) {
    let before = Traces::of(cgroup, None);
    let mut machine = Machine::start(cgroup);
    machine.apply(POD);
    machine.wait_for("pod/stays", "{.status.phase}", "Running");
    let identity = machine.kubectl(&["get", "pod", "stays", "-o", &format!("jsonpath={IDENTITY}")]);

    // A second cluster in the same data directory is rejected.
    let second = machine.ferry(&["up", "--listen", "127.0.0.1:0"]);
    let output = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && output.contains("already running in"), "{output}");

    // Ctrl-C leaves containers running, and the next start resumes them.
    let log = machine.stop(Signal::INT);
    assert!(log.contains("containers keep running"), "{log}");
    sleeping(1);
    machine.up(&[]);
    assert!(machine.output().contains("Resuming the cluster"), "{}", machine.output());
    machine.wait_for("pod/stays", IDENTITY, &identity);
    until("it prints its pods and the next command", || {
        let output = machine.output();
        if output.contains("it runs 1 pod\n") && output.contains("Try:  kubectl") {
            Ok(())
        } else {
            Err(output)
        }
    });

    // `ferry down` stops it from another process.
    let down = machine.ferry(&["down"]);
    assert!(String::from_utf8_lossy(&down.stdout).contains("Stopped"), "{down:?}");
    sleeping(1);

    // With --stop-pods its containers are stopped, and the next start creates new ones.
    let mut machine = resumed(machine, &["--stop-pods"]);
    machine.wait_for("pod/stays", IDENTITY, &identity);
    let log = machine.stop(Signal::TERM);
    assert!(log.contains("with 1 pods"), "{log}");
    sleeping(0);
    let machine = resumed(machine, &[]);
    machine.wait_for("pod/stays", "{.status.containerStatuses[0].restartCount} {.status.phase}", "1 Running");

    // Reset removes everything, although the cluster runs.
    let directory = machine.data();
    assert!(!Traces::of(cgroup, Some(&directory)).is_empty());
    machine.reset();
    assert!(!directory.exists(), "files were left");
    // The zygote of its shims exits shortly after.
    until("nothing is left behind", || {
        let after = Traces::of(cgroup, Some(&directory));
        if after == before { Ok(()) } else { Err(format!("{after:?}")) }
    });
}

fn resumed(mut machine: Machine, flags: &[&str]) -> Machine {
    machine.up(flags);
    machine
}

/// Waits for this number of the pod's shells: one that is between fork and exec counts as two.
fn sleeping(wanted: usize) {
    until(&format!("{wanted} containers run"), || match sleepers() {
        count if count == wanted => Ok(()),
        count => Err(format!("{count}")),
    });
}

/// Running shells of the pod; this PID namespace has no others.
fn sleepers() -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let line = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    entries
        .flatten()
        .map(line)
        .filter(|line| line.starts_with(b"/bin/sh") && contains(line, b"echo begun"))
        .count()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Resources that a cluster leaves on a machine.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    links: Vec<String>,
    mounts: Vec<String>,
    cgroups: Vec<String>,
    processes: usize,
    rules: String,
}

impl Traces {
    fn of(cgroup: &str, directory: Option<&Path>) -> Self {
        let mut links: Vec<String> = fs::read_to_string("/proc/net/dev")
            .expect("links")
            .lines()
            .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
            .filter(|name| name != "lo")
            .collect();
        links.sort();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mounts = mounts.lines().filter(|line| {
            directory.is_some_and(|directory| line.contains(&directory.display().to_string()))
        });
        let mut cgroups = Vec::new();
        for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let path = controller.path().join(cgroup.trim_start_matches('/'));
            if path.exists() {
                cgroups.push(path.display().to_string());
            }
        }
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let processes = processes
            .filter(|entry| {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                contains(&line, b"ferry\0shim") || contains(&line, b"echo begun")
            })
            .count();
        let rules = Command::new("nft").args(["list", "tables"]).output();
        let rules =
            rules.map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
        Self { links, mounts: mounts.map(str::to_owned).collect(), cgroups, processes, rules }
    }

    fn is_empty(&self) -> bool {
        self.links.is_empty() && self.mounts.is_empty() && self.cgroups.is_empty() && self.processes == 0
    }
}
