//! What the node measures: the summary that `kubectl top` and autoscalers build on, and metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use cri::v1::ContainerStats;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Reply, text, typed};
use crate::configure::labels;
use crate::node;
use crate::pods::Workers;
use crate::shared::Shared;

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Used memory and processor time of the whole machine.
struct Machine {
    cpu_nanoseconds: u64,
    memory_working_set: i64,
}

fn machine() -> Machine {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or("");
    let ticks: Vec<u64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, irq, softirq, steal; idle and waiting do not count.
    let busy: u64 =
        ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).take(6).map(|(_, t)| *t).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Machine {
        cpu_nanoseconds: busy.saturating_mul(1_000_000_000 / per_second),
        memory_working_set: node::memory_capacity().saturating_sub(node::memory_available()),
    }
}

fn time(nanoseconds: i64, fallback: Timestamp) -> String {
    let time = Timestamp::from_nanosecond(nanoseconds.into()).ok().filter(|_| nanoseconds > 0);
    crate::lifecycle::status::seconds(time.unwrap_or(fallback)).0.to_string()
}

fn by_pod(stats: Vec<ContainerStats>) -> BTreeMap<String, Vec<ContainerStats>> {
    let mut pods: BTreeMap<String, Vec<ContainerStats>> = BTreeMap::new();
    for one in stats {
        let uid = one.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned();
        if let Some(uid) = uid {
            pods.entry(uid).or_default().push(one);
        }
    }
    pods
}

fn container(stats: &ContainerStats, now: Timestamp) -> Value {
    let name = stats.attributes.as_ref().and_then(|a| a.labels.get(labels::CONTAINER_NAME));
    let mut shown = json!({"name": name, "startTime": now.to_string()});
    if let Some(cpu) = &stats.cpu {
        shown["cpu"] = json!({
            "time": time(cpu.timestamp, now),
            "usageNanoCores": cpu.usage_nano_cores.as_ref().map_or(0, |v| v.value),
            "usageCoreNanoSeconds": cpu.usage_core_nano_seconds.as_ref().map_or(0, |v| v.value),
        });
    }
    if let Some(memory) = &stats.memory {
        shown["memory"] = json!({
            "time": time(memory.timestamp, now),
            "workingSetBytes": memory.working_set_bytes.as_ref().map_or(0, |v| v.value),
            "usageBytes": memory.usage_bytes.as_ref().map_or(0, |v| v.value),
            "rssBytes": memory.rss_bytes.as_ref().map_or(0, |v| v.value),
        });
    }
    if let Some(disk) = &stats.writable_layer {
        shown["rootfs"] = json!({
            "time": time(disk.timestamp, now),
            "usedBytes": disk.used_bytes.as_ref().map_or(0, |v| v.value),
            "inodesUsed": disk.inodes_used.as_ref().map_or(0, |v| v.value),
        });
    }
    shown
}

pub async fn summary(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let now = shared.clock.now();
    let stats = match shared.engine.container_stats().await {
        Ok(stats) => by_pod(stats),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let pods: Vec<Value> = workers
        .pods()
        .iter()
        .filter_map(|pod| {
            let uid = pod.metadata.uid.as_deref()?;
            let own = stats.get(uid)?;
            let cpu = |pick: fn(&ContainerStats) -> u64| own.iter().map(pick).sum::<u64>();
            Some(json!({
                "podRef": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": uid},
                "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()),
                "containers": own.iter().map(|one| container(one, now)).collect::<Vec<_>>(),
                "cpu": {
                    "time": time(0, now),
                    "usageNanoCores": cpu(nano_cores),
                    "usageCoreNanoSeconds": cpu(core_nano_seconds),
                },
                "memory": {"time": time(0, now), "workingSetBytes": cpu(working_set)},
            }))
        })
        .collect();
    let machine = machine();
    let (total, available) = node::file_system(&shared.config.directory);
    let shown = json!({
        "node": {
            "nodeName": shared.config.node_name,
            "startTime": time(0, now),
            "cpu": {"time": time(0, now), "usageCoreNanoSeconds": machine.cpu_nanoseconds},
            "memory": {
                "time": time(0, now),
                "availableBytes": node::memory_available(),
                "workingSetBytes": machine.memory_working_set,
            },
            "fs": {
                "time": time(0, now),
                "capacityBytes": total,
                "availableBytes": available,
                "usedBytes": total.saturating_sub(available),
            },
        },
        "pods": pods,
    });
    typed(StatusCode::OK, "application/json", shown.to_string())
}

fn nano_cores(stats: &ContainerStats) -> u64 {
    stats.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores.as_ref()).map_or(0, |v| v.value)
}

