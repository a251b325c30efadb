//! The API benchmark: the same load on Ferry and optionally on another server.

use crate::ApiArguments;
use crate::client::Target;
use crate::kubeconfig::Access;
use crate::load::{self, LoadOutcome, Request};
use crate::process::{Ferry, Processes};
use crate::report::{self, Line};
use crate::watch;
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use std::time::{Duration, Instant};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
const PROTOBUF: &[(&str, &str)] = &[("accept", "application/vnd.kubernetes.protobuf")];
/// Names in a namespace of this run: the other server may have objects of earlier runs.
fn namespace() -> String {
    format!("bench-{}", std::process::id())
}

/// A quantity of one server.
pub struct Figure {
    name: String,
    unit: &'static str,
    value: f64,
    more_is_better: bool,
}

/// A server under load, and its measurements so far.
pub struct Side {
    pub target: Target,
    pub processes: Processes,
    pub figures: Vec<Figure>,
}

impl Side {
    pub fn new(target: Target, processes: Processes) -> Self {
        Self { target, processes, figures: Vec::new() }
    }
}

pub async fn run(arguments: &ApiArguments) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let figures = if arguments.load_only { Vec::new() } else { start_up(&binary).await? };
    let ferry = Ferry::start(&binary).await?;
    wait_ready(&ferry).await?;
    let mut sides =
        vec![Side { target: Target::new(&ferry.access()?)?, processes: ferry.processes(), figures }];
    if let Some(kubeconfig) = &arguments.other {
        let target = Target::new(&Access::read(kubeconfig)?)?;
        let processes = Processes::parse(&arguments.other_pids)?;
        sides.push(Side::new(target, processes));
    }
    measure(&mut sides, arguments).await?;
    print_sides(sides);
    Ok(())
}

/// Prints the figures of Ferry, with those of the other server beside them.
pub fn print_sides(sides: Vec<Side>) {
    let mut sides = sides.into_iter().map(|side| side.figures);
    let (figures, other) = (sides.next().unwrap_or_default(), sides.next().unwrap_or_default());
    let lines: Vec<Line> = figures
        .into_iter()
        .map(|figure| Line {
            other: other.iter().find(|o| o.name == figure.name).map(|o| o.value),
            name: figure.name,
            unit: figure.unit,
            ferry: figure.value,
            more_is_better: figure.more_is_better,
        })
        .collect();
    report::print(&lines);
}

