//! The server's process and its memory cgroup, of version 1 or 2. Both are removed when dropped.

use anyhow::{Context, Result, ensure};
use base::pki::{Pki, ServingNames};
use parking_lot::Mutex;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::{Client, Server};

const DIRECTORY: &str = "FERRY_HOSTILE_DIRECTORY";
const CGROUP: &str = "FERRY_HOSTILE_CGROUP";
const READY: &str = "listening on ";

/// A memory cgroup with the file names of its version.
struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// Creates a cgroup with this limit below that of the test, or at the root; `None` where that is not possible.
    fn make(limit: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("ferry-hostile-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let mut places: Vec<(PathBuf, bool)> = Vec::new();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
            if controllers == "memory" {
                places.extend([(root.join("memory").join(path), false), (root.join("memory"), false)]);
            } else if controllers.is_empty() {
                places.extend([(root.join(path), true), (root.to_owned(), true)]);
            }
        }
        places.into_iter().find_map(|(parent, is_v2)| {
            let cgroup = Self { path: parent.join(&name), is_v2 };
            fs::create_dir(&cgroup.path).ok()?;
            let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            fs::write(cgroup.path.join(file), limit.to_string()).ok()?;
            Some(cgroup)
        })
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.path.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn peak(&self) -> u64 {
        self.number(if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" })
    }

    /// Number of OOM-killed processes.
    fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just exited may still be in it.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A server in its own process.
pub struct Process {
    child: Mutex<Child>,
    address: SocketAddr,
    pki: Pki,
    cgroup: Cgroup,
    _directory: tempfile::TempDir,
}

impl Process {
    /// Starts a server with this memory limit; `None` where there is no memory cgroup.
    pub fn start(limit: u64) -> Result<Option<Self>> {
        let Some(cgroup) = Cgroup::make(limit) else { return Ok(None) };
        let directory = tempfile::tempdir().context("a data directory")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["process::server", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory.path())
            .env(CGROUP, &cgroup.path)
            // Like Ferry's own allocator, the test's must return free memory.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TRIM_THRESHOLD_", "1048576")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the server's process")?;
        let output = child.stdout.take().context("its output")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let address =
            lines.find_map(|line| line.strip_prefix(READY).and_then(|address| address.parse().ok()));
        // Later output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("the server's process did not start");
        };
        let now = base::clock::Clock::system().now();
        let pki = Pki::open(&directory.path().join("pki"), &ServingNames::default(), now)?;
        Ok(Some(Self { child: Mutex::new(child), address, pki, cgroup, _directory: directory }))
    }

    /// An administrator's client with its own connection.
    pub fn client(&self) -> Result<Client> {
        let identity = self.pki.leaves().admin;
        Client::new(self.address, &self.pki.server_authority.certificate, Some(identity.into()))
    }

    pub fn is_running(&self) -> bool {
        self.child.lock().try_wait().is_ok_and(|ended| ended.is_none())
    }

    pub fn peak(&self) -> u64 {
        self.cgroup.peak()
    }

    pub fn kills(&self) -> u64 {
        self.cgroup.kills()
    }

    /// The state of the process, for messages.
    pub fn state(&self) -> String {
        format!("running: {}, killed: {}, at most {} MB", self.is_running(), self.kills(), self.peak() >> 20)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "the process that the test of hostile requests starts"]
async fn server() -> Result<()> {
    let (directory, cgroup) = (std::env::var(DIRECTORY)?, std::env::var(CGROUP)?);
    fs::write(Path::new(&cgroup).join("cgroup.procs"), std::process::id().to_string())?;
    let server = Server::start_in_with(Path::new(&directory), |config| config.api.limits.cbor = true).await?;
    println!("\n{READY}{}", server.address);
    // Lives as long as the test that started it.
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await?;
    ensure!(ended.is_ok(), "reading the standard input");
    std::process::exit(0);
}
