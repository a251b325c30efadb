//! Ferry is killed repeatedly under load: running pods keep running untouched, starting pods finish, and nothing is
//! duplicated, lost or leaked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::machine::{IMAGE, Machine, until};

/// Number of kills, unless the environment overrides it.
const KILLS: usize = 3;
/// Environment variable for the number of kills.
const KILLS_VARIABLE: &str = "FERRY_KILLS";
/// Number of concurrent short-lived pods.
const BATCH: usize = 4;

fn pod(name: &str, kind: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{kind: {kind}}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: {IMAGE}
    command: [/bin/sleep, "1000000"]
    resources: {{requests: {{cpu: 1m}}}}
    volumeMounts: [{{name: memory, mountPath: /memory}}]
  volumes: [{{name: memory, emptyDir: {{medium: Memory}}}}]
---"#
    )
}

pub fn run(cgroup: &str) {
    let kills = std::env::var(KILLS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let mut machine = Machine::start(cgroup);
    machine.apply(&format!("{}{}", pod("stays-1", "stays"), pod("stays-2", "stays")));
    audited(&machine, cgroup, "pods run at first");
    let before = untouched_containers(&machine);
    for kill in 0..kills {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| churn(&machine, kill, &over));
            // At a different moment each time: the result must not depend on it.
            std::thread::sleep(Duration::from_millis(400 + (kill as u64 * 337) % 1900));
            machine.kill();
            over.store(true, Ordering::Relaxed);
        });
        machine.up(&[]);
        audited(&machine, cgroup, &format!("all adds up after kill {kill}"));
        assert_eq!(untouched_containers(&machine), before, "pods that ran were touched by kill {kill}");
        machine.kubectl(&["delete", "pods", "-l", "kind=passes", "--wait=false"]);
    }
    machine.kubectl(&["delete", "pods", "--all", "--timeout=90s"]);
    audited(&machine, cgroup, "nothing is left");
    println!("survived {kills} kills");
    machine.reset();
}

/// Creates and deletes pods, ignoring errors.
fn churn(machine: &Machine, kill: usize, over: &AtomicBool) {
    let file = machine.directory.path().join("churn.yaml");
    for round in 0.. {
        let pods = |round: usize| (0..BATCH).map(move |number| format!("p-{kill}-{round}-{number}"));
        let manifest: String = pods(round).map(|name| pod(&name, "passes")).collect();
        fs::write(&file, manifest).expect("a file");
        let _ = machine.try_kubectl(&["create", "-f", &file.display().to_string()]);
        if over.load(Ordering::Relaxed) {
            return;
        }
        if let Some(earlier) = round.checked_sub(1) {
            // Half of them stay until they are checked.
            let names: Vec<String> = pods(earlier).step_by(2).collect();
            let mut arguments = vec!["delete", "pods", "--wait=false"];
            arguments.extend(names.iter().map(String::as_str));
            let _ = machine.try_kubectl(&arguments);
        }
        if over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Containers of the untouched pods, with restart counts.
fn untouched_containers(machine: &Machine) -> String {
    let field = "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                 {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    machine.kubectl(&["get", "pods", "-l", "kind=stays", "-o", &format!("jsonpath={field}")])
}

/// Waits until the pods in the API match the state of the machine.
fn audited(machine: &Machine, cgroup: &str, what: &str) {
    until(what, || {
        let wrong = audit(machine, cgroup)?;
        if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{}", wrong.join("\n"), machine.log())) }
    });
}

/// Inconsistencies; empty if there are none.
fn audit(machine: &Machine, cgroup: &str) -> Result<Vec<String>, String> {
    let list = machine.try_kubectl(&["get", "pods", "-A", "-o", "json"])?;
    let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let mut wrong = Vec::new();
    let (mut uids, mut containers, mut addresses) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for pod in &pods {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let restarted = statuses.iter().any(|status| status["restartCount"] != 0);
        if text("/status/phase") != "Running" || pod["metadata"]["deletionTimestamp"].is_string() || restarted
        {
            wrong.push(format!("{} is {}: {:?}", text("/metadata/name"), text("/status/phase"), statuses));
        }
        uids.insert(text("/metadata/uid"));
        addresses.insert(text("/status/podIP"));
        containers.extend(
            statuses
                .iter()
                .filter_map(|status| Some(status["containerID"].as_str()?.rsplit_once('/')?.1.to_owned())),
        );
    }
    let runtime = machine.data().join("runtime");
    let mut same = |what: &str, there: &BTreeSet<String>, wanted: &BTreeSet<String>| {
        wrong.extend(there.difference(wanted).map(|one| format!("{what} {one} has no owner")));
        wrong.extend(wanted.difference(there).map(|one| format!("{what} {one} is missing")));
    };
    let shims = shims(&runtime.join("containers"));
    same("shim", &shims.keys().cloned().collect(), &containers);
    same("container", &names(&runtime.join("containers")), &containers);
    let taken = names(&runtime.join("addresses"));
    let taken = taken.into_iter().filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect();
    same("address", &taken, &addresses);
    same("directory", &names(&machine.data().join("kubelet/pods")), &uids);
    same("group", &groups(cgroup), &uids);
    let sandboxes = names(&runtime.join("sandboxes"));
    let cables: BTreeSet<String> = sandboxes.iter().map(|id| format!("fe-{id:.11}")).collect();
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let links = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    let links = links.filter(|name| name.starts_with("fe-")).collect();
    same("link", &links, &cables);
    same("mounts of pod", &mounted(&machine.data().join("kubelet/pods")), &uids);
    same("mounts of sandbox", &mounted(&runtime.join("sandboxes")), &sandboxes);
    if sandboxes.len() != pods.len() {
        wrong.push(format!("{} pods have {} sandboxes", pods.len(), sandboxes.len()));
    }
    wrong.extend(shims.iter().filter(|(_, count)| **count != 1).map(|(id, _)| format!("{id} is doubled")));
    Ok(wrong)
}

/// Entries of a directory; those with a leading dot are being removed.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// Direct children of a directory that contain mounts.
fn mounted(directory: &Path) -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    targets
        .filter_map(|target| Some(target.strip_prefix(directory).ok()?.iter().next()?.to_str()?.to_owned()))
        .collect()
}

/// Pods with a cgroup.
fn groups(cgroup: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let root = controller.path().join(cgroup.trim_start_matches('/'));
        for class in [root.clone(), root.join("burstable"), root.join("besteffort")] {
            let pods =
                names(&class).into_iter().filter_map(|name| Some(name.strip_prefix("pod")?.to_owned()));
            found.extend(pods);
        }
    }
    found
}

/// Containers held by shims of this machine, with the number of shims.
fn shims(containers: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0');
        if words.next() == Some("ferry")
            && words.next() == Some("shim")
            && words.next() == Some("container")
            && let Some(path) = words.next().and_then(|path| Path::new(path).strip_prefix(containers).ok())
        {
            *found.entry(path.display().to_string()).or_default() += 1;
        }
    }
    found
}