pub async fn wait_ready(ferry: &Ferry) -> Result<Duration> {
    let target = Target::new(&ferry.access()?)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(mut connection) = target.connect().await
            && let Ok((status, _)) = connection.request(Method::GET, "/readyz", &[], Bytes::new()).await
            && status.is_success()
        {
            return Ok(ferry.started.elapsed());
        }
        ensure!(Instant::now() < deadline, "ferry was not ready within 30 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn start_up(binary: &std::path::Path) -> Result<Vec<Figure>> {
    let mut times = Vec::new();
    let mut idle = 0.0;
    for _ in 0..5 {
        let ferry = Ferry::start(binary).await?;
        times.push(wait_ready(&ferry).await?.as_secs_f64() * 1000.0);
        tokio::time::sleep(Duration::from_millis(500)).await;
        idle = megabytes(ferry.processes().memory());
    }
    times.sort_by(f64::total_cmp);
    Ok(vec![
        figure("start-up to ready, empty data dir (median of 5)", "ms", times[times.len() / 2]),
        figure("idle memory after start-up", "MB", idle),
    ])
}

pub fn figure(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
    Figure { name: name.into(), unit, value, more_is_better: false }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Servers are measured alternately, so that other activity on the machine affects all of them.
async fn measure(sides: &mut [Side], arguments: &ApiArguments) -> Result<()> {
    for side in &*sides {
        let name = namespace();
        let namespace = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}"#);
        let mut setup = side.target.connect().await?;
        setup.request(Method::POST, "/api/v1/namespaces", JSON, namespace.into()).await?;
    }
    for &connections in &arguments.connections {
        loads(sides, connections, arguments).await?;
    }
    for side in &mut *sides {
        let memory = megabytes(side.processes.memory());
        side.figures.push(figure("memory after these requests", "MB", memory));
    }
    if arguments.load_only {
        return Ok(());
    }
    for Side { target, processes, figures } in sides {
        figures.extend(lists(target, processes, arguments.pods).await?);
        let (watchers, seconds) = (arguments.watchers, arguments.watch_seconds);
        let base = format!("/api/v1/namespaces/{}/configmaps", namespace());
        let outcome = watch::run(target, processes, &base, watched, watchers, 20, seconds).await?;
        let name = |what: &str| format!("{watchers} watchers × 20 updates/s: {what}");
        figures.push(figure(name("CPU per event"), "µs", outcome.cpu_us()));
        figures.push(figure(name("delivery p50"), "ms", outcome.p50.as_secs_f64() * 1000.0));
        figures.push(figure(name("delivery p99"), "ms", outcome.p99.as_secs_f64() * 1000.0));
        figures.push(figure(name("events lost"), "", outcome.lost as f64));
    }
    Ok(())
}

/// Every verb on config maps; the best of several rounds counts for each figure.
async fn loads(sides: &mut [Side], connections: usize, arguments: &ApiArguments) -> Result<()> {
    const VERBS: [&str; 5] = ["create", "get", "update", "patch", "delete"];
    let count = if connections == 1 { arguments.requests / 4 } else { arguments.requests };
    let mut outcomes = vec![Vec::new(); sides.len() * VERBS.len()];
    for round in 1..=arguments.rounds {
        eprintln!("{connections} connections, round {round} …");
        for (number, verb) in VERBS.into_iter().enumerate() {
            for (index, side) in sides.iter().enumerate() {
                let make = move |n| config_map(verb, connections, n);
                let outcome = load::run(&side.target, &side.processes, connections, count, make).await?;
                outcomes[index * VERBS.len() + number].push(outcome);
            }
        }
    }
    for (side, outcomes) in sides.iter_mut().zip(outcomes.chunks(VERBS.len())) {
        for (verb, outcomes) in VERBS.into_iter().zip(outcomes) {
            let name = |what: &str| format!("{verb}, {connections} connections: {what}");
            let least =
                |value: fn(&LoadOutcome) -> f64| outcomes.iter().map(value).fold(f64::INFINITY, f64::min);
            let throughput = outcomes.iter().map(LoadOutcome::per_second).fold(0.0, f64::max);
            side.figures.push(figure(name("CPU per request"), "ms", least(LoadOutcome::cpu_ms)));
            side.figures
                .push(Figure { more_is_better: true, ..figure(name("throughput"), "1/s", throughput) });
            side.figures.push(figure(name("p50"), "ms", least(|o| o.p50.as_secs_f64() * 1000.0)));
            side.figures.push(figure(name("p99"), "ms", least(|o| o.p99.as_secs_f64() * 1000.0)));
        }
    }
    Ok(())
}

/// The n-th request of a verb on 1 KiB config maps. Each round has its own names.
fn config_map(verb: &str, round: usize, n: usize) -> Request {
    let base = format!("/api/v1/namespaces/{}/configmaps", namespace());
    let path = format!("{base}/c{round}-{n}");
    let object = |value: &str| {
        let filler = "x".repeat(1000);
        Bytes::from(format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c{round}-{n}","labels":{{"app":"bench"}}}},"data":{{"k":"{value}","f":"{filler}"}}}}"#
        ))
    };
    match verb {
        "create" => Request { method: Method::POST, path: base, headers: JSON, body: object("1") },
        "get" => Request { method: Method::GET, path, headers: &[], body: Bytes::new() },
        "update" => Request { method: Method::PUT, path, headers: JSON, body: object("2") },
        "patch" => Request {
            method: Method::PATCH,
            path,
            headers: MERGE,
            body: Bytes::from_static(br#"{"data":{"k":"3"}}"#),
        },
        _ => Request { method: Method::DELETE, path, headers: &[], body: Bytes::new() },
    }
}

async fn lists(target: &Target, processes: &Processes, pods: usize) -> Result<Vec<Figure>> {
    let base = format!("/api/v1/namespaces/{}/pods", namespace());
    let account = r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}"#;
    let mut setup = target.connect().await?;
    let accounts = format!("/api/v1/namespaces/{}/serviceaccounts", namespace());
    setup.request(Method::POST, &accounts, JSON, account.into()).await?;
    let collection = base.clone();
    let created = load::run(target, processes, 32, pods, move |n| Request {
        method: Method::POST,
        path: collection.clone(),
        headers: JSON,
        body: Bytes::from(pod(n)),
    })
    .await?;
    let mut figures =
        vec![figure("create of a pod, 32 connections: CPU per request", "ms", created.cpu_ms())];
    let selective = format!("{base}?labelSelector=group%3Dg0");
    for (name, path, headers) in [
        ("full, JSON", base.clone(), &[][..]),
        ("1 % by label, JSON", selective, &[][..]),
        ("full, protobuf", base.clone(), PROTOBUF),
    ] {
        let once = path.clone();
        let request = move |path: &str| Request {
            method: Method::GET,
            path: path.to_owned(),
            headers,
            body: Bytes::new(),
        };
        // The first list of a kind also fills caches.
        load::run(target, processes, 1, 1, move |_| request(&once)).await?;
        let outcome = load::run(target, processes, 1, 20, move |_| request(&path)).await?;
        figures.push(figure(format!("list of {pods} pods, {name}: CPU per list"), "ms", outcome.cpu_ms()));
        let p50 = outcome.p50.as_secs_f64() * 1000.0;
        figures.push(figure(format!("list of {pods} pods, {name}: p50"), "ms", p50));
    }
    figures.push(paged(target, processes, &base, pods).await?);
    figures.push(figure(
        format!("memory with {pods} pods, after the lists"),
        "MB",
        megabytes(processes.memory()),
    ));
    Ok(figures)
}

