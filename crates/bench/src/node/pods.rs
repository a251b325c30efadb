//! Pods that a benchmark creates and removes, and the times at which a watch saw them run.

use super::{PATIENCE, image};
use crate::client::{Connection, Target};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const BASE: &str = "/api/v1/namespaces/default/pods";
/// Concurrent connections that create pods.
const CONNECTIONS: usize = 8;

/// An event of the watch: a pod's name, and true if it runs, false if it was deleted.
type Seen = (String, bool, Instant);

pub struct Pods {
    connections: Vec<Connection>,
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl Pods {
    /// Connects, begins to watch, and waits until pods can be created.
    pub async fn new(target: &mut Target) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(target.connect().await?);
        }
        let begin = Instant::now();
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        while !connections[0].request(Method::GET, account, &[], Bytes::new()).await?.0.is_success() {
            ensure!(begin.elapsed() < PATIENCE, "no service account in time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { seen: watch(target).await?, connections })
    }

    /// Creates pods sequentially, each when the preceding one runs; returns the time of each.
    pub async fn one_after_the_other(&mut self, count: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for number in 0..count {
            let begin = Instant::now();
            create(&mut self.connections[0], number).await?;
            let running = self.wait(BTreeSet::from([name(number)]), true).await?;
            times.push(running.duration_since(begin));
        }
        Ok(times)
    }

    /// Creates pods concurrently; returns the time until all ran.
    pub async fn all_at_once(&mut self, count: usize) -> Result<Duration> {
        let begin = Instant::now();
        let lanes = self.connections.iter_mut().enumerate().map(async |(lane, connection)| {
            for number in (lane..count).step_by(CONNECTIONS) {
                create(connection, number).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        futures_util::future::try_join_all(lanes).await?;
        Ok(self.wait((0..count).map(name).collect(), true).await?.duration_since(begin))
    }

    /// Deletes pods and waits for their deletion.
    pub async fn remove(&mut self, numbers: Range<usize>) -> Result<()> {
        for number in numbers.clone() {
            let path = format!("{BASE}/{}?gracePeriodSeconds=1", name(number));
            let (status, _) = self.connections[0].request(Method::DELETE, &path, JSON, Bytes::new()).await?;
            ensure!(status.is_success(), "a pod was not deleted: {status}");
        }
        self.wait(numbers.map(name).collect(), false).await.map(|_| ())
    }

    /// Waits until all these pods run or are deleted; returns the time of the last event.
    async fn wait(&mut self, mut names: BTreeSet<String>, running: bool) -> Result<Instant> {
        let mut last = Instant::now();
        while !names.is_empty() {
            match tokio::time::timeout(PATIENCE, self.seen.recv()).await {
                Ok(Some((name, runs, at))) if runs == running => {
                    names.remove(&name);
                    last = at;
                }
                Ok(Some(_)) => {}
                Ok(None) => bail!("the watch ended"),
                Err(_) => {
                    bail!("{} pods did not become what they should, such as {:?}", names.len(), names.first())
                }
            }
        }
        Ok(last)
    }
}

fn name(number: usize) -> String {
    format!("p{number}")
}

async fn create(connection: &mut Connection, number: usize) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(number)},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": image::NAME, "command": ["/bin/sleep", "1000000"]}],
        },
    });
    let (status, _) = connection.request(Method::POST, BASE, JSON, pod.to_string().into()).await?;
    ensure!(status.is_success(), "a pod was not created: {status}");
    Ok(())
}

async fn watch(target: &Target) -> Result<mpsc::UnboundedReceiver<Seen>> {
    let list = target.connect().await?.json(Method::GET, &format!("{BASE}?limit=1"), Bytes::new()).await?;
    let version = list["metadata"]["resourceVersion"].as_str().context("a list without version")?.to_owned();
    let path = format!("{BASE}?watch=1&resourceVersion={version}");
    let (keep, mut stream) = target.connect().await?.stream(&path).await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let _keep = keep;
        let mut pending: Vec<u8> = Vec::new();
        while let Some(Ok(frame)) = stream.frame().await {
            let at = Instant::now();
            let Ok(data) = frame.into_data() else { continue };
            pending.extend_from_slice(&data);
            while let Some(end) = memchr::memchr(b'\n', &pending) {
                let event: Value = serde_json::from_slice(&pending[..end]).unwrap_or_default();
                pending.drain(..=end);
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or("").to_owned();
                let gone = event["type"] == "DELETED";
                if (gone || event["object"]["status"]["phase"] == "Running")
                    && sender.send((name, !gone, at)).is_err()
                {
                    return;
                }
            }
        }
    });
    Ok(receiver)
}
