//! Pods as a watch sees them reach a state, and objects of benchmarks.

use crate::client::Target;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// A watch that counts the pods whose events contain a text.
pub struct Counting {
    count: Arc<AtomicUsize>,
    first: Arc<std::sync::OnceLock<Instant>>,
    task: tokio::task::JoinHandle<()>,
}

impl Counting {
    /// Counts events from now on; `text` is a fragment of an event's JSON, such as `"phase":"Running"`.
    pub async fn start(target: &Target, text: &'static str) -> Result<Self> {
        let list =
            target.connect().await?.json(Method::GET, &format!("{PODS}?limit=1"), Bytes::new()).await?;
        let version =
            list["metadata"]["resourceVersion"].as_str().context("a list without version")?.to_owned();
        let path = format!("{PODS}?watch=1&resourceVersion={version}");
        let (keep, mut stream) = target.connect().await?.stream(&path).await?;
        let count = Arc::new(AtomicUsize::new(0));
        let first = Arc::new(std::sync::OnceLock::new());
        let (counted, began) = (Arc::clone(&count), Arc::clone(&first));
        let task = tokio::spawn(async move {
            let _keep = keep;
            let mut pending: Vec<u8> = Vec::new();
            let mut seen = HashSet::new();
            while let Some(Ok(frame)) = stream.frame().await {
                let Ok(data) = frame.into_data() else { continue };
                pending.extend_from_slice(&data);
                let mut from = 0;
                while let Some(end) = memchr::memchr(b'\n', &pending[from..]) {
                    let event = &pending[from..from + end];
                    if memchr::memmem::find(event, text.as_bytes()).is_some()
                        && let Some(uid) = uid(event)
                        && seen.insert(uid)
                    {
                        began.get_or_init(Instant::now);
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    from += end + 1;
                }
                pending.drain(..from);
            }
        });
        Ok(Self { count, first, task })
    }

    /// Waits for `wanted` pods; returns the time of the first.
    pub async fn reach(&self, wanted: usize, patience: Duration) -> Result<Instant> {
        let deadline = Instant::now() + patience;
        loop {
            let count = self.count.load(Ordering::Relaxed);
            if count >= wanted {
                return self.first.get().copied().context("nothing to wait for");
            }
            anyhow::ensure!(
                Instant::now() < deadline && !self.task.is_finished(),
                "only {count} of {wanted} pods"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn uid(event: &[u8]) -> Option<[u8; 36]> {
    // Owner references have one too, before it.
    let at = memchr::memmem::rfind(event, b"\"uid\":\"")? + 7;
    event.get(at..at + 36)?.try_into().ok()
}

/// Container of the benchmark's pods.
pub fn container() -> Value {
    json!({"name": "c", "image": "pause:1", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}})
}
