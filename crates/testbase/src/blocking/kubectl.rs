//! kubectl for a test cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Attempts per command if kubectl loses its output.
const TRIES: usize = 5;

/// kubectl with the administrator's kubeconfig.
#[derive(Debug)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    /// Directory of kubectl's cache and of the test's manifests.
    directory: PathBuf,
}

impl Kubectl {
    #[must_use]
    pub fn new(kubeconfig: PathBuf, directory: &Path) -> Self {
        Self { kubeconfig, directory: directory.to_owned() }
    }

    /// The command, with `KUBECONFIG` and `HOME` set.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.directory)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs kubectl to completion. Some releases discard exec output received before their streams are ready and
    /// report `Unknown stream id`; then the command is repeated.
    pub fn output(&self, arguments: &[&str]) -> Output {
        let mut tries = 0;
        loop {
            let output = self.command(arguments).output().expect("kubectl runs");
            tries += 1;
            let lost = String::from_utf8_lossy(&output.stderr).contains("Unknown stream id");
            if !lost || tries == TRIES {
                return output;
            }
        }
    }

    /// Standard output, or standard error on failure.
    pub fn attempt(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.output(arguments);
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Runs `kubectl apply` with a manifest; returns standard error on failure.
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        let file = self.directory.join("manifest.yaml");
        fs::write(&file, manifest).expect("a file");
        self.attempt(&["apply", "-f", &file.display().to_string()])
    }
}
