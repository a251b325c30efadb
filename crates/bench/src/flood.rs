//! Flood: many connections load the server as one user, while the latency of another user is measured.
//!
//! The server has its own cores. The flood and the other user share the last one, the flood as a separate process at
//! the lowest priority, the other user at the highest.

use crate::FloodArguments;
use crate::client::{Connection, Target};
use crate::cores::{self, Cores};
use crate::process::Ferry;
use crate::report::{self, Line};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const USERS: [(&str, &str); 2] = [("flood-token", "flood"), ("other-token", "other")];
const WARM_UP: usize = 200;

pub async fn run(arguments: &FloodArguments) -> Result<()> {
    if let Some(kubeconfig) = &arguments.hammer {
        return hammer(kubeconfig, arguments.connections).await;
    }
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let tokens = tempfile::NamedTempFile::new()?;
    let lines: Vec<String> = USERS.iter().map(|(token, user)| format!("{token},{user},{user}")).collect();
    std::fs::write(tokens.path(), lines.join("\n"))?;
    let tokens_flag = format!("--token-auth-file={}", tokens.path().display());
    let fair_flag = format!("--enable-priority-and-fairness={}", arguments.fair);
    let cores = Cores::divide()?;
    cores.stay()?;
    let starting =
        cores.start(|| Ferry::spawn(&binary, &["apiserver", &tokens_flag, &fair_flag, "-v=0"]))??;
    let ferry = starting.has_kubeconfig().await?;
    if !cores::set_priority(cores::FIRST) {
        eprintln!(
            "not allowed to run before others: latencies include time in which the clients were not scheduled"
        );
    }
    crate::api::wait_ready(&ferry).await?;
    let access = ferry.access()?;
    prepare(&Target::new(&access)?).await?;
    let other = Target::without_identity(&access)?;
    let mut connection = other.connect().await?;
    let headers = authorization("other-token");
    measure(&mut connection, &headers, WARM_UP).await?;
    let (mut idle, mut flooded) = (Vec::new(), Vec::new());
    let (mut served, mut refused, mut cpu, mut elapsed) = (0, 0, Duration::ZERO, Duration::ZERO);
    for _ in 0..arguments.rounds {
        idle.extend(measure(&mut connection, &headers, arguments.requests).await?);
        let mut flood = Flood::start(arguments, &ferry)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, begin) = (ferry.processes().cpu(), Instant::now());
        let earlier = flood.so_far()?;
        flooded.extend(measure(&mut connection, &headers, arguments.requests).await?);
        let so_far = flood.so_far()?;
        elapsed += begin.elapsed();
        cpu += ferry.processes().cpu().saturating_sub(before);
        served += so_far.0 - earlier.0;
        refused += so_far.1 - earlier.1;
    }
    idle.sort_unstable();
    flooded.sort_unstable();
    let micros = |latencies: &[Duration], share: f64| {
        let at = (latencies.len() as f64 * share) as usize;
        latencies.get(at).or(latencies.last()).copied().unwrap_or_default().as_secs_f64() * 1e6
    };
    let line =
        |name: String, unit, value| Line { name, unit, ferry: value, other: None, more_is_better: false };
    let mut lines = vec![line("cores of the server".to_owned(), "", f64::from(cores.of_server()))];
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
        let (quiet, loud) = (micros(&idle, share), micros(&flooded, share));
        lines.push(line(format!("other user, idle: {name}"), "µs", quiet));
        lines.push(line(format!("other user, during the flood: {name}"), "µs", loud));
        lines.push(line(format!("{name} during the flood / idle"), "×", loud / quiet));
    }
    let seconds = elapsed.as_secs_f64();
    lines.push(line("flood: requests served".to_owned(), "1/s", served as f64 / seconds));
    lines.push(line("flood: requests refused".to_owned(), "1/s", refused as f64 / seconds));
    lines.push(line("CPU of the server during the flood".to_owned(), "cores", cpu.as_secs_f64() / seconds));
    report::print(&lines);
    Ok(())
}

