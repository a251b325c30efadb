//! Processes: starting Ferry, and CPU and memory from /proc.

use crate::kubeconfig::Access;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes whose figures are added up.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    pids: Vec<u32>,
}

impl Processes {
    pub fn of(pids: Vec<u32>) -> Self {
        Self { pids }
    }

    /// `NAME=PID` each.
    pub fn parse(list: &[String]) -> Result<Self> {
        let pid = |entry: &String| {
            let text = entry.split('=').next_back().unwrap_or(entry);
            text.parse().with_context(|| format!("{entry} is not NAME=PID"))
        };
        Ok(Self { pids: list.iter().map(pid).collect::<Result<_>>()? })
    }

    /// User and system CPU so far.
    pub fn cpu(&self) -> Duration {
        let ticks: u64 = self.pids.iter().filter_map(|pid| ticks(*pid)).sum();
        // USER_HZ is 100 on every Linux.
        Duration::from_millis(ticks * 10)
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.pids.iter().filter_map(|pid| memory(*pid)).sum()
    }

    /// Resident memory with shares of what is shared with other processes, in bytes.
    pub fn proportional_memory(&self) -> u64 {
        self.pids.iter().filter_map(|pid| proportional(*pid)).sum()
    }
}

/// The proportional set size: shared pages are divided among their processes.
fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// A Ferry process of the benchmark, stopped on drop.
pub struct Ferry {
    child: Child,
    pub data_dir: tempfile::TempDir,
    /// Time from the start of the process until its kubeconfig existed.
    pub started: Instant,
}

impl Ferry {
    pub fn binary(configured: Option<&Path>) -> Result<PathBuf> {
        let path = match configured {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()?.with_file_name("ferry"),
        };
        if !path.exists() {
            bail!(
                "no ferry at {}: run `cargo build --release` first, or name it with --ferry",
                path.display()
            );
        }
        Ok(path)
    }

    pub async fn start(binary: &Path) -> Result<Self> {
        Self::start_as(binary, &["apiserver"]).await
    }

    /// Starts it with this subcommand and these flags, besides the data directory and a loopback address to listen on.
    pub async fn start_as(binary: &Path, role: &[&str]) -> Result<Self> {
        Self::spawn(binary, role)?.has_kubeconfig().await
    }

    /// Starts it without waiting.
    pub fn spawn(binary: &Path, role: &[&str]) -> Result<Self> {
        let data_dir = tempfile::tempdir()?;
        let started = Instant::now();
        let listen: &[&str] = if role.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let child = Command::new(binary)
            .args(role)
            .args(listen)
            .arg("--data-dir")
            .arg(data_dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {}", binary.display()))?;
        Ok(Self { child, data_dir, started })
    }

    /// Waits until the kubeconfig is written.
    pub async fn has_kubeconfig(self) -> Result<Self> {
        let deadline = self.started + Duration::from_secs(30);
        while !self.kubeconfig().exists() {
            if Instant::now() > deadline {
                bail!("ferry did not write its kubeconfig within 30 s");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(self)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.path().join("kubeconfig")
    }

    pub fn access(&self) -> Result<Access> {
        Access::read(&self.kubeconfig())
    }

    pub fn processes(&self) -> Processes {
        Processes::of(vec![self.child.id()])
    }
}

impl Drop for Ferry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A component as a separate process, stopped on drop.
pub struct Component(Child);

impl Component {
    pub fn start(binary: &Path, role: &[&str], kubeconfig: &Path) -> Result<Self> {
        let child = Command::new(binary)
            .args(role)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {} {role:?}", binary.display()))?;
        Ok(Self(child))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
