//! The binary as a process: signals, crashes and recovery.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base::pki::{Identity, certificates_from_pem};
use serde_json::json;
use testkit::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const LIMIT: Duration = Duration::from_secs(30);
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// `ferry apiserver` on a free port.
struct Process {
    child: Child,
    url: String,
    data_dir: std::path::PathBuf,
}

impl Process {
    async fn start(data_dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::launch(Command::new(env!("CARGO_BIN_EXE_ferry")), data_dir, flags).await
    }

    /// Limits the number of open files.
    async fn start_limited(data_dir: &Path, files: usize) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("ulimit -n {files}; exec \"$0\" \"$@\""))
            .arg(env!("CARGO_BIN_EXE_ferry"));
        Self::launch(shell, data_dir, &[]).await
    }

    async fn launch(mut command: Command, data_dir: &Path, flags: &[&str]) -> Result<Self> {
        let mut child = command
            .args(["apiserver", "--listen", "127.0.0.1:0", "-v", "0", "--data-dir"])
            .arg(data_dir)
            .args(flags)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let url = ready(&mut child).await?;
        Ok(Self { child, url, data_dir: data_dir.to_owned() })
    }

    /// Client with the administrator's certificate and its own connection.
    fn admin(&self) -> Result<Client> {
        let read = |name: &str| std::fs::read_to_string(self.data_dir.join("pki").join(name));
        let identity = Identity::from_pem(&read("admin.pem")?).map_err(anyhow::Error::msg)?;
        let authority = certificates_from_pem(&read("server-ca.crt")?).map_err(anyhow::Error::msg)?;
        let address = self.url.trim_start_matches("https://").trim_end_matches('/').parse()?;
        Client::new(address, authority.first().context("an authority")?, Some(identity.into()))
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("it has ended")
    }

    async fn signal(&self, name: &str) -> Result<()> {
        let status =
            Command::new("kill").arg(format!("-{name}")).arg(self.pid()?.to_string()).status().await?;
        ensure!(status.success(), "kill -{name}: {status}");
        Ok(())
    }

    /// Resident memory in MiB.
    fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? / 1024)
    }
}

/// URL of a started server, once it is ready.
async fn ready(child: &mut Child) -> Result<String> {
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let ready = async {
        while let Some(line) = lines.next_line().await? {
            if let Some((_, url)) = line.split_once(" ms: ") {
                return Ok(url.to_owned());
            }
        }
        anyhow::bail!("it ended before it was ready")
    };
    tokio::time::timeout(LIMIT, ready).await.context("not ready in time")?
}

fn config_map(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"name": name}})
}

/// Waits for acknowledged writes.
async fn written_at_least(count: &AtomicUsize, want: usize) {
    testkit::eventually("writes", LIMIT, async || count.load(Ordering::SeqCst), |count| *count >= want).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_requests() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut process = Process::start(dir.path(), &[]).await?;
    let admin = process.admin()?;
    let mut watch = admin.stream("/api/v1/namespaces?watch=true").await?;
    tokio::time::timeout(LIMIT, watch.next()).await??.context("an event")?;
    // Continuous requests; each is either answered completely or never started.
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (client, stopped, count) = (process.admin()?, Arc::clone(&stop), Arc::clone(&written));
    let writer = tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        while !stopped.load(Ordering::SeqCst) {
            let name = format!("n{}", acknowledged.len());
            match client.post(PATH, &config_map(&name)).await {
                Ok(reply) if reply.status == 201 => {
                    acknowledged.push(name);
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Ok(reply) => anyhow::bail!("{}: {}", reply.status, reply.body),
                Err(_) => break,
            }
        }
        Ok(acknowledged)
    });
    written_at_least(&written, 20).await;
    process.signal("TERM").await?;
    while tokio::time::timeout(LIMIT, watch.next()).await.context("the watch does not end")??.is_some() {}
    let status = tokio::time::timeout(LIMIT, process.child.wait()).await.context("it does not stop")??;
    ensure!(status.success(), "{status}");
    stop.store(true, Ordering::SeqCst);
    let acknowledged = writer.await??;

    let process = Process::start(dir.path(), &[]).await?;
    expect_all(&process.admin()?, &acknowledged.into_iter().collect(), &BTreeSet::new()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_sigterm_exits_immediately() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut process = Process::start(dir.path(), &["--shutdown-grace", "10m"]).await?;
    let admin = process.admin()?;
    for n in 0..12 {
        let mut object = config_map(&format!("large-{n}"));
        object["data"]["text"] = "x".repeat(600 << 10).into();
        ensure!(admin.post(PATH, &object).await?.status == 201);
    }
    // A response too large for the socket buffers stays in flight while it is not read.
    let list = http::Request::get(PATH).body(http_body_util::Full::default())?;
    let unread = admin.send(list).await?;
    ensure!(unread.status() == 200, "{}", unread.status());
    process.signal("TERM").await?;
    let other = process.admin()?;
    let connects = async || other.get("/livez").await.is_ok();
    testkit::eventually("new connections are rejected", LIMIT, connects, |connects| !connects).await;
    ensure!(process.child.try_wait()?.is_none(), "it did not wait for the request");
    process.signal("TERM").await?;
    let status =
        tokio::time::timeout(LIMIT, process.child.wait()).await.context("the process does not exit")??;
    ensure!(status.code() == Some(1), "{status}");
    drop(unread);
    Ok(())
}

