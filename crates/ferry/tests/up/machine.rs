//! A cluster of `ferry up` in the test's own namespaces, and kubectl for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::images;

pub const IMAGE: &str = "docker.io/test/busybox:1";
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Machine {
    pub directory: tempfile::TempDir,
    cgroup: String,
    ferry: Option<Child>,
}

/// Waits until `look` has nothing to complain about.
pub fn until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(()) => return,
            Err(last) if begun.elapsed() > PATIENCE => panic!("{what}: last seen: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Removes control groups of this name; how many there were.
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
    /// A running cluster whose node is ready, with the test's image.
    pub fn start(cgroup: &str) -> Self {
        let mut machine = Self::new(cgroup);
        machine.up(&[]);
        let archive = images::make(machine.directory.path(), IMAGE, &["/bin/sh"], &[]);
        let imported = machine.ferry(&["images", "import", &archive.display().to_string()]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        machine
    }

    pub fn new(cgroup: &str) -> Self {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip runs");
        assert!(up.success());
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, cgroup: cgroup.to_owned(), ferry: None }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(60).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// What it said to its user.
    pub fn said(&self) -> String {
        fs::read_to_string(self.directory.path().join("said")).unwrap_or_default()
    }

    /// Starts the cluster and waits for its node.
    pub fn up(&mut self, flags: &[&str]) {
        if let Some(mut killed) = self.ferry.take() {
            killed.wait().expect("it ended");
        }
        let log = fs::File::create(self.directory.path().join("log")).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_ferry"))
            .args([
                "up",
                "--listen",
                "127.0.0.1:0",
                "--kubelet-listen",
                "0.0.0.0:0",
                "--hostname-override",
                "n1",
            ])
            .args(["--cgroup-root", &self.cgroup, "--data-dir"])
            .arg(self.data())
            .args(flags)
            .stdin(Stdio::null())
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

    /// Ends it as a crash would, without a moment for anything.
    pub fn kill(&self) {
        let pid = self.ferry.as_ref().map(|child| i32::try_from(child.id()).expect("a pid"));
        kill_process(pid.and_then(Pid::from_raw).expect("it runs"), Signal::KILL).expect("it runs");
    }

    /// Sends a signal and waits for the end; what it said.
    pub fn stop(&mut self, signal: Signal) -> String {
        let mut child = self.ferry.take().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("it runs");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.log());
        self.said()
    }

    /// Another command of the binary, for this cluster.
    pub fn ferry(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ferry"))
            .args(arguments)
            .arg("--data-dir")
            .arg(self.data())
            .stdin(Stdio::null())
            .output()
            .expect("ferry runs")
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
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", self.data().join("kubeconfig"))
            .env("HOME", self.directory.path())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command(arguments).output().expect("kubectl runs");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}\n{}", self.log()))
    }

    pub fn apply(&self, manifest: &str) {
        let file = self.directory.path().join("manifest.yaml");
        fs::write(&file, manifest).expect("a file");
        self.kubectl(&["apply", "-f", &file.display().to_string()]);
    }

    /// Waits until a field of an object is as wanted.
    pub fn wait_for(&self, object: &str, field: &str, wanted: &str) {
        self.wait_until(object, field, &format!("is {wanted:?}"), |text| text == wanted);
    }

    pub fn wait_until(&self, object: &str, field: &str, what: &str, fits: impl Fn(&str) -> bool) {
        until(&format!("{field} of {object} {what}"), || {
            match self.try_kubectl(&["get", object, "-o", &format!("jsonpath={field}")]) {
                Ok(text) if fits(&text) => Ok(()),
                other => Err(format!(
                    "{other:?}\n{}\n{}",
                    self.try_kubectl(&["describe", object]).unwrap_or_default(),
                    self.log()
                )),
            }
        });
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
