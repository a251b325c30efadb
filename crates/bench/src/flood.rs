//! The flood: many connections hammer the server as one user, while the latency of another user is measured.
//!
//! The flood runs in a process of its own at the lowest priority: on one machine it would otherwise take the server's
//! CPU away, which is not what this measures; floods come from elsewhere.

use crate::FloodArguments;
use crate::client::{Connection, Target};
use crate::process::Ferry;
use crate::report::{self, Line};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use std::io::{BufRead, BufReader};
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
    let ferry = Ferry::start_with(&binary, &[&tokens_flag, &fair_flag, "-v=0"]).await?;
    crate::api::wait_ready(&ferry).await?;
    let access = ferry.access()?;
    prepare(&Target::new(&access)?).await?;
    let other = Target::without_identity(&access)?;
    let mut connection = other.connect().await?;
    let headers = authorization("other-token");
    measure(&mut connection, &headers, WARM_UP).await?;
    let idle = measure(&mut connection, &headers, arguments.requests).await?;
    let cpu = ferry.processes().cpu();
    let mut flood = Flood::start(arguments, &ferry)?;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let flooded = measure(&mut connection, &headers, arguments.requests).await?;
    let elapsed = begin.elapsed();
    let (served, refused) = flood.stop()?;
    let cpu = ferry.processes().cpu().saturating_sub(cpu);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let line = |name: &str, unit, value| Line {
        name: name.to_owned(),
        unit,
        ferry: value,
        other: None,
        more_is_better: false,
    };
    report::print(&[
        line("other user, idle: p50", "µs", micros(idle.p50)),
        line("other user, idle: p99", "µs", micros(idle.p99)),
        line("other user, during the flood: p50", "µs", micros(flooded.p50)),
        line("other user, during the flood: p99", "µs", micros(flooded.p99)),
        line("p99 during the flood / idle", "×", micros(flooded.p99) / micros(idle.p99)),
        line("flood: requests served", "1/s", served as f64 / elapsed.as_secs_f64()),
        line("flood: requests refused", "1/s", refused as f64 / elapsed.as_secs_f64()),
        line("CPU of the server during the flood", "cores", cpu.as_secs_f64() / elapsed.as_secs_f64()),
    ]);
    Ok(())
}

fn authorization(token: &str) -> Vec<(&'static str, String)> {
    vec![("authorization", format!("Bearer {token}"))]
}

/// Something to read, and the right to read it.
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

struct Latency {
    p50: Duration,
    p99: Duration,
}

/// One request after the other on one connection.
async fn measure(
    connection: &mut Connection,
    headers: &[(&'static str, String)],
    count: usize,
) -> Result<Latency> {
    let path = format!("{NAMESPACE}/configmaps/read-me");
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut latencies = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        let (status, _) = connection.request(Method::GET, &path, &headers, Bytes::new()).await?;
        ensure!(status == StatusCode::OK, "the other user got {status}");
        latencies.push(begin.elapsed());
        // A person, not another flood.
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    latencies.sort_unstable();
    let at =
        |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
    Ok(Latency { p50: at(0.5), p99: at(0.99) })
}

/// The process that hammers.
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
            .context("starting the flood")?;
        let output = child.stdout.take().context("the flood's output")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line.trim() == "flooding", "the flood did not start: {line:?}");
        Ok(Self { child, output })
    }

    /// How many requests were served and refused.
    fn stop(&mut self) -> Result<(u64, u64)> {
        drop(self.child.stdin.take());
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

/// Hammers until the standard input ends.
async fn hammer(kubeconfig: &std::path::Path, connections: usize) -> Result<()> {
    rustix::process::setpriority_process(None, 19)?;
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
    tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await?;
    stop.store(true, Ordering::Relaxed);
    println!("{} {}", served.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    for worker in workers {
        worker.abort();
    }
    Ok(())
}