/// File descriptor exhaustion: open connections are served, and waiting ones as soon as a descriptor is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptor_exhaustion_recovers() -> Result<()> {
    const FILES: usize = 64;
    let dir = tempfile::tempdir()?;
    let process = Process::start_limited(dir.path(), FILES).await?;
    let admin = process.admin()?;
    ensure!(admin.get("/livez").await?.status == 200);
    let address = process.url.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let mut silent = Vec::new();
    for _ in 0..2 * FILES {
        silent.push(tokio::net::TcpStream::connect(&address).await?);
    }
    let open = format!("/proc/{}/fd", process.pid()?);
    let count = async || std::fs::read_dir(&open).map_or(0, Iterator::count);
    testkit::eventually("no descriptor is left", LIMIT, count, |count| *count >= FILES).await;
    ensure!(admin.get(PATH).await?.status == 200, "open connections are served");
    drop(silent);
    let late = process.admin()?;
    let served = async || late.get("/livez").await.map_or(0, |reply| reply.status.as_u16());
    testkit::eventually("served again", LIMIT, served, |code| *code == 200).await;
    ensure!(admin.post(PATH, &config_map("after")).await?.status == 201);
    Ok(())
}

/// Checks that every acknowledged object exists unchanged, and no unrequested object.
async fn expect_all(
    admin: &Client,
    acknowledged: &BTreeSet<String>,
    attempted: &BTreeSet<String>,
) -> Result<()> {
    let list = admin.get(PATH).await?;
    let items = list.body["items"].as_array().context("a list")?;
    let mut found = BTreeSet::new();
    for item in items {
        let name = item["metadata"]["name"].as_str().context("a name")?;
        if name == "kube-root-ca.crt" {
            continue;
        }
        ensure!(item["data"]["name"] == name, "half an object: {item}");
        ensure!(acknowledged.contains(name) || attempted.contains(name), "unexpected object {name}");
        found.insert(name.to_owned());
    }
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    ensure!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    Ok(())
}

/// Kills the process during concurrent writes, repeatedly in one data directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_objects_survive_kills() -> Result<()> {
    const WRITERS: usize = 8;
    let rounds: usize = std::env::var("FERRY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir()?;
    let (mut acknowledged, mut attempted) = (BTreeSet::new(), BTreeSet::new());
    let mut newest = 0;
    for round in 0..rounds {
        let mut process = Process::start(dir.path(), &[]).await?;
        expect_all(&process.admin()?, &acknowledged, &attempted).await?;
        let mut writers = Vec::new();
        let written = Arc::new(AtomicUsize::new(0));
        for writer in 0..WRITERS {
            let (client, written) = (process.admin()?, Arc::clone(&written));
            writers.push(tokio::spawn(async move {
                let (mut done, mut revision) = (Vec::new(), 0);
                loop {
                    let name = format!("r{round}-w{writer}-n{}", done.len());
                    match client.post(PATH, &config_map(&name)).await {
                        Ok(reply) if reply.status == 201 => {
                            let version = &reply.body["metadata"]["resourceVersion"];
                            revision = version.as_str().and_then(|text| text.parse().ok()).unwrap_or(0u64);
                            done.push(name);
                            written.fetch_add(1, Ordering::SeqCst);
                        }
                        _ => return (done, name, revision),
                    }
                }
            }));
        }
        // The kill comes at a different moment each time.
        written_at_least(&written, 20 + 17 * (round % 20)).await;
        process.signal("KILL").await?;
        process.child.wait().await?;
        let mut highest = newest;
        for writer in writers {
            let (done, last, revision) = writer.await?;
            ensure!(revision == 0 || revision > newest, "revision {revision} was given before");
            highest = highest.max(revision);
            acknowledged.extend(done);
            attempted.insert(last);
        }
        newest = highest;
    }
    let process = Process::start(dir.path(), &[]).await?;
    expect_all(&process.admin()?, &acknowledged, &attempted).await
}

