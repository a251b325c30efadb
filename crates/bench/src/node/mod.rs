//! The node benchmark: `ferry up` with real containers, in separate namespaces.
//!
//! Start-up until the node is ready, pods sequentially and concurrently, idle memory and CPU. All its processes end
//! with it: it is the first process of a pid namespace.

mod image;
mod pods;
mod world;

use crate::NodeArguments;
use crate::client::{Connection, Target};
use crate::process::{Ferry, Processes};
use crate::report::{self, Line};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use pods::Pods;
use std::path::Path;
use std::time::{Duration, Instant};
pub use world::in_own_world;

/// Time limit of all waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for becoming idle after a change.
const SETTLE: Duration = Duration::from_secs(3);

pub async fn run(arguments: &NodeArguments, cgroup: &str) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let role = ["up", "--kubelet-listen", "127.0.0.1:0", "--cgroup-root", cgroup];
    let mut lines = Vec::new();
    let line = |name: String, unit, ferry| Line { name, unit, ferry, other: None, more_is_better: false };

    let (mut times, mut last) = (Vec::new(), None);
    for _ in 0..arguments.starts.max(1) {
        drop(last.take());
        let ferry = Ferry::start_as(&binary, &role).await?;
        times.push(node_ready(&ferry).await?);
        last = Some(ferry);
    }
    let ferry = last.context("no start")?;
    times.sort_unstable();
    lines.push(line("start on an empty directory → node Ready".into(), "ms", ms(times[times.len() / 2])));

    let mut target = Target::new(&ferry.access()?)?;
    tokio::time::sleep(SETTLE).await;
    let before = ferry.processes().memory();
    lines.push(line("memory, idle, no pods".into(), "MB", before as f64 / 1e6));
    lines.push(line("CPU, idle, no pods".into(), "%", idle(&ferry.processes(), arguments.idle).await));

    let archive = image::make(ferry.data_dir.path())?;
    image::import(&binary, ferry.data_dir.path(), &archive).await?;
    let mut pods = Pods::new(&mut target).await?;
    let everything = world::ferries()?;
    let cpu = everything.cpu();
    let mut each = pods.one_after_the_other(arguments.pods).await?;
    let cpu = world::ferries()?.cpu().saturating_sub(cpu);
    each.sort_unstable();
    let at = |share: f64| each.get((each.len() as f64 * share) as usize).copied().unwrap_or_default();
    lines.push(line(
        format!("pod created → Running, p50 of {} one after the other", each.len()),
        "ms",
        ms(at(0.5)),
    ));
    lines.push(line("the same, p99".into(), "ms", ms(at(0.99))));
    lines.push(line("CPU per pod".into(), "ms", ms(cpu) / each.len().max(1) as f64));
    pods.remove(0..arguments.pods).await?;

    let all = pods.all_at_once(arguments.pods).await?;
    lines.push(line(format!("{} pods at once → all Running", arguments.pods), "s", all.as_secs_f64()));
    let remaining = arguments.running.min(arguments.pods);
    pods.remove(remaining..arguments.pods).await?;
    tokio::time::sleep(SETTLE).await;
    lines.push(line(
        format!("memory, {remaining} pods, Ferry"),
        "MB",
        ferry.processes().memory() as f64 / 1e6,
    ));
    lines.push(line(
        format!("memory, {remaining} pods, their shims"),
        "MB",
        world::shims_memory()? as f64 / 1e6,
    ));
    lines.push(line(
        format!("CPU, idle, {remaining} pods"),
        "%",
        idle(&world::ferries()?, arguments.idle).await,
    ));
    pods.remove(0..remaining).await?;
    report::print(&lines);
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Idle share of a core, in percent.
async fn idle(processes: &Processes, seconds: u64) -> f64 {
    let cpu = processes.cpu();
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    processes.cpu().saturating_sub(cpu).as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0
}

/// From the start of the process until the node is ready.
async fn node_ready(ferry: &Ferry) -> Result<Duration> {
    let target = Target::new(&ferry.access()?)?;
    let mut seen = "nothing".to_owned();
    while ferry.started.elapsed() < PATIENCE {
        if let Ok(mut connection) = target.connect().await {
            loop {
                match ready(&mut connection).await {
                    Ok(true) => return Ok(ferry.started.elapsed()),
                    Ok(false) => tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(error) => {
                        seen = error.to_string();
                        break;
                    }
                }
                ensure!(ferry.started.elapsed() < PATIENCE, "the node was not ready in time");
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    bail!("the API did not answer in time: {seen}")
}

async fn ready(connection: &mut Connection) -> Result<bool> {
    let list = connection.json(Method::GET, "/api/v1/nodes", Bytes::new()).await?;
    let conditions = list["items"][0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
}

/// Checks a prerequisite of the benchmark.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers need root".to_owned());
    }
    (!Path::new(image::BUSYBOX).exists()).then(|| format!("no static busybox at {}", image::BUSYBOX))
}