fn authorization(token: &str) -> Vec<(&'static str, String)> {
    vec![("authorization", format!("Bearer {token}"))]
}

/// Creates an object to read, and a role that permits reading it.
async fn prepare(admin: &Target) -> Result<()> {
    let mut connection = admin.connect().await?;
    let map = format!(r#"{{"metadata":{{"name":"read-me"}},"data":{{"text":"{}"}}}}"#, "x".repeat(1024));
    let subjects = USERS.map(|(_, user)| {
        format!(r#"{{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"{user}"}}"#)
    });
    let binding = format!(
        r#"{{"metadata":{{"name":"readers"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}},"subjects":[{}]}}"#,
        subjects.join(",")
    );
    for (path, body) in [
        (format!("{NAMESPACE}/configmaps"), map),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings".to_owned(), binding),
    ] {
        let headers = [("content-type", "application/json")];
        let (status, _) = connection.request(Method::POST, &path, &headers, body.into()).await?;
        ensure!(status.is_success(), "{path}: {status}");
    }
    Ok(())
}

/// Sends requests sequentially on one connection.
async fn measure(
    connection: &mut Connection,
    headers: &[(&'static str, String)],
    count: usize,
) -> Result<Vec<Duration>> {
    let path = format!("{NAMESPACE}/configmaps/read-me");
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut latencies = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        let (status, _) = connection.request(Method::GET, &path, &headers, Bytes::new()).await?;
        ensure!(status == StatusCode::OK, "the other user got {status}");
        latencies.push(begin.elapsed());
        // Paced like an interactive user.
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    Ok(latencies)
}

/// The process that generates the flood.
struct Flood {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Flood {
    fn start(arguments: &FloodArguments, ferry: &Ferry) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["flood", "--connections", &arguments.connections.to_string(), "--hammer"])
            .arg(ferry.kubeconfig())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the flood")?;
        let output = child.stdout.take().context("the flood's output")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line.trim() == "flooding", "the flood did not start: {line:?}");
        Ok(Self { child, output })
    }

    /// Numbers of served and rejected requests.
    fn so_far(&mut self) -> Result<(u64, u64)> {
        let input = self.child.stdin.as_mut().context("the flood's input")?;
        writeln!(input)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let (served, refused) =
            line.trim().split_once(' ').with_context(|| format!("figures, not {line:?}"))?;
        Ok((served.parse()?, refused.parse()?))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests until the end of standard input; prints the numbers of served and rejected requests for each input
/// line.
async fn hammer(kubeconfig: &std::path::Path, connections: usize) -> Result<()> {
    ensure!(cores::set_priority(cores::LAST), "the priority could not be set");
    let target = Target::without_identity(&crate::kubeconfig::Access::read(kubeconfig)?)?;
    let (stop, served, refused) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for _ in 0..connections {
        let mut connection = target.connect().await?;
        let (stop, served, refused) = (stop.clone(), served.clone(), refused.clone());
        workers.push(tokio::spawn(async move {
            let path = format!("{NAMESPACE}/configmaps/read-me");
            let headers = [("authorization", "Bearer flood-token")];
            while !stop.load(Ordering::Relaxed) {
                match connection.request(Method::GET, &path, &headers, Bytes::new()).await {
                    Ok((StatusCode::OK, _)) => served.fetch_add(1, Ordering::Relaxed),
                    Ok(_) => refused.fetch_add(1, Ordering::Relaxed),
                    Err(_) => return,
                };
            }
        }));
    }
    println!("flooding");
    let counts = (served.clone(), refused.clone());
    let print_counts = move || {
        for _ in std::io::stdin().lines() {
            println!("{} {}", counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed));
        }
    };
    tokio::task::spawn_blocking(print_counts).await?;
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.abort();
    }
    Ok(())
}
