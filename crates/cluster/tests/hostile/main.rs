//! Requests designed to exhaust the server, in a process limited to 256 MB of memory, while another client works.
//!
//! The server runs in its own process inside a memory cgroup. Several hostile requests at a time are sent to it, each
//! of which must be rejected or answered within that memory. Meanwhile another client reads and writes: while a
//! hostile request is in progress, its requests must be answered. The server has one worker thread, so a request that
//! computes on it would block all others.

mod bodies;
mod process;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use process::Process;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::{Client, Scenarios};

/// Memory limit of the server's process.
const MEMORY: u64 = 256 << 20;
/// Concurrent hostile requests.
const AT_ONCE: usize = 4;
/// While a hostile request takes longer than this, requests of the other client must be answered.
const LONG: Duration = Duration::from_secs(2);
/// Time limit of any hostile request. The server is a debug build and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// Environment variable to select requests by a part of their names; all unless set.
const ONLY: &str = "FERRY_HOSTILE_ONLY";

/// A request designed to exhaust the server.
struct Hostile {
    name: &'static str,
    method: Method,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Bytes,
}

impl Hostile {
    fn request(&self) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(self.method.clone()).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        Ok(request.body(Full::new(self.body.clone()))?)
    }
}

/// The well-behaved client and its number of requests.
struct Ordinary {
    client: Client,
    done: AtomicUsize,
    is_over: AtomicBool,
}

impl Ordinary {
    /// Repeats a read and a write.
    async fn work(&self) -> Result<()> {
        let path = "/api/v1/namespaces/default/configmaps/ordinary";
        while !self.is_over.load(Ordering::Relaxed) {
            let count = self.done.load(Ordering::Relaxed);
            let text = count.to_string();
            let patch = json!({"data": {"count": text}});
            let media = "application/merge-patch+json";
            let body = serde_json::to_vec(&patch)?;
            let reply = self.client.request(Method::PATCH, path, media, body).await?;
            anyhow::ensure!(reply.status == 200, "{}: {}", reply.status, reply.body);
            let reply = self.client.get(path).await?;
            anyhow::ensure!(reply.body["data"]["count"] == text, "{}", reply.body);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Outcome of one hostile request.
struct RequestOutcome {
    name: &'static str,
    code: u16,
    took: Duration,
    /// Requests of the other client that were answered meanwhile.
    beside: usize,
    answer: String,
}

impl RequestOutcome {
    fn check(&self) -> Result<(), String> {
        let Self { code, took, beside, answer, .. } = self;
        if !(200..500).contains(code) {
            return Err(format!("{code} {answer}"));
        }
        if *took >= LONG && *beside == 0 {
            return Err(format!("took {took:?}, and no other request was answered meanwhile"));
        }
        Ok(())
    }
}

async fn send(hostile: &Hostile, client: &Client, ordinary: &Ordinary) -> Result<RequestOutcome> {
    let (begin, before) = (Instant::now(), ordinary.done.load(Ordering::Relaxed));
    let sent = tokio::time::timeout(PATIENCE, client.exchange(hostile.request()?)).await;
    let reply = sent.with_context(|| format!("{}: no answer", hostile.name))?;
    let reply = reply.with_context(|| hostile.name)?;
    let beside = ordinary.done.load(Ordering::Relaxed) - before;
    let answer = String::from_utf8_lossy(&reply.bytes[..reply.bytes.len().min(300)]).into_owned();
    Ok(RequestOutcome {
        name: hostile.name,
        code: reply.status.as_u16(),
        took: begin.elapsed(),
        beside,
        answer,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_within_256_mb_delay_only_their_sender() -> Result<()> {
    let Some(process) = Process::start(MEMORY)? else {
        println!("skipped: no memory cgroup can be made here");
        return Ok(());
    };
    let process = Arc::new(process);
    let admin = process.client()?;
    for (path, object) in bodies::prepared() {
        let reply = admin.post(path, &object).await?;
        anyhow::ensure!(reply.status == 201, "{path}: {}", reply.body);
    }
    let ordinary = Arc::new(Ordinary {
        client: process.client()?,
        done: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    });
    let working = tokio::spawn({
        let ordinary = Arc::clone(&ordinary);
        async move { ordinary.work().await }
    });
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut hostile = bodies::all();
    hostile.retain(|one| one.name.contains(&only));
    let hostile = Arc::new(hostile);
    let next = Arc::new(AtomicUsize::new(0));
    let senders: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (process, ordinary) = (Arc::clone(&process), Arc::clone(&ordinary));
            let (hostile, next) = (Arc::clone(&hostile), Arc::clone(&next));
            tokio::spawn(async move {
                let client = process.client()?;
                let mut outcomes = Vec::new();
                while let Some(one) = hostile.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = send(one, &client, &ordinary).await;
                    let outcome = outcome.with_context(|| process.state())?;
                    println!(
                        "{}: {} after {:?}, {} beside, {} MB at most so far: {:.100}",
                        outcome.name,
                        outcome.code,
                        outcome.took,
                        outcome.beside,
                        process.peak() >> 20,
                        outcome.answer.rsplit("\"message\":").next().unwrap_or("")
                    );
                    outcomes.push(outcome);
                }
                anyhow::Ok(outcomes)
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for sender in senders {
        outcomes.extend(sender.await??);
    }
    ordinary.is_over.store(true, Ordering::Relaxed);
    working.await?.context("the other client")?;
    assert_eq!(outcomes.len(), hostile.len());
    let mut scenarios = Scenarios::default();
    for outcome in &outcomes {
        scenarios.record(outcome.name, outcome.took, outcome.check());
    }
    assert!(process.is_running(), "{}", process.state());
    assert_eq!(process.kills(), 0, "{}", process.state());
    scenarios.finish();
    Ok(())
}