/// Watchers that do not read must not cost the server significant memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watches_use_bounded_memory() -> Result<()> {
    const WATCHERS: usize = 50;
    let dir = tempfile::tempdir()?;
    let process = Process::start(dir.path(), &[]).await?;
    let admin = process.admin()?;
    let mut object = config_map("large");
    object["data"]["text"] = "x".repeat(100 << 10).into();
    ensure!(admin.post(PATH, &object).await?.status == 201);
    let mut held = Vec::new();
    for _ in 0..WATCHERS {
        let client = process.admin()?;
        let watch = client.stream(&format!("{PATH}?watch=true")).await?;
        held.push((client, watch));
    }
    let before = process.memory()?;
    for n in 0..300 {
        object["data"]["n"] = n.to_string().into();
        ensure!(admin.put(&format!("{PATH}/large"), &object).await?.status == 200);
    }
    let after = process.memory()?;
    // 50 watchers x 30 MB of events would be 1.5 GB.
    ensure!(after < before + 200, "{before} MiB before, {after} MiB after");
    ensure!(admin.get("/readyz").await?.status == 200);
    Ok(())
}

/// Links named like Kubernetes' binaries, started with the flags that controller-runtime's test environment passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_named_like_kubernetes_binaries_serve_a_test_environment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let link = |name: &str| {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ferry"), &link).map(|()| link)
    };
    let mut etcd = Command::new(link("etcd")?)
        .arg(format!("--data-dir={}", dir.path().join("etcd-data").display()))
        .args(["--listen-client-urls=http://127.0.0.1:0", "--listen-peer-urls=http://127.0.0.1:0"])
        .arg("--advertise-client-urls=http://127.0.0.1:0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(etcd.stdout.take().context("a pipe")?).lines();
    let line = tokio::time::timeout(LIMIT, lines.next_line()).await??.context("a line")?;
    let (_, url) = line.split_once(" at ").context("an address")?;

    let certificates = dir.path().join("certificates");
    let mut server = Command::new(link("kube-apiserver")?)
        .arg(format!("--etcd-servers={url}"))
        .arg(format!("--cert-dir={}", certificates.display()))
        .args(["--bind-address=127.0.0.1", "--secure-port=0", "--service-cluster-ip-range=10.0.0.0/24"])
        .args(["--disable-admission-plugins=ServiceAccount", "--authorization-mode=RBAC"])
        .args(["--allow-privileged=true", "--profiling=false", "--watch-cache=true"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let url = ready(&mut server).await?;
    let process = Process { child: server, url, data_dir: certificates };
    let reply = process.admin()?.post(PATH, &config_map("kept-in-etcd")).await?;
    ensure!(reply.status == 201, "{}", reply.body);
    ensure!(dir.path().join("etcd-data/store").is_dir(), "the store is not where etcd's data is");
    ensure!(!process.data_dir.join("store").exists(), "the API server has a store of its own");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envtest_runs_a_command_and_removes_its_directory() -> Result<()> {
    let script =
        "test -r $KUBECONFIG && test -x $KUBEBUILDER_ASSETS/kube-apiserver && echo $KUBECONFIG; exit 7";
    let run = Command::new(env!("CARGO_BIN_EXE_ferry"))
        .args(["envtest", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LIMIT, run).await??;
    ensure!(output.status.code() == Some(7), "{output:?}");
    let kubeconfig = String::from_utf8(output.stdout)?;
    ensure!(kubeconfig.contains("kubeconfig"), "no variables: {kubeconfig:?}");
    ensure!(!Path::new(kubeconfig.trim()).exists(), "{kubeconfig} still exists");
    Ok(())
}
