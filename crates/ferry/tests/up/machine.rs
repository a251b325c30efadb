//! A cluster of `ferry up` in the test's own namespaces, and kubectl for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};

use rustix::process::{Pid, Signal, kill_process};

use super::ferry;
pub use testbase::blocking::until;
use testbase::blocking::{Kubectl, wait_until};
use testbase::images;
use testbase::programs::{command, run};

pub const IMAGE: &str = "docker.io/test/busybox:1";

/// Sends a signal to a process and waits for its end.
pub fn end(child: &mut Child, signal: Signal) -> ExitStatus {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("it runs");
    child.wait().expect("it ends")
}

pub struct Machine {
    pub directory: tempfile::TempDir,
    cgroup: String,
    kubectl: Kubectl,
    ferry: Option<Child>,
    /// Installed binary to run instead of the one that cargo built.
    pub binary: Option<PathBuf>,
}

/// Removes cgroups of this name and returns their number.
pub fn remove_cgroups(name: &str) -> usize {
    fn below(directory: &Path, name: &str, depth: usize, removed: &mut usize) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = entry.path();
            let ours = path.display().to_string().contains(name);
            if ours || depth < 2 {
                below(&path, name, depth + 1, removed);
            }
            if ours && fs::remove_dir(&path).is_ok() {
                *removed += 1;
            }
        }
    }
    let mut removed = 0;
    below(Path::new("/sys/fs/cgroup"), name, 0, &mut removed);
    removed
}

impl Machine {
    /// A running cluster with a ready node and the test's image.
    pub fn start(cgroup: &str) -> Self {
        Self::start_with(cgroup, |_| Vec::new())
    }

    /// The same with further flags of `ferry up`, which may name files in the directory of the test.
    pub fn start_with(cgroup: &str, flags: impl Fn(&Path) -> Vec<String>) -> Self {
        let mut machine = Self::new(cgroup);
        let flags = flags(machine.directory.path());
        machine.up(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let archive = images::make(machine.directory.path(), IMAGE, &["/bin/sh"], &[]);
        let imported = machine.ferry(&["images", "import", &archive.display().to_string()]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        machine
    }

    pub fn new(cgroup: &str) -> Self {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let directory = tempfile::tempdir().expect("a directory");
        let kubectl = Kubectl::new(directory.path().join("data/kubeconfig"), directory.path());
        Self { directory, cgroup: cgroup.to_owned(), kubectl, ferry: None, binary: None }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(60).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Standard output of `ferry up`.
    pub fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("said")).unwrap_or_default()
    }

    /// Starts the cluster and waits for its node.
    pub fn up(&mut self, flags: &[&str]) {
        if let Some(mut killed) = self.ferry.take() {
            killed.wait().expect("it ended");
        }
        let log = fs::File::create(self.directory.path().join("log")).expect("a log");
        let listen = ["--listen", "127.0.0.1:0", "--kubelet-listen", "0.0.0.0:0"];
        let child = self
            .command(&["up", "--hostname-override", "n1"])
            .args(listen)
            .args(["--cgroup-root", &self.cgroup, "--data-dir"])
            .arg(self.data())
            .args(flags)
            .stdout(fs::File::create(self.directory.path().join("said")).expect("a file"))
            .stderr(log)
            .spawn()
            .expect("ferry runs");
        self.ferry = Some(child);
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        until("the node is ready", || match self.try_kubectl(&["get", "node", "n1", "-o", ready]) {
            Ok(text) if text == "True" => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log())),
        });
        until("the default service account", || {
            self.try_kubectl(&["get", "serviceaccount", "default"]).map(|_| ())
        });
    }

    /// Kills it without cleanup.
    pub fn kill(&self) {
        let pid = self.ferry.as_ref().map(|child| i32::try_from(child.id()).expect("a pid"));
        kill_process(pid.and_then(Pid::from_raw).expect("it runs"), Signal::KILL).expect("it runs");
    }

    /// Sends a signal, waits for the exit and returns the output.
    pub fn stop(&mut self, signal: Signal) -> String {
        let mut child = self.ferry.take().expect("it runs");
        let status = end(&mut child, signal);
        assert!(status.success(), "{status}: {}", self.log());
        self.output()
    }

    /// Runs another command of the binary for this cluster.
    pub fn ferry(&self, arguments: &[&str]) -> Output {
        self.command(arguments).arg("--data-dir").arg(self.data()).output().expect("ferry runs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        match &self.binary {
            None => ferry(arguments),
            Some(binary) => command(&binary.to_string_lossy(), arguments),
        }
    }

    /// Removes the cluster.
    pub fn reset(mut self) {
        let output = self.ferry(&["reset", "--yes"]);
        if let Some(mut child) = self.ferry.take() {
            let _ = child.wait();
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        self.kubectl.command(arguments)
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl.attempt(arguments)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}\n{}", self.log()))
    }

    pub fn apply(&self, manifest: &str) {
        self.kubectl.apply(manifest).unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    /// Waits until a field of an object has the expected value.
    pub fn wait_for(&self, object: &str, field: &str, wanted: &str) {
        self.wait_until(object, field, &format!("is {wanted:?}"), |text| text == wanted);
    }

    pub fn wait_until(&self, object: &str, field: &str, what: &str, fits: impl Fn(&str) -> bool) {
        wait_until(&self.kubectl, (object, field), what, fits, || self.log());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(child) = &mut self.ferry {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
