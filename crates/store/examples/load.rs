//! Measures the embedded store: writes per second, CPU time per write and memory, all writes durable.
//!
//! `cargo run --release -p store --example load -- [SECONDS] [DIRECTORY]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Embedded, EmbeddedOptions, Event, Expect, Op, Revision, Store, StoreError, Txn, WatchSink};

/// About as many watches as an API server holds.
const WATCHES: u64 = 60;
const VALUE: usize = 1024;
const KEYS: u64 = 2000;

struct Nothing;

impl WatchSink for Nothing {
    fn events(&mut self, _: Vec<Event>) {}
    fn progress(&mut self, _: Revision) {}
    fn closed(&mut self, _: StoreError) {}
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |nth: usize| fields.get(nth).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Resident memory in MiB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}

async fn put(store: &Embedded, key: String, value: Vec<u8>) {
    let op = Op::Put { value: Bytes::from(value), lease: None };
    store.txn(Txn { key: key.into(), expect: Expect::Any, op }).await.expect("put");
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(5);
    let directory = arguments.next().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("store-load-{}", std::process::id())).display().to_string()
    });
    let started = Instant::now();
    let store = Arc::new(Embedded::open(EmbeddedOptions::new(&directory)).expect("open"));
    println!("open: {:?}, {:.1} MiB", started.elapsed(), memory());
    let mut handles = Vec::new();
    for nth in 0..WATCHES {
        let prefix = format!("/registry/kind{nth}/");
        handles.push(store.watch(&prefix, store.revision(), Box::new(Nothing)).await.expect("watch"));
    }
    for batch in 0..100 {
        let puts = (0..100).map(|nth| {
            let store = store.clone();
            tokio::spawn(async move { put(&store, format!("/pods/{batch}/{nth}"), vec![b'p'; 2800]).await })
        });
        for task in puts.collect::<Vec<_>>() {
            task.await.expect("pod");
        }
    }
    println!("with 10,000 keys of 2.8 kB: {:.1} MiB", memory());
    for writers in [1, 16, 64] {
        let (written, cpu_before, started) = (Arc::new(AtomicU64::new(0)), cpu(), Instant::now());
        let end = started + Duration::from_secs(seconds);
        let tasks: Vec<_> = (0..writers)
            .map(|_| {
                let (store, written) = (store.clone(), written.clone());
                tokio::spawn(async move {
                    while Instant::now() < end {
                        let key = written.fetch_add(1, Ordering::Relaxed) % KEYS;
                        let key = format!("/registry/kind{}/ns/{key}", key % WATCHES);
                        put(&store, key, vec![b'x'; VALUE]).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("writer");
        }
        let (count, spent) = (written.load(Ordering::Relaxed), cpu() - cpu_before);
        println!(
            "{writers} writers: {:.0} writes/s, {:.1} us CPU per write, {:.1} MiB after {count} writes",
            count as f64 / started.elapsed().as_secs_f64(),
            spent.as_secs_f64() * 1e6 / count as f64,
            memory(),
        );
    }
    drop(handles);
    store.close().await;
    drop(store);
    let started = Instant::now();
    let store = Embedded::open(EmbeddedOptions::new(&directory)).expect("open again");
    println!("opened again at revision {} in {:?}", store.revision(), started.elapsed());
    drop(store);
    let _ = std::fs::remove_dir_all(&directory);
}
