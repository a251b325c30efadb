//! Fan-out: many watches, one writer, every event counted at every watcher.

use crate::client::{Connection, Target};
use crate::process::Processes;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default)]
pub struct WatchOutcome {
    pub events: usize,
    pub lost: usize,
    pub cpu: Duration,
    pub p50: Duration,
    pub p99: Duration,
}

impl WatchOutcome {
    /// CPU of the server per delivered event, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.events.max(1) as f64
    }
}

/// Writes `updates` times a second for `seconds` seconds while `watchers` watches receive the events. `body` builds the
/// object `watched` of the collection `base`, with the number of the write as text in the field `n`.
pub async fn run(
    target: &Target,
    processes: &Processes,
    base: &str,
    body: impl Fn(u64) -> Bytes,
    watchers: usize,
    updates: u64,
    seconds: u64,
) -> Result<WatchOutcome> {
    let mut writer = target.connect().await?;
    let headers = [("content-type", "application/json")];
    writer.request(Method::POST, base, &headers, body(0)).await?;
    let list = writer.json(Method::GET, base, Bytes::new()).await?;
    let version = list["metadata"]["resourceVersion"].as_str().context("a list without version")?.to_owned();

    let total = updates * seconds;
    let sent: Arc<Vec<std::sync::OnceLock<Instant>>> =
        Arc::new((0..=total).map(|_| std::sync::OnceLock::new()).collect());
    let seen = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..watchers {
        let (keep, mut stream) = target
            .connect()
            .await?
            .stream(&format!(
                "{base}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Dwatched"
            ))
            .await?;
        let (sent, seen) = (sent.clone(), seen.clone());
        tasks.push(tokio::spawn(async move {
            let _keep = keep;
            let mut latencies = Vec::with_capacity(total as usize);
            let mut pending: Vec<u8> = Vec::new();
            while latencies.len() < total as usize {
                let Some(Ok(frame)) = stream.frame().await else { break };
                let Ok(data) = frame.into_data() else { continue };
                let now = Instant::now();
                pending.extend_from_slice(&data);
                while let Some(end) = memchr::memchr(b'\n', &pending) {
                    if let Some(n) = number(&pending[..end])
                        && let Some(at) = sent.get(n).and_then(|slot| slot.get())
                    {
                        latencies.push(now.duration_since(*at));
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    pending.drain(..=end);
                }
            }
            latencies
        }));
    }
    let cpu = processes.cpu();
    let path = format!("{base}/watched");
    let mut tick = tokio::time::interval(Duration::from_secs(1) / updates as u32);
    for n in 1..=total {
        tick.tick().await;
        let _ = sent[n as usize].set(Instant::now());
        replace(&mut writer, &path, body(n)).await?;
    }
    let expected = watchers * total as usize;
    let deadline = Instant::now() + Duration::from_secs(10);
    while seen.load(Ordering::Relaxed) < expected && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cpu = processes.cpu().saturating_sub(cpu);
    let mut latencies = Vec::new();
    for task in tasks {
        if seen.load(Ordering::Relaxed) < expected {
            task.abort();
        }
        if let Ok(some) = task.await {
            latencies.extend(some);
        }
    }
    latencies.sort_unstable();
    let at =
        |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
    let events = seen.load(Ordering::Relaxed);
    Ok(WatchOutcome { events, lost: expected - events, cpu, p50: at(0.5), p99: at(0.99) })
}

/// Replaces the watched object. Kinds that require a resource version get the current one.
async fn replace(writer: &mut Connection, path: &str, body: Bytes) -> Result<()> {
    let patch = [("content-type", "application/merge-patch+json")];
    let (status, _) = writer.request(Method::PATCH, path, &patch, body).await?;
    ensure!(status.is_success(), "{path}: {status}");
    Ok(())
}

/// The number of the write in the object.
fn number(frame: &[u8]) -> Option<usize> {
    let at = memchr::memmem::find(frame, b"\"n\":\"")? + 5;
    let digits = &frame[at..];
    let end = memchr::memchr(b'"', digits)?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}
