//! Requests from several connections, and their cost.

use crate::client::Target;
use crate::process::Processes;
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A request by its number.
pub struct Request {
    pub method: Method,
    pub path: String,
    pub headers: &'static [(&'static str, &'static str)],
    pub body: Bytes,
}

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOutcome {
    pub requests: usize,
    pub elapsed: Duration,
    pub cpu: Duration,
    pub p50: Duration,
    pub p99: Duration,
}

impl LoadOutcome {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU of the server per request, in milliseconds.
    pub fn cpu_ms(&self) -> f64 {
        self.cpu.as_secs_f64() * 1000.0 / self.requests as f64
    }
}

/// Sends `count` requests over `connections` connections; every answer must be a success.
pub async fn run(
    target: &Target,
    processes: &Processes,
    connections: usize,
    count: usize,
    make: impl Fn(usize) -> Request + Send + Sync + 'static,
) -> Result<LoadOutcome> {
    let make = Arc::new(make);
    let next = Arc::new(AtomicUsize::new(0));
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(target.connect().await?);
    }
    let cpu = processes.cpu();
    let start = Instant::now();
    let workers: Vec<_> = opened
        .into_iter()
        .map(|mut connection| {
            let (make, next) = (make.clone(), next.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::with_capacity(count / connections + 1);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return anyhow::Ok(latencies);
                    }
                    let request = make(number);
                    let sent = Instant::now();
                    let (status, _) = connection
                        .request(request.method, &request.path, request.headers, request.body)
                        .await?;
                    ensure!(status.is_success(), "{}: {status}", request.path);
                    latencies.push(sent.elapsed());
                }
            })
        })
        .collect();
    let mut latencies = Vec::with_capacity(count);
    for worker in workers {
        latencies.extend(worker.await??);
    }
    let elapsed = start.elapsed();
    let cpu = processes.cpu().saturating_sub(cpu);
    latencies.sort_unstable();
    let at =
        |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default();
    Ok(LoadOutcome { requests: count, elapsed, cpu, p50: at(0.5), p99: at(0.99) })
}