/// The config map whose changes the watches receive.
fn watched(n: u64) -> Bytes {
    let filler = "x".repeat(1000);
    Bytes::from(format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"watched"}},"data":{{"n":"{n}","f":"{filler}"}}}}"#
    ))
}

/// The whole list in pages of 500.
async fn paged(target: &Target, processes: &Processes, base: &str, pods: usize) -> Result<Figure> {
    const LISTS: u32 = 10;
    let mut connection = target.connect().await?;
    let cpu = processes.cpu();
    for _ in 0..LISTS {
        let mut path = format!("{base}?limit=500");
        loop {
            let page = connection.json(Method::GET, &path, Bytes::new()).await?;
            match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => path = format!("{base}?limit=500&continue={token}"),
                _ => break,
            }
        }
    }
    let cpu = processes.cpu().saturating_sub(cpu) / LISTS;
    Ok(figure(
        format!("list of {pods} pods, pages of 500, JSON: CPU per list"),
        "ms",
        cpu.as_secs_f64() * 1000.0,
    ))
}

/// A small pod that no scheduler handles.
fn pod(n: usize) -> String {
    let group = n % 100;
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{n}","labels":{{"app":"bench","group":"g{group}"}}}},"spec":{{"schedulerName":"none","containers":[{{"name":"main","image":"registry.example/app:1.0","command":["/bin/app","--serve"],"env":[{{"name":"A","value":"1"}},{{"name":"B","value":"2"}}],"ports":[{{"containerPort":8080}}],"resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}},"limits":{{"memory":"128Mi"}}}}}}]}}}}"#
    )
}
