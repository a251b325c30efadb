//! kubectl for a cluster of the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// How often it is asked that does not listen.
const TRIES: usize = 5;

/// The administrator of a cluster.
pub struct Kubectl {
    kubeconfig: PathBuf,
    /// Where it keeps what it remembers, and the test its manifests.
    directory: PathBuf,
}

impl Kubectl {
    pub fn new(kubeconfig: PathBuf, directory: &Path) -> Self {
        Self { kubeconfig, directory: directory.to_owned() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.directory)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end. Some releases throw away what a command in a container says before they have got ready to
    /// listen, and say so; what was asked for is asked for again then.
    pub fn output(&self, arguments: &[&str]) -> Output {
        let mut tries = 0;
        loop {
            let output = self.command(arguments).output().expect("kubectl runs");
            tries += 1;
            let deaf = String::from_utf8_lossy(&output.stderr).contains("Unknown stream id");
            if !deaf || tries == TRIES {
                return output;
            }
        }
    }

    /// What it prints; what it complains about if it fails.
    pub fn attempt(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.output(arguments);
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// `kubectl apply` of a manifest; what it complains about if it fails.
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let file = self.directory.join("manifest.yaml");
        fs::write(&file, manifest).expect("a file");
        self.attempt(&["apply", "-f", &file.display().to_string()])
    }
}
