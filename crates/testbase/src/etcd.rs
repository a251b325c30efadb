//! Runs an etcd member on the loopback interface, if etcd is installed.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// One member, killed on drop. Its data outlives [`Etcd::kill`].
#[derive(Debug)]
pub struct Etcd {
    process: Option<Child>,
    directory: tempfile::TempDir,
    client: u16,
    peer: u16,
}

impl Etcd {
    /// Starts a member; prints `skipped:` and returns `None` without etcd on `PATH`.
    pub fn start() -> Result<Option<Self>> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: no etcd on PATH");
            return Ok(None);
        }
        let directory = tempfile::tempdir().context("failed to create a directory for etcd")?;
        let mut etcd = Self { process: None, directory, client: free_port()?, peer: free_port()? };
        etcd.run()?;
        Ok(Some(etcd))
    }

    /// Client URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Starts the member again after [`Etcd::kill`], with its data.
    pub fn run(&mut self) -> Result<()> {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer));
        let log = std::fs::File::create(self.path().join("log"))?;
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--name", "m0", "--initial-cluster", &format!("m0={peer}")])
            .stdout(Stdio::null())
            .stderr(log);
        self.process = Some(command.spawn().context("failed to start etcd")?);
        Ok(())
    }

    /// Kills the member (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have exited by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
