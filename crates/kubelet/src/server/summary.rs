//! `/stats/summary`: what `kubectl top` and autoscalers build on.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::usage::{self, Usage};
use super::{Reply, text, typed};
use crate::lifecycle::status::seconds;
use crate::node;
use crate::pods::Workers;
use crate::shared::Shared;

/// A time as the API has it; `now` where none was measured.
fn time(nanoseconds: i64, now: Timestamp) -> String {
    let time = Timestamp::from_nanosecond(nanoseconds.into()).ok().filter(|_| nanoseconds > 0);
    seconds(time.unwrap_or(now)).0.to_string()
}

/// When a container of the pod began to run.
pub fn started(pod: &Pod, container: &str) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|status| status.name == container)?;
    found.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|time| time.0)
}

fn container(usage: &Usage, pod: &Pod, now: Timestamp) -> Value {
    let begun = started(pod, &usage.container).unwrap_or(now);
    let mut shown = json!({"name": usage.container, "startTime": seconds(begun).0.to_string()});
    if let Some(cpu) = usage.cpu {
        shown["cpu"] = json!({
            "time": time(cpu.at, now),
            "usageNanoCores": cpu.value.nano_cores,
            "usageCoreNanoSeconds": cpu.value.nanoseconds,
        });
    }
    if let Some(memory) = usage.memory {
        shown["memory"] = json!({
            "time": time(memory.at, now),
            "workingSetBytes": memory.value.working_set,
            "usageBytes": memory.value.usage,
            "rssBytes": memory.value.rss,
            "pageFaults": memory.value.page_faults,
            "majorPageFaults": memory.value.major_page_faults,
        });
    }
    if let Some(disk) = usage.disk {
        shown["rootfs"] = json!({
            "time": time(disk.at, now), "usedBytes": disk.value.bytes, "inodesUsed": disk.value.inodes,
        });
    }
    shown
}

fn file_system(found: node::FileSystem, now: Timestamp) -> Value {
    let ((total, available), (inodes, free)) = (found.bytes, found.inodes);
    json!({
        "time": time(0, now),
        "capacityBytes": total,
        "availableBytes": available,
        "usedBytes": total.saturating_sub(available),
        "inodes": inodes,
        "inodesFree": free,
        "inodesUsed": inodes.saturating_sub(free),
    })
}

pub async fn summary(shared: &Shared, workers: &Arc<Workers>) -> Reply {
    let now = shared.clock.now();
    let all = match usage::of_containers(shared).await {
        Ok(all) => all,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let grouped = usage::by_pod(&all);
    let pods: Vec<Value> = workers
        .pods()
        .iter()
        .filter_map(|pod| {
            let uid = pod.metadata.uid.as_deref()?;
            let own = grouped.get(uid)?;
            let (cpu, memory) = usage::together(own);
            Some(json!({
                "podRef": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": uid},
                "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()),
                "containers": own.iter().map(|one| container(one, pod, now)).collect::<Vec<_>>(),
                "cpu": {
                    "time": time(0, now),
                    "usageNanoCores": cpu.nano_cores,
                    "usageCoreNanoSeconds": cpu.nanoseconds,
                },
                "memory": {
                    "time": time(0, now),
                    "workingSetBytes": memory.working_set,
                    "usageBytes": memory.usage,
                    "rssBytes": memory.rss,
                },
            }))
        })
        .collect();
    let (cpu, memory) = usage::of_machine();
    let (most, running) = node::processes();
    let shown = json!({
        "node": {
            "nodeName": shared.config.node_name,
            "startTime": time(0, now),
            "cpu": {"time": time(0, now), "usageCoreNanoSeconds": cpu},
            "memory": {
                "time": time(0, now),
                "availableBytes": node::memory_available(),
                "workingSetBytes": memory,
            },
            "fs": file_system(node::file_system_of(&shared.config.directory), now),
            "rlimit": {"time": time(0, now), "maxpid": most, "curproc": running},
        },
        "pods": pods,
    });
    typed(StatusCode::OK, "application/json", shown.to_string())
}