fn core_nano_seconds(stats: &ContainerStats) -> u64 {
    stats.cpu.as_ref().and_then(|cpu| cpu.usage_core_nano_seconds.as_ref()).map_or(0, |v| v.value)
}

fn working_set(stats: &ContainerStats) -> u64 {
    stats.memory.as_ref().and_then(|memory| memory.working_set_bytes.as_ref()).map_or(0, |v| v.value)
}

/// A metric of every container, under the names cAdvisor made known or under those of `/metrics/resource`.
fn per_container(
    out: &mut String,
    stats: &[ContainerStats],
    name: &str,
    kind: &str,
    value: &dyn Fn(&ContainerStats) -> String,
) {
    let _ = writeln!(out, "# TYPE {name} {kind}");
    for one in stats {
        let Some(attributes) = &one.attributes else { continue };
        let label = |key: &str| attributes.labels.get(key).map_or("", String::as_str);
        let _ = writeln!(
            out,
            "{name}{{container={:?},namespace={:?},pod={:?}}} {}",
            label(labels::CONTAINER_NAME),
            label(labels::POD_NAMESPACE),
            label(labels::POD_NAME),
            value(one)
        );
    }
}

fn in_seconds(nanoseconds: u64) -> String {
    format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000)
}

pub async fn resource_metrics(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let stats = match shared.engine.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut out = String::new();
    per_container(&mut out, &stats, "container_cpu_usage_seconds_total", "counter", &|one| {
        in_seconds(core_nano_seconds(one))
    });
    per_container(&mut out, &stats, "container_memory_working_set_bytes", "gauge", &|one| {
        working_set(one).to_string()
    });
    let machine = machine();
    let _ = writeln!(out, "# TYPE node_cpu_usage_seconds_total counter");
    let _ = writeln!(out, "node_cpu_usage_seconds_total {}", in_seconds(machine.cpu_nanoseconds));
    let _ = writeln!(out, "# TYPE node_memory_working_set_bytes gauge");
    let _ = writeln!(out, "node_memory_working_set_bytes {}", machine.memory_working_set);
    for (kind, name) in
        [("counter", "pod_cpu_usage_seconds_total"), ("gauge", "pod_memory_working_set_bytes")]
    {
        let _ = writeln!(out, "# TYPE {name} {kind}");
        let grouped = by_pod(stats.clone());
        for pod in workers.pods() {
            let Some(own) = pod.metadata.uid.as_ref().and_then(|uid| grouped.get(uid)) else { continue };
            let value = if kind == "counter" {
                in_seconds(own.iter().map(core_nano_seconds).sum())
            } else {
                own.iter().map(working_set).sum::<u64>().to_string()
            };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (ns, pod_name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
            let _ = writeln!(out, "{name}{{namespace={ns:?},pod={pod_name:?}}} {value}");
        }
    }
    let _ = writeln!(out, "# TYPE resource_scrape_error gauge\nresource_scrape_error 0");
    typed(StatusCode::OK, METRICS, out)
}

pub async fn container_metrics(shared: &Shared) -> Reply {
    let stats = match shared.engine.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut out = String::new();
    per_container(&mut out, &stats, "container_cpu_usage_seconds_total", "counter", &|one| {
        in_seconds(core_nano_seconds(one))
    });
    per_container(&mut out, &stats, "container_memory_working_set_bytes", "gauge", &|one| {
        working_set(one).to_string()
    });
    per_container(&mut out, &stats, "container_memory_usage_bytes", "gauge", &|one| {
        one.memory.as_ref().and_then(|m| m.usage_bytes.as_ref()).map_or(0, |v| v.value).to_string()
    });
    per_container(&mut out, &stats, "container_memory_rss", "gauge", &|one| {
        one.memory.as_ref().and_then(|m| m.rss_bytes.as_ref()).map_or(0, |v| v.value).to_string()
    });
    per_container(&mut out, &stats, "container_fs_usage_bytes", "gauge", &|one| {
        one.writable_layer.as_ref().and_then(|d| d.used_bytes.as_ref()).map_or(0, |v| v.value).to_string()
    });
    typed(StatusCode::OK, METRICS, out)
}

/// What the kubelet counts of itself.
pub fn own_metrics(workers: &Arc<Workers>) -> Reply {
    let pods = workers.pods();
    let mut phases: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &pods {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        *phases.entry(phase).or_default() += 1;
    }
    let mut out = String::from("# TYPE kubelet_running_pods gauge\n");
    let _ = writeln!(out, "kubelet_running_pods {}", phases.get("Running").copied().unwrap_or(0));
    let _ = writeln!(out, "# TYPE kubelet_desired_pods gauge");
    let _ = writeln!(out, "kubelet_desired_pods {}", pods.len());
    typed(StatusCode::OK, METRICS, out)
}
