//! Custom resources: cost of unused definitions, time until they are served, and cost of requests for their
//! objects.

mod definitions;
mod resources;

use crate::CrdArguments;
use crate::api::{Figure, Side, figure, print_sides, wait_ready};
use crate::client::{Connection, Target};
use crate::kubeconfig::Access;
use crate::process::{Ferry, Processes};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use definitions::Definition;
use http::Method;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const JSON_PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];
const AGGREGATED: &[(&str, &str)] =
    &[("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
/// Connections that create definitions.
const WRITERS: usize = 4;
/// Changes of which OpenAPI is awaited.
const CHANGES: usize = 21;

pub async fn run(arguments: &CrdArguments) -> Result<()> {
    let definitions = Arc::new(definitions::make(arguments.definitions.as_deref(), arguments.count)?);
    let bytes: usize = definitions.iter().map(|definition| definition.body.len()).sum();
    eprintln!("{} definitions, {} KB on average", definitions.len(), bytes / definitions.len() / 1000);
    let ferry = Ferry::start(&Ferry::binary(arguments.ferry.as_deref())?).await?;
    wait_ready(&ferry).await?;
    let mut sides = vec![Side::new(Target::new(&ferry.access()?)?, ferry.processes())];
    if let Some(kubeconfig) = &arguments.other {
        let target = Target::new(&Access::read(kubeconfig)?)?;
        sides.push(Side::new(target, Processes::parse(&arguments.other_pids)?));
    }
    for side in &mut sides {
        let figures = establish(&side.target, &side.processes, &definitions, arguments).await?;
        side.figures.extend(figures);
        side.figures.extend(change(&side.target, &side.processes, &definitions).await?);
    }
    resources::measure(&mut sides, arguments).await?;
    print_sides(sides);
    Ok(())
}

/// Creates the definitions, waits until discovery has all, and compares memory once the server is idle.
async fn establish(
    target: &Target,
    processes: &Processes,
    definitions: &Arc<Vec<Definition>>,
    arguments: &CrdArguments,
) -> Result<Vec<Figure>> {
    settle(processes, arguments.settle).await;
    let (before, cpu) = (processes.memory(), processes.cpu());
    let start = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (mut connection, next, definitions) =
            (target.connect().await?, next.clone(), definitions.clone());
        writers.push(tokio::spawn(async move {
            while let Some(definition) = definitions.get(next.fetch_add(1, Ordering::Relaxed)) {
                create(&mut connection, definition).await?;
            }
            anyhow::Ok(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    let created = start.elapsed();
    let mut connection = target.connect().await?;
    wait_discovered(&mut connection, definitions).await?;
    let served = start.elapsed();
    let establishing = processes.cpu().saturating_sub(cpu);
    settle(processes, arguments.settle).await;
    let after = processes.memory();
    let (count, total) = (definitions.len() as f64, processes.cpu().saturating_sub(cpu));
    let name = |what: &str| format!("{} definitions: {what}", definitions.len());
    Ok(vec![
        figure(name("created"), "s", created.as_secs_f64()),
        figure(name("established and in discovery"), "s", served.as_secs_f64()),
        figure(name("CPU until then"), "s", establishing.as_secs_f64()),
        figure(name("CPU until idle"), "s", total.as_secs_f64()),
        figure(name("memory per definition"), "KB", (after.saturating_sub(before)) as f64 / count / 1000.0),
        figure(name("memory in total"), "MB", after as f64 / 1e6),
    ])
}

/// Creates a definition. A server that is slow with many of them may exceed its own time limit: the request is
/// retried.
async fn create(connection: &mut Connection, definition: &Definition) -> Result<()> {
    let mut attempts = 0;
    loop {
        let (status, _) =
            connection.request(Method::POST, DEFINITIONS, JSON, definition.body.clone()).await?;
        attempts += 1;
        match status.as_u16() {
            201 => return Ok(()),
            409 if attempts > 1 => return Ok(()),
            429 | 500..600 if attempts < 10 => tokio::time::sleep(Duration::from_secs(1)).await,
            _ => anyhow::bail!("{}.{}: {status}", definition.plural, definition.group),
        }
    }
}

async fn wait_discovered(connection: &mut Connection, definitions: &[Definition]) -> Result<()> {
    let wanted: BTreeSet<(&str, &str)> =
        definitions.iter().map(|definition| (&*definition.group, &*definition.plural)).collect();
    let deadline = Instant::now() + Duration::from_secs(900);
    loop {
        let (_, body) = connection.get("/apis", AGGREGATED).await?;
        let found: Value = serde_json::from_slice(&body).context("discovery is not JSON")?;
        let mut missing = wanted.clone();
        for group in found["items"].as_array().into_iter().flatten() {
            let name = group["metadata"]["name"].as_str().unwrap_or("");
            for version in group["versions"].as_array().into_iter().flatten() {
                for resource in version["resources"].as_array().into_iter().flatten() {
                    missing.remove(&(name, resource["resource"].as_str().unwrap_or("")));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{} definitions are not in discovery: {missing:?}", missing.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the processes use less than a tenth of a core, at most `limit` seconds.
async fn settle(processes: &Processes, limit: u64) {
    let deadline = Instant::now() + Duration::from_secs(limit);
    while Instant::now() < deadline {
        let cpu = processes.cpu();
        tokio::time::sleep(Duration::from_secs(3)).await;
        if processes.cpu().saturating_sub(cpu) < Duration::from_millis(300) {
            return;
        }
    }
}

/// The time from the answer to a changed definition until its OpenAPI document shows the change.
async fn change(target: &Target, processes: &Processes, definitions: &[Definition]) -> Result<Vec<Figure>> {
    let mut by_size: Vec<&Definition> = definitions.iter().collect();
    by_size.sort_by_key(|definition| definition.body.len());
    let changed = by_size[by_size.len() / 2];
    let (mut writer, mut reader) = (target.connect().await?, target.connect().await?);
    let path = format!("{DEFINITIONS}/{}.{}", changed.plural, changed.group);
    let document = format!("/openapi/v3/apis/{}/{}", changed.group, changed.version);
    let mut times = Vec::new();
    let cpu = processes.cpu();
    for n in 0..CHANGES {
        let marker = format!("changed {n} times");
        let patch = format!(
            r#"[{{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"{marker}"}}]"#
        );
        let (status, _) = writer.request(Method::PATCH, &path, JSON_PATCH, Bytes::from(patch)).await?;
        ensure!(status.is_success(), "{path}: {status}");
        let start = Instant::now();
        loop {
            let (_, body) = reader.get(&document, &[]).await?;
            if memchr::memmem::find(&body, marker.as_bytes()).is_some() {
                break;
            }
            ensure!(start.elapsed() < Duration::from_secs(120), "{document} does not show the change");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    let cpu = processes.cpu().saturating_sub(cpu).as_secs_f64() * 1000.0 / CHANGES as f64;
    times.sort_by(f64::total_cmp);
    let name = |what: &str| format!("one of {} definitions changed: {what}", definitions.len());
    Ok(vec![
        figure(name("its OpenAPI v3 document, p50"), "ms", times[times.len() / 2]),
        figure(name("its OpenAPI v3 document, slowest"), "ms", times.last().copied().unwrap_or_default()),
        figure(name("CPU"), "ms", cpu),
    ])
}
